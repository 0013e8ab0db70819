"""What a program hands to a client, looked at before anything is sent.

Owns the checks whose neglect would be silent: a start that nobody knows would read nothing, a setting with a
slip in its name would not be set. What the server refuses by itself is left to the server. Sends nothing.
"""

from __future__ import annotations

import difflib
import inspect
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, get_args

from everlog.api_types import NewRecord, TopicSettings
from everlog.errors import InvalidConfig, InvalidRecord, InvalidRequest

Start = Literal["earliest", "now"] | int
"""Where a reader begins: what there is, what comes, or the record with this seq and what follows."""

Gaps = Literal["raise", "yield"]
"""How a reader reports records that are gone: by the exception RecordsLost, or by a Tombstone."""

_SETTINGS: Final = tuple(TopicSettings.__annotations__)
_GAPS: Final[tuple[str, ...]] = get_args(Gaps)


def checked_start(start: object) -> Start:
    """Where a reader begins; raises InvalidRequest for what is no such place."""
    if start == "earliest":
        return "earliest"
    if start == "now":
        return "now"
    try:
        seq = operator.index(start)  # type: ignore[arg-type]
    except TypeError:
        seq = -1
    if seq < 0:
        hint = "; what comes from now on is 'now'" if start == "latest" else ""
        raise InvalidRequest(
            f"start is {start!r}; it must be 'earliest', 'now', or the seq of the first record{hint}"
        )
    return seq


def checked_starts(topics: object) -> dict[str, Start]:
    """Where each of some topics begins; those that are only named begin with what comes."""
    if isinstance(topics, str):
        return {topics: "now"}
    if isinstance(topics, Mapping):
        return {topic: checked_start(start) for topic, start in topics.items()}
    if isinstance(topics, Iterable):
        return dict.fromkeys(topics, "now")
    raise InvalidRequest(f"the topics are {topics!r}; give a name, several, or a mapping of names to starts")


def checked_gaps(gaps: object) -> Gaps:
    """How a reader hears of gaps; raises InvalidRequest for another way, which would be silence."""
    for known in _GAPS:
        if gaps == known:
            return known  # type: ignore[return-value]
    raise InvalidRequest(f"gaps is {gaps!r}; it must be 'raise' (RecordsLost) or 'yield' (a Tombstone)")


def checked_settings(config: TopicSettings) -> TopicSettings:
    """The settings of a topic; raises InvalidConfig for a name that the server would pass over."""
    if not isinstance(config, Mapping):
        raise InvalidConfig(f"the settings are {config!r}; give a mapping like {{'durability': 'fsync'}}")
    for name in config:
        if name not in _SETTINGS:
            near = difflib.get_close_matches(str(name), _SETTINGS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_SETTINGS)}"
            raise InvalidConfig(f"{name!r} is not a setting of a topic; {hint}")
    return config


def checked_records(records: Iterable[object]) -> list[NewRecord]:
    """Records to append; raises InvalidRecord for data that was not made one."""
    gathered: list[NewRecord] = []
    for record in records:
        if not isinstance(record, NewRecord):
            shown = reprlib.repr(record)
            raise InvalidRecord(f"record {len(gathered)} is {shown}; make it a record: NewRecord({shown})")
        gathered.append(record)
    return gathered


def show_as_method(method: Callable[..., Any], build: Callable[..., Any]) -> None:
    """Let `help` and editors see a method: with `self`, and with the answer instead of its description."""
    described = inspect.signature(build)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    answer = str(described.return_annotation).removeprefix("Call[").removesuffix("]").removeprefix("shapes.")
    method.__signature__ = described.replace(  # type: ignore[attr-defined]
        parameters=[own, *described.parameters.values()], return_annotation=answer
    )
    method.__annotations__ = {**build.__annotations__, "return": answer}
    del method.__wrapped__  # type: ignore[attr-defined]
