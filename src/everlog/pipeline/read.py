"""Reading a queue or topics with a condition in SQL, of which the source evaluates what it can.

Spark 4.3 cannot push filters into a source written in Python without wrong answers, so the condition is read
here: terms on seq, time, type, ids, tag and the paths of an archive become options of the source, and only
the columns that are needed are read. The condition stays a filter of Spark, so the rows are always those of
`spark.read...load().where(condition)`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from everlog.archive.layout import check_date
from everlog.errors import InvalidPartition
from everlog.pipeline.predicates import Term, bounds_of, choices_of, known_terms, names_in, prefix_of
from everlog.pipeline.sources.archive import ArchiveSource
from everlog.pipeline.sources.base import LOCAL_SCHEME, Format, Source
from everlog.pipeline.sources.queue import QueueFormat, QueueSource
from everlog.pipeline.sources.topics import TopicsFormat

I64_MAX: Final = 2**63 - 1
TYPE_ID_MAX: Final = 2**16 - 1
IDS: Final = {
    "type_id": ("typeId", TYPE_ID_MAX),
    "venue_id": ("venueId", I64_MAX),
    "market_id": ("market", I64_MAX),
}
"""The option of each column of ids, and the largest id that it takes."""

DECODED_IDS: Final = {
    "raw": ("type_id",),
    "trade": (),
    "book": ("venue_id", "market_id"),
    "l3": ("venue_id", "market_id"),
    "quote": (),
    "bar": (),
}
"""By decoding, the columns of ids that a source filters by."""

AS_MS: Final = "SELECT unix_millis(try_cast(:text AS timestamp)) AS time_ms"
_INCLUSIVE: Final = {"<": "<=", ">": ">="}
Given = dict[str, str]
TimeMs = Callable[[str], int | None]
"""Says which time in ms a text is; None if it is none."""


def read_queue(
    spark: SparkSession,
    path: str,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    **options: str | int,
) -> DataFrame:
    """Return the messages of a queue or archive for which a condition holds, with the columns that are named.

    `read_queue(spark, "feed", where="seq < 10 and type_id = 2", columns=["seq", "payload"])` reads ten
    messages at most, and payloads of type 2 only. `options` are those of the format `everlog.queue`.
    """
    # Spark plans in another process, which may have another directory.
    place = path if path.startswith(LOCAL_SCHEME) else os.path.abspath(path)
    return _read(spark, QueueFormat, {"path": place, **options}, where, columns)


def read_topic(
    spark: SparkSession,
    topic: str,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    **options: str | int,
) -> DataFrame:
    """Return the records of topics for which a condition holds, with the columns that are named.

    `read_topic(spark, "orders", where="seq > 100 and tag like 'eu-%'", url="http://127.0.0.1:4000")`; `topic`
    is a name, several, or a prefix with `*`, and `options` are those of the format `everlog.topics`: `url` or
    `dataDir` says where the topics are.
    """
    return _read(spark, TopicsFormat, {"topic": topic, **options}, where, columns)


def _read(
    spark: SparkSession,
    kind: type[Format],
    options: Mapping[str, str | int],
    where: str | None,
    columns: Sequence[str] | None,
) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    if columns is not None:
        given["columns"] = ",".join(columns)
    source = kind(dict(given)).source()
    terms = [] if where is None else known_terms(where)
    wanted = pushed_options(source, terms, lambda text: _time_ms(spark, text))
    if columns is not None and where is not None:
        of_condition = sorted(source.known.keys() & names_in(where))
        given["columns"] = ",".join(dict.fromkeys([*source.columns, *of_condition]))
    names = {name.lower() for name in given}
    merged = {**given, **{name: value for name, value in wanted.items() if name.lower() not in names}}
    frame = spark.read.format(kind.name()).options(**merged).load()
    if where is not None:
        frame = frame.where(where)
    return frame if columns is None else frame.select(*source.columns)


def pushed_options(source: Source, terms: list[Term], time_ms: TimeMs) -> Given:
    """Return options with which a read has all rows for which the terms hold, and few others."""
    found = _seq_options(terms, source)
    if not isinstance(source, QueueSource):
        return {**found, **_topic_times(terms, time_ms), **_tag(terms)}
    found |= _queue_times(terms)
    for column in DECODED_IDS[source.decode]:
        found |= _ids(terms, column)
    return found | _path_options(terms) if isinstance(source, ArchiveSource) else found


def _time_ms(spark: SparkSession, text: str) -> int | None:
    """Ask Spark which time a text is, in the time zone of the session."""
    found: int | None = spark.sql(AS_MS, args={"text": text}).collect()[0].time_ms
    return found


def _seq_options(terms: list[Term], source: Source) -> Given:
    """Return the range of seqs. It would cut gaps that are rows, so it is not used with them."""
    modes = {source.on_data_loss, getattr(source, "on_corrupt", "")}
    return {} if "record" in modes else _range(*bounds_of(terms, "seq"), "fromSeq", "toSeq")


def _range(low: int | None, high: int | None, first: str, last: str) -> Given:
    """Return the options of a range; one that is empty becomes one of a single number, for the filter."""
    found: Given = {}
    if low is not None and low > 0:
        found[first] = str(min(low, I64_MAX))
    if high is not None:
        found[last] = str(min(max(high, low or 0, 0), I64_MAX))
    return found


def _queue_times(terms: list[Term]) -> Given:
    """Return the range of times. A time above 2^63 is a negative number in Spark, so a start is needed."""
    low, high = bounds_of(terms, "ts_ns")
    if low is None or low < 0:
        return {}
    return _range(low, I64_MAX if high is None else high, "fromTs", "toTs")


def _topic_times(terms: list[Term], time_ms: TimeMs) -> Given:
    """Return the range of times in ms."""
    found: list[Term] = []
    for term in terms:
        text = term.values[0]
        if term.column == "ts" and term.op in ("<", "<=", ">", ">=", "=") and isinstance(text, str):
            time = time_ms(text)
            if time is not None:
                found.append(Term("ts", _INCLUSIVE.get(term.op, term.op), (time,)))
    return _range(*bounds_of(found, "ts"), "fromTs", "toTs")


def _ids(terms: list[Term], column: str) -> Given:
    """Return the ids that are listed, if the option takes all of them."""
    option, most = IDS[column]
    values = choices_of(terms, column) or ()
    if not values or not all(isinstance(one, int) and 0 <= one <= most for one in values):
        return {}
    return {option: ",".join(map(str, values))}


def _one_text(terms: list[Term], column: str) -> str | None:
    """Return the only text that a column can be, None if it is not known."""
    values = choices_of(terms, column) or ()
    return values[0] if len(values) == 1 and isinstance(values[0], str) and values[0] else None


def _tag(terms: list[Term]) -> Given:
    tag, prefix = _one_text(terms, "tag"), prefix_of(terms, "tag")
    if tag is None and prefix is not None:
        tag = f"{prefix}*"
    return {} if tag is None else {"tag": tag}


def _path_options(terms: list[Term]) -> Given:
    """Return which directories of an archive are read; a condition that fits none of them has no rows."""
    texts = {name: _one_text(terms, name) for name in ("venue", "symbol", "stream")}
    found = {name: text for name, text in texts.items() if text is not None}
    for term in terms:
        if term.column == "date" and term.op in ("=", "<", "<=", ">", ">="):
            with suppress(InvalidPartition):
                day = check_date(str(term.values[0]))
                if term.op not in {"<", "<="}:
                    found["fromDate"] = max(day, found.get("fromDate", day))
                if term.op not in {">", ">="}:
                    found["toDate"] = min(day, found.get("toDate", day))
    return {**found, "allowEmpty": "true"} if found else {}
