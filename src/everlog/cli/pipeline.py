"""The commands `everlog pipeline ...`: jobs on Spark, from this machine or a cluster.

Owns their arguments and what they print; the jobs are in `everlog.pipeline.jobs`. Spark is imported when a
job starts, so that the other commands stay quick and work without the extra.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from everlog import errors
from everlog.archive.remote import is_url
from everlog.archive.tiers import find_directories
from everlog.cli import output
from everlog.cli.book_options import (
    BAR_KINDS,
    ChosenFeatures,
    Gaps,
    Mode,
    UnknownOrders,
    book_settings,
    parse_bars,
)
from everlog.cli.import_ import FormatName
from everlog.cli.options import AsJson
from everlog.cli.output import Table, reporting
from everlog.cli.task_progress import TaskProgress
from everlog.client.retrying import ONCE
from everlog.client.sync_client import Client
from everlog.errors import EverlogError, InvalidConfig, QueueNotFound, Unsupported
from everlog.fs import OsFs
from everlog.queue.faults import io_errors
from everlog.queue.layout import CONTROL_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from everlog.pipeline.jobs.audit import AuditReport
    from everlog.pipeline.jobs.importing import ImportReport
    from everlog.pipeline.jobs.refine import RefineReport
    from everlog.pipeline.jobs.report import RunReport
    from everlog.pipeline.lake import LakeTable

UNSOUND_EXIT_CODE = 1
NS_PER_MS = 1_000_000
DECODINGS = ("raw", "book", "trade", "l3", "quote", "bar")

app = output.group(
    "Run jobs on Spark: archive, import, refine, replay, features, audit.",
    "everlog pipeline audit --lake ./lake --table messages",
)

Lake = Annotated[
    str,
    typer.Option(
        "--lake",
        metavar="PLACE",
        envvar="EVERLOG_LAKE",
        help="Where the lake's tables are: a directory, or a URL such as s3://bucket/prefix.",
    ),
]
TableName = Annotated[str, typer.Option("--table", metavar="NAME", help="Table of the lake.")]
Url = Annotated[
    str | None, typer.Option("--url", envvar="EVERLOG_URL", metavar="URL", help="Server to take topics from.")
]
Topics = Annotated[
    str | None,
    typer.Option("--topic", metavar="NAMES", help="A topic, several with commas, or a prefix with *."),
]
MarketSource = Annotated[
    str,
    typer.Option("--queue", metavar="DIR|URL", help="Queue of market data, or the archive of one."),
]
QueueDir = Annotated[str | None, typer.Option("--queue", metavar="DIR", help="Queue to take messages from.")]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master, such as spark://host:7077. Default: here."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="DIR", help="Where progress is kept. Default: beside the table."),
]
Reader = Annotated[
    str | None,
    typer.Option("--reader", metavar="NAME", help="Reader name in the queue: its retention waits for us."),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes. Ctrl-C ends it.")]
Decode = Annotated[
    str | None,
    typer.Option(
        "--decode",
        metavar="|".join(DECODINGS),
        help="Only these market messages of a queue, with names, times and prices. Default: raw, all.",
    ),
]
Partitions = Annotated[
    int | None, typer.Option("--partitions", min=1, help="Tasks to deal the markets to. Default: all cores.")
]
Depth = Annotated[
    int, typer.Option("--depth", min=0, help="Levels a side in the table of depth; 0 for no such table.")
]
DepthInterval = Annotated[
    int, typer.Option("--depth-interval-ms", min=1, help="One row of depth per market and interval.")
]
MaxRecords = Annotated[
    int | None, typer.Option("--max-records", min=1, help="At most so many records in one commit.")
]
MetricsFile = Annotated[
    str | None,
    typer.Option(
        "--metrics-file",
        metavar="FILE.prom",
        help="Metrics after each commit, for the text-file collector of Prometheus's node exporter.",
    ),
]


@app.command(
    epilog="Example: everlog pipeline archive --url http://127.0.0.1:4000 --topic 'orders*' --lake ./lake"
)
def archive(  # noqa: PLR0913, PLR0917
    lake: Lake,
    table: Annotated[
        str | None,
        typer.Option(
            "--table", metavar="NAME", help="Table of the lake. Default: records; decoded, as its schema."
        ),
    ] = None,
    url: Url = None,
    topic: Topics = None,
    queue: QueueDir = None,
    reader: Reader = None,
    decode: Decode = None,
    checkpoint: Checkpoint = None,
    follow: Follow = False,
    max_records: MaxRecords = None,
    metrics_file: MetricsFile = None,
    compact_every: Annotated[
        int, typer.Option("--compact-every", min=0, help="With --follow, join small files after N commits.")
    ] = 100,
    file_mb: Annotated[
        int, typer.Option("--file-mb", min=1, help="Size of files that are joined no further.")
    ] = 256,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Bring topics or a queue into a Delta table: every record once, every gap as a row.

    Run it again to go on where it ended. The key of a server is taken from EVERLOG_KEY.
    """
    with reporting(as_json=as_json):
        if (topic is None) == (queue is None):
            raise InvalidConfig("an archive needs either --topic (with --url) or --queue")
        if topic is not None and url is None:
            raise InvalidConfig("an archive of topics needs --url, or EVERLOG_URL in the environment")
        if topic is not None and decode is not None:
            raise InvalidConfig("--decode is for the messages of a queue; records of topics stay as they are")
        options = {} if max_records is None else {"maxRecordsPerBatch": str(max_records)}
        if decode is not None:
            if decode not in DECODINGS:
                raise InvalidConfig(f"--decode is {decode!r}; it must be one of {', '.join(DECODINGS)}")
            options["decode"] = decode
        _check_source(master, queue=queue, url=url if queue is None else None)
        _table(lake, table or "records")
        with _session(master) as spark:
            from everlog.pipeline.jobs import archive as job
            from everlog.pipeline.upkeep import UpkeepPolicy

            shared: dict[str, Any] = {"checkpoint": checkpoint, "follow": follow, "options": options}
            shared["shown"] = _shown(metrics_file, as_json=as_json, follow=follow)
            every = compact_every if follow else 0
            shared["upkeep"] = UpkeepPolicy(every=every, target_bytes=file_mb << 20)
            table = table or job.default_table(options)
            if queue is not None:
                report = job.archive_queue(spark, queue, lake, table, reader=reader, **shared)
            else:
                assert url is not None and topic is not None, "checked above"
                report = job.archive_topics(spark, url, topic, lake, table, **shared)
        _print_run(report, as_json=as_json)


@app.command(epilog="Example: everlog pipeline audit --url http://127.0.0.1:4000 --lake ./lake")
def audit(
    lake: Lake,
    table: TableName = "records",
    url: Url = None,
    topic: Topics = None,
    queue: QueueDir = None,
    checkpoint: Checkpoint = None,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Also write the findings as a page.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Also append the findings to the table audits of the lake.")
    ] = False,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Account for every seq of a table: delivered, gap, deleted, duplicate or missing.

    With --url the table is of topics, and absent seqs are looked for at the server; otherwise of a queue.
    With --topic or --queue the account begins with the oldest record of the source. Exit code 1 if a seq is
    there twice or cannot be explained.
    """
    with reporting(as_json=as_json):
        if topic is not None and url is None:
            raise InvalidConfig("an audit of topics needs --url, or EVERLOG_URL in the environment")
        _check_source(master, queue=queue, url=url if queue is None else None)
        _table(lake, table).existing()
        with _session(master) as spark:
            from everlog.pipeline.jobs import audit as job

            if url is not None and queue is None:
                names = _words(topic or "")
                report = job.audit_topics(spark, lake, table, url, topics=names, checkpoint=checkpoint)
            else:
                report = job.audit_queue(spark, lake, table, queue=queue, checkpoint=checkpoint)
        _keep_audit(report, lake, html=html, record=record)
        _print_audit(report, as_json=as_json)
    if not report.is_sound:
        raise typer.Exit(UNSOUND_EXIT_CODE)


def _keep_audit(report: AuditReport, lake: str, *, html: str | None, record: bool) -> None:
    """Write the findings where they were asked for."""
    from everlog.pipeline.jobs import audit_report

    if html is not None:
        with io_errors(f"write {html}"), open(html, "w", encoding="utf-8") as file:
            file.write(audit_report.html_of(report))
    if record:
        audit_report.record_audit(lake, report)


@app.command(epilog="Example: everlog pipeline replay --queue ./feed --lake ./lake")
def replay(  # noqa: PLR0913, PLR0917
    queue: MarketSource,
    lake: Lake,
    table: TableName = "quotes",
    depth: Depth = 10,
    depth_interval_ms: DepthInterval = 1000,
    gaps: Gaps = "panic",
    unknown_orders: UnknownOrders = "fail",
    mode: Mode = None,
    follow: Follow = False,
    live: Annotated[
        bool, typer.Option("--live", help="Go on from the last run with --live or --follow, and end.")
    ] = False,
    reader: Reader = None,
    checkpoint: Checkpoint = None,
    max_records: MaxRecords = None,
    metrics_file: MetricsFile = None,
    partitions: Partitions = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Build the books of every market: quotes after each event, depth, and a report of gaps and drift.

    Without --follow or --live the tables hold one run over all that the queue has. With one of them, books
    are kept between runs and rows are appended; --reader, --checkpoint, --max-records and --metrics-file are
    for these.
    """
    with reporting(as_json=as_json):
        is_stream = follow or live
        if not is_stream and (reader or checkpoint or max_records or metrics_file):
            raise InvalidConfig(
                "--reader, --checkpoint, --max-records and --metrics-file need --follow or --live"
            )
        if is_stream:
            _check_source(master, queue=queue)
        else:
            _check_source(master, archive=queue)
        _table(lake, table)
        with _session(master) as spark:
            from everlog.pipeline.jobs import live_replay
            from everlog.pipeline.jobs import replay as job

            shared: dict[str, Any] = {
                "settings": book_settings(gaps, unknown_orders, mode),
                "depth": depth,
                "depth_interval_ns": depth_interval_ms * NS_PER_MS,
                "partitions": partitions,
            }
            if is_stream:
                shared |= {"reader": reader, "checkpoint": checkpoint, "follow": follow}
                shared["options"] = {} if max_records is None else {"maxRecordsPerBatch": str(max_records)}
                shared["shown"] = _shown(metrics_file, as_json=as_json, follow=follow)
                report = live_replay.follow_books(spark, queue, lake, table, **shared)
            else:
                report = job.replay_books(spark, queue, lake, table, **shared)
        _print_run(
            report,
            as_json=as_json,
            more=[
                ("rows of depth", report.depth_rows),
                ("gaps", report.gaps),
                ("drifts", report.drifts),
                ("lost", report.lost),
            ],
        )


@app.command(epilog="Example: everlog pipeline features --queue ./feed --lake ./lake --interval-ms 1000")
def features(  # noqa: PLR0913, PLR0917
    queue: MarketSource,
    lake: Lake,
    table: TableName = "features",
    depth: Annotated[int, typer.Option("--depth", min=1, help="Levels a side that features look at.")] = 5,
    interval_ms: Annotated[
        int | None, typer.Option("--interval-ms", min=1, help="One row per interval. Default: every event.")
    ] = None,
    chosen: ChosenFeatures = None,
    bars: Annotated[
        str | None,
        typer.Option("--bars", metavar="KIND:SIZE", help=f"Bars of trades: {BAR_KINDS}."),
    ] = None,
    gaps: Gaps = "panic",
    unknown_orders: UnknownOrders = "fail",
    mode: Mode = None,
    partitions: Partitions = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Compute the features of every market's book: mid price, spread, imbalance, microprice, flow, slope.

    With --bars, the bars of every symbol's trades go to a table of their own: bars, or NAME_bars beside a
    table of another NAME than features.
    """
    with reporting(as_json=as_json):
        chosen_bars = None if bars is None else parse_bars(bars)
        _check_source(master, archive=queue)
        _table(lake, table)
        from everlog.market.feature_choice import parse_features

        wanted = parse_features(f"time,{chosen or f'standard:{depth}'},seq")
        with _session(master) as spark:
            from everlog.market.triggers import Always, TimeBar
            from everlog.pipeline.jobs import features as job

            report = job.features_of_books(
                spark,
                queue,
                lake,
                table,
                wanted,
                trigger=Always() if interval_ms is None else TimeBar(interval_ms * NS_PER_MS),
                settings=book_settings(gaps, unknown_orders, mode),
                bars=None if chosen_bars is None else job.Bars(*chosen_bars),
                partitions=partitions,
            )
        _print_run(report, as_json=as_json, more=[("bars", report.bar_rows)] if bars else [])


@app.command(epilog="Example: everlog pipeline compact --lake ./lake --table messages --keep-days 7")
def compact(
    lake: Lake,
    table: TableName = "records",
    keep_days: Annotated[
        int | None,
        typer.Option("--keep-days", min=0, help="Also remove files that no version of so many days needs."),
    ] = None,
    z_order: Annotated[
        str | None,
        typer.Option("--z-order", metavar="COLUMNS", help="Rewrite all files in this order: symbol,ts."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Join the small files of a table into larger ones; the rows stay as they are.

    Earlier versions stay readable until --keep-days removes their files. Needs no Spark session.
    """
    with reporting(as_json=as_json):
        target = _table(lake, table)
        before = len(target.files())
        target.compact(order_by=_words(z_order or ""))
        removed = [] if keep_days is None else target.vacuum(timedelta(days=keep_days))
        done = {"files_before": before, "files": len(target.files()), "removed": len(removed)}
        fields = [(name.replace("_", " "), f"{count:,}") for name, count in done.items()]
        output.print_result(done, fields, as_json=as_json)


@app.command(epilog="Example: everlog pipeline repair --lake ./lake --table messages")
def repair(lake: Lake, table: TableName = "records", as_json: AsJson = False) -> None:
    """Set aside the newest commits of a table that a power loss has left incomplete.

    The job that wrote them commits its batch again when it runs next. Audit the table then. Needs no Spark
    session.
    """
    with reporting(as_json=as_json):
        target = _table(lake, table)
        moved = target.repair()
        if not moved:
            target.existing()
        fields = [("renamed", path) for path in moved or ("nothing",)]
        output.print_result({"renamed": moved}, fields, as_json=as_json)


@app.command(epilog="Example: everlog pipeline symbols --lake ./lake --from ./bus")
def symbols(
    lake: Lake,
    sources: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="DIR", help="Queue, bus or archive to take symbols from; repeatable."),
    ] = None,
    table: TableName = "dim_symbol",
    every_s: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.0, help="Refresh again and again. 0: once.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Bring the symbol catalogue of a lake up to date, or show its size. Needs no Spark session.

    With --every it goes on until Ctrl-C or SIGTERM; a refresh that fails is reported, and the table stays.
    """
    with reporting(as_json=as_json):
        try:
            from everlog.pipeline import symbols as catalogue
        except ImportError as error:
            raise _without_spark(error) from None

        def warn(source: str, error: Exception) -> None:
            output.print_warning("symbols_not_refreshed", f"{source}: {error}", as_json=as_json)

        with output.stopped_by_signals() as stopped:
            while True:
                failing = warn if every_s else None
                changed = catalogue.refresh_dim_symbol(lake, sources or [], table, failing)
                count = len(catalogue.read_dim_symbol(lake, table))
                fields = [("new or changed", str(changed)), ("versions", str(count))]
                output.print_result({"changed": changed, "versions": count}, fields, as_json=as_json)
                sys.stdout.flush()
                if not every_s or stopped.wait(every_s):
                    return


def _without_spark(error: ImportError) -> Unsupported:
    return Unsupported(
        f"the pipeline needs Spark, which is not installed ({error}): pip install 'everlog[spark]'"
    )


@app.command("import", epilog="Example: everlog pipeline import tardis-book data/*.csv.gz --lake ./lake")
def import_(  # noqa: PLR0913, PLR0917
    format_name: Annotated[FormatName, typer.Argument(metavar="FORMAT", help="What the files are.")],
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files, plain, .gz, .zst, .zip or .7z as they are.")
    ],
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="DIR", help="Directory of queues, one for each file.")
    ] = None,
    lake: Annotated[
        str | None,
        typer.Option("--lake", metavar="PLACE", help="Lake, for the tables trades, book_l2 and orders_l3."),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="NAME", help="All events undecoded into this table of the lake."),
    ] = None,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Set bad rows aside in a quarantine file and go on.")
    ] = False,
    symbol: Annotated[str | None, typer.Option(help="Symbol, where the files do not tell it.")] = None,
    venue: Annotated[str | None, typer.Option(help="Venue, where the files do not tell it.")] = None,
    date: Annotated[
        str | None, typer.Option(help="Day as YYYY-MM-DD, where a file does not tell it.")
    ] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Import market data files in parallel, each once: a task for every file.

    With --queue each file becomes a queue of its own. With --lake events become rows of tables with names,
    times and prices, partitioned by date and venue. Files that are there already are left alone.
    """
    with reporting(as_json=as_json):
        lake = lake or (os.environ.get("EVERLOG_LAKE") if queue is None else None)
        if (queue is None) == (lake is None):
            raise InvalidConfig("an import needs either --queue or --lake")
        if table is not None and lake is None:
            raise InvalidConfig("--table is of a lake; give --lake, or leave it out")
        with _session(master) as spark:
            from everlog.market.venues.interface import ImportOptions
            from everlog.pipeline.jobs import importing

            shared: dict[str, Any] = {"lenient": lenient}
            shared["options"] = ImportOptions(venue=venue, symbol=symbol, date=date)
            if queue is not None:
                report = importing.import_to_queues(spark, format_name.value, files, queue, **shared)
            else:
                assert lake is not None, "checked above"
                report = importing.import_to_lake(spark, format_name.value, files, lake, table, **shared)
        _print_import(report, as_json=as_json)


@app.command(
    epilog="Example: everlog pipeline refine --queue ./raw --to ./archive --venue binance --symbols BTCUSDT"
)
def refine(
    queue: Annotated[str, typer.Option("--queue", metavar="DIR", help="Raw queue of a venue.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Root of the refined queues.")],
    venue: Annotated[str, typer.Option("--venue", metavar="NAME", help="Venue, for the paths.")],
    symbols: Annotated[
        str, typer.Option("--symbols", metavar="NAMES", help="All symbols of the queue, or @FILE with them.")
    ],
    gaps: Gaps = "panic",
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="DIR", help="Lake for a table of what came too late.")
    ] = None,
    late_table: Annotated[
        str, typer.Option("--late-table", metavar="NAME", help="That table; one for each --to.")
    ] = "late",
    partitions: Partitions = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Make queues of one symbol, day and stream from a raw queue: book with snapshots, trades, late.

    The queues are at DIR/v1/VENUE/SYMBOL/DATE/STREAM. Run it again for what has come since. With --lake,
    what came too late for its day is in a table as well.
    """
    with reporting(as_json=as_json):
        names = _symbols(symbols)
        _check_source(master, queue=queue)
        with _session(master) as spark:
            from everlog.pipeline.jobs import refine as job
            from everlog.pipeline.refinery import RefinerySettings

            settings = RefinerySettings(gap_policy=gaps)
            late = None if lake is None else job.LateTable(lake, late_table)
            report = job.refine(
                spark, queue, to, venue, names, settings=settings, late=late, partitions=partitions
            )
        _print_refined(report, as_json=as_json)


def _symbols(text: str) -> list[str]:
    """Return the names in a list, or in the file that `@` names: separated by commas or lines."""
    if text.startswith("@"):
        try:
            with open(text[1:], encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise InvalidConfig(f"cannot read the symbols in {text[1:]}: {error.strerror}") from None
    return _words(text.replace("\n", ","))


def _words(text: str) -> list[str]:
    """Return names that are separated by commas."""
    return [name for part in text.split(",") if (name := part.strip())]


def _check_source(
    master: str | None, *, queue: str | None = None, archive: str | None = None, url: str | None = None
) -> None:
    """Look whether there is something to read before Spark starts, which takes long and fails at length.

    `archive` is one, or a queue. With a master elsewhere the source need not be within reach from here.
    """
    if master is not None and not master.startswith("local"):
        return
    if archive is not None and not is_url(archive) and not find_directories(OsFs(), archive):
        queue = archive
    if queue is not None and not os.path.exists(os.path.join(queue, CONTROL_FILE)):
        raise QueueNotFound(f"there is no queue at {queue!r}; check the path, or start its writer first")
    if url is not None:
        with Client(url, os.environ.get("EVERLOG_KEY"), retry=ONCE) as client:
            client.health()


def _table(lake: str, table: str) -> LakeTable:
    """Return a table of a lake; wrong names are refused before Spark starts."""
    try:
        from everlog.pipeline.lake import LakeTable
    except ImportError as error:
        raise _without_spark(error) from None
    return LakeTable(lake, table)


@contextmanager
def _session(master: str | None) -> Iterator[SparkSession]:
    """A session for one job; without the extra the error says what to install."""
    try:
        from everlog.pipeline import spark_session
    except ImportError as error:
        raise _without_spark(error) from None
    with _signals_later() as came:
        try:
            session = spark_session(master=master)
        except Exception as error:
            if _Verbose.is_on or isinstance(error, EverlogError):
                raise
            reasons = re.findall(r"^: [\w.$]+: (.+)", str(error), re.MULTILINE)
            said = (reasons or str(error).splitlines() or [""])[0].rstrip(".")
            raise InvalidConfig(
                f"Spark does not start with --master {master or 'local[*]'}: {said}; check the address "
                "('everlog pipeline --verbose' shows the whole trace)"
            ) from None
    try:
        if came:
            raise SystemExit(128 + came[0])
        with TaskProgress(session):
            yield session
    except Exception as error:
        found = _own_error(error)
        if _Verbose.is_on or found is None:
            raise
        raise found from None
    finally:
        session.stop()


class _Verbose:
    """Whether errors come with the trace of Spark."""

    is_on = False


@app.callback()
def options(
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the whole trace of an error.")] = False,
) -> None:
    """Take the options that all jobs have."""
    _Verbose.is_on = verbose
    if not verbose:
        # What deltalake, which is imported later, warns of in lines of its own is in the error as well.
        os.environ.setdefault("RUST_LOG", "error")


def _own_error(error: Exception) -> EverlogError | None:
    """Return the error of everlog that Spark reports in a trace of many lines; None if there is none."""
    if isinstance(error, EverlogError):
        return error
    if not type(error).__module__.startswith(("pyspark", "py4j")):
        return None
    found = re.findall(r"everlog\.errors\.(\w+): (.+)", str(error))
    if not found:
        return None
    name, text = found[-1]
    kind = getattr(errors, name, EverlogError)
    try:
        made: EverlogError = kind(text)
    except TypeError:  # one with more than a text
        made = EverlogError(text)
    return made


@contextmanager
def _signals_later() -> Iterator[list[int]]:
    """Let Ctrl-C and SIGTERM wait for the end of the block, which gets the list of those that came.

    A start of Spark that is interrupted leaves its Java process behind, which then never ends.
    """
    came: list[int] = []
    with output.handled_signals(lambda number, frame: came.append(number)):
        yield came


def _show_progress(report: RunReport) -> None:
    """Tell a person after each commit how far it is."""
    if sys.stderr.isatty():
        Console(stderr=True).print(report.progress())


def _shown(metrics_file: str | None, *, as_json: bool, follow: bool) -> Callable[[RunReport], None]:
    """Return what happens after each commit: a line for a person or as JSON, and metrics in a file."""
    from everlog.pipeline.batch_metrics import BatchMetrics

    metrics = None if metrics_file is None else BatchMetrics(metrics_file)

    def shown(report: RunReport) -> None:
        if metrics is not None:
            metrics.write(report)
        if not as_json:
            _show_progress(report)
        elif follow:  # which never ends, so the report of the end does not come
            print(report.to_json(), flush=True)

    return shown


def _print_run(report: RunReport, *, as_json: bool, more: Sequence[tuple[str, int]] = ()) -> None:
    version = str(report.version) if report.version is not None else "nothing to do"
    counts = [("rows", report.rows), *more, ("commits", report.batches), ("files", report.files)]
    _print_report(report, counts, [("version", version)], as_json=as_json)


def _print_refined(report: RefineReport, *, as_json: bool) -> None:
    names = ("book events", "trades", "late", "snapshots put in", "there before")
    values = (report.books, report.trades, report.late, report.snapshots, report.known)
    _print_report(report, list(zip(names, values, strict=True)), [], as_json=as_json, table="below")


def _print_report(
    report: RunReport | RefineReport,
    counts: Sequence[tuple[str, int]],
    more: Sequence[tuple[str, str]],
    *,
    as_json: bool,
    table: str = "table",
) -> None:
    shown = [(name, f"{count:,}") for name, count in counts]
    fields = [("source", report.source), (table, report.table), *shown, *more]
    fields.append(("seconds", f"{report.seconds:.1f}"))
    output.print_result(msgspec.to_builtins(report), fields, as_json=as_json)


def _print_import(report: ImportReport, *, as_json: bool) -> None:
    if as_json:
        output.print_json(msgspec.to_builtins(report))
        return
    columns = ("file", "venue", "symbol", "date", "rows>", "events>", "quarantined>")
    rows = [
        (
            output.printable(entry.source_path),
            *(entry.venue, entry.symbol, entry.date),
            *(f"{count:,}" for count in (entry.rows, entry.groups, entry.quarantined)),
        )
        for entry in report.entries
    ]
    output.print_table(Table(f"into {report.table}", columns, rows))
    print(f"{report.rows:,} new events; {report.known} of {len(report.entries)} imports were there before")


def _print_audit(report: AuditReport, *, as_json: bool) -> None:
    if as_json:
        output.print_json({**msgspec.to_builtins(report), "is_sound": report.is_sound})
        return
    counts = (
        *("first_seq", "last_seq", "delivered", "gap", "deleted", "duplicate", "overlapping", "missing"),
        *("altered", "unverified", "behind"),
    )
    columns = ("stream", "instance", *(f"{name.removesuffix('_seq')}>" for name in counts))
    rows = [
        (stream.name, (stream.instance or "")[:13], *(f"{getattr(stream, name):,}" for name in counts))
        for stream in report.streams
    ]
    output.print_table(Table(f"table {report.table}", columns, rows))
    for file in report.unreadable:
        print(f"unreadable: {file}")
    print("every seq is accounted for" if report.is_sound else "NOT every seq is accounted for")
