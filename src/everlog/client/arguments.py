"""Arguments of client methods, checked before anything is sent.

Owns the checks that the server cannot make: an unknown start would read nothing, a misspelt setting would be
ignored. What the server refuses is left to the server. Sends nothing.
"""

from __future__ import annotations

import base64
import difflib
import inspect
import operator
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, get_args

import msgspec

from everlog import tracing
from everlog.api_types import NewRecord, TopicSettings
from everlog.errors import InvalidConfig, InvalidRecord, InvalidRequest

Nodes = str | Sequence[str]
"""A node, or several."""

Start = Literal["earliest", "now"] | int
"""Where a reader begins: the oldest record, the next one, or the record with this seq (included)."""

WatchStart = Start | Mapping[str, Any]
"""Where watching a topic begins: a start, or an entry as the server takes it."""

Position = Literal["earliest", "latest"] | int | Mapping[str, int]
"""Where a consumer is put: at an end, before the record with this seq, or `{"time_ms": t}`."""

Gaps = Literal["raise", "yield"]
"""How a reader reports records that are gone: by the exception RecordsLost, or by a Tombstone."""

_SETTINGS: Final = tuple(TopicSettings.__annotations__)
_GAPS: Final[tuple[str, ...]] = get_args(Gaps)


def checked_start(start: object) -> Start:
    """Where a reader begins; raises InvalidRequest for anything else."""
    if start == "earliest":
        return "earliest"
    if start == "now":
        return "now"
    try:
        seq = -1 if isinstance(start, bool) else operator.index(start)  # type: ignore[arg-type]
    except TypeError:
        seq = -1
    if seq < 0:
        hint = "; what comes from now on is 'now'" if start == "latest" else ""
        raise InvalidRequest(
            f"start is {start!r}; it must be 'earliest', 'now', or the seq of the first record{hint}"
        )
    return seq


def checked_position(position: object) -> object:
    """Where a consumer is put, as the server takes it; raises InvalidRequest for anything else."""
    if position in ("earliest", "latest"):
        return position
    if isinstance(position, Mapping):
        return dict(position)
    try:
        return {"seq": operator.index(position)}  # type: ignore[arg-type]
    except TypeError:
        raise InvalidRequest(
            f"the position is {position!r}; it must be 'earliest', 'latest', the seq of the first record to "
            "read, or {'time_ms': t}"
        ) from None


def checked_starts(topics: object) -> dict[str, WatchStart]:
    """Where each topic begins; topics that are only named begin with the next record."""
    if isinstance(topics, str):
        return {topics: "now"}
    if isinstance(topics, Mapping):
        return {
            topic: dict(start) if isinstance(start, Mapping) else checked_start(start)
            for topic, start in topics.items()
        }
    if isinstance(topics, Iterable):
        return dict.fromkeys(topics, "now")
    raise InvalidRequest(f"the topics are {topics!r}; give a name, several, or a mapping of names to starts")


def checked_gaps(gaps: object) -> Gaps:
    """How a reader reports gaps; raises InvalidRequest for anything else, which would hide them."""
    for known in _GAPS:
        if gaps == known:
            return known  # type: ignore[return-value]
    raise InvalidRequest(f"gaps is {gaps!r}; it must be 'raise' (RecordsLost) or 'yield' (a Tombstone)")


def checked_settings(config: TopicSettings) -> TopicSettings:
    """The settings of a topic; raises InvalidConfig for a name that the server would ignore."""
    if not isinstance(config, Mapping):
        raise InvalidConfig(f"the settings are {config!r}; give a mapping like {{'durability': 'fsync'}}")
    for name in config:
        if name not in _SETTINGS:
            near = difflib.get_close_matches(str(name), _SETTINGS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_SETTINGS)}"
            raise InvalidConfig(f"{name!r} is not a setting of a topic; {hint}")
    return config


def checked_records(records: Iterable[object]) -> list[NewRecord]:
    """Records to append; raises InvalidRecord for anything that is not a NewRecord."""
    gathered: list[NewRecord] = []
    for record in records:
        if not isinstance(record, NewRecord):
            shown = reprlib.repr(record)
            raise InvalidRecord(f"record {len(gathered)} is {shown}; make it a record: NewRecord({shown})")
        if isinstance(record.data, bytes | bytearray | memoryview):
            raise InvalidRecord(
                f"the data of record {len(gathered)} is {type(record.data).__name__}, which JSON does not "
                "have; decode it to text, or say how it is sent: as_base64(data)"
            )
        gathered.append(record)
    return gathered


def as_base64(data: bytes | bytearray | memoryview) -> str:
    """Bytes as the text that a record can hold; `base64.b64decode` gives them back."""
    return base64.b64encode(data).decode("ascii")


_DESCRIPTION: Final = re.compile(r"(Call|Command|Steps|Stream)\[(.*)\]")


def show_as_method(method: Callable[..., Any], build: Callable[..., Any], iterator: str = "Iterator") -> None:
    """Make `help` and editors show a method: with `self`, and with its result instead of a description."""
    described = inspect.signature(build)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    returned = _DESCRIPTION.fullmatch(str(described.return_annotation))
    assert returned is not None, f"{build} describes a request or a stream"
    result = returned[2].replace("api_types.", "")
    result = f"{iterator}[{result}]" if returned[1] == "Stream" else result
    method.__signature__ = described.replace(  # type: ignore[attr-defined]
        parameters=[own, *described.parameters.values()], return_annotation=result
    )
    method.__annotations__ = {**build.__annotations__, "return": result}
    del method.__wrapped__  # type: ignore[attr-defined]


def traced(records: list[NewRecord]) -> list[NewRecord]:
    """The records with the trace of the code that runs in their meta, where no request carries it."""
    traceparent = tracing.current()
    if traceparent is None:
        return records
    return [
        msgspec.structs.replace(record, meta={tracing.TRACEPARENT: traceparent, **(record.meta or {})})
        for record in records
    ]


def call_span(name: str, arguments: tuple[object, ...]) -> AbstractContextManager[None]:
    """The span of a call of a client; its first argument is the name of a topic, queue, router and so on."""
    attributes = {"messaging.system": "everlog", "messaging.operation.name": name}
    if arguments and isinstance(arguments[0], str):
        attributes["messaging.destination.name"] = arguments[0]
        name = f"{name} {arguments[0]}"
    return tracing.span(name, "client", attributes)
