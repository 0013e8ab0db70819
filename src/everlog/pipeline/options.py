"""Options of the Spark formats: their names, their meaning, and errors that list what is valid.

Parses text into values; each source names the options that it accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from everlog.errors import InvalidConfig

U64_MAX: Final = 2**64 - 1
OF_SPARK: Final = frozenset(
    {"checkpointlocation"}
    | {"collation", "comment", "external", "is_managed_location", "location", "owner", "provider"}
)
"""Options of Spark itself, which it passes to the format as well: those of a stream, and those of a table."""

OF_TABLE: Final = "option."
"""Before the name of each option of a table, which Spark passes a second time."""

ON_DATA_LOSS: Final = ("fail", "record")


class Start(NamedTuple):
    """Where reading begins or ends: at a word (`earliest`, `latest`), a seq, or a time."""

    word: str | None = None
    seq: int | None = None
    ts_ns: int | None = None


EARLIEST: Final = Start(word="earliest")
LATEST: Final = Start(word="latest")


class Options:
    """The options of one read or write. Names are compared without case, as Spark does it."""

    def __init__(self, given: Mapping[str, str], valid: Iterable[str], of: str) -> None:
        self._format = of
        named = {name.lower(): value for name, value in given.items()}
        self._given = {
            name: value
            for name, value in named.items()
            if name not in OF_SPARK and not name.startswith(OF_TABLE)
        }
        self._valid = tuple(sorted(valid, key=str.lower))
        known = {name.lower() for name in self._valid}
        unknown = sorted(set(self._given) - known)
        if unknown:
            raise InvalidConfig(
                f"unknown option {', '.join(map(repr, unknown))} of {of}; valid are {', '.join(self._valid)}"
            )

    def __contains__(self, name: str) -> bool:
        """Whether the option was given, and not empty."""
        return bool(self._given.get(name.lower(), ""))

    def text(self, name: str, default: str | None = None) -> str:
        """Return the text of an option, or the default; without both, an error."""
        value = self._given.get(name.lower(), "")
        if value:
            return value
        if default is None:
            raise InvalidConfig(f"{self._format} needs the option {name!r}")
        return default

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices; the first is the default."""
        value = self.text(name, choices[0])
        if value not in choices:
            raise self.wrong(name, value, f"one of {', '.join(choices)}")
        return value

    def whole(self, name: str, default: int | None = None, least: int = 0) -> int | None:
        """Return a whole number of at least `least`."""
        if name not in self:
            return default
        value = self.text(name)
        if not (value.isascii() and value.isdecimal()) or not least <= int(value) <= U64_MAX:
            raise self.wrong(name, value, f"a whole number from {least} to {U64_MAX}")
        return int(value)

    def start(self, name: str, default: Start) -> Start:
        """Return a start: a word, or JSON with one of `seq` and `ts_ns`, such as `{"seq": 17}`."""
        if name not in self:
            return default
        value = self.text(name)
        if value in ("earliest", "latest"):
            return Start(word=value)
        expected = 'earliest, latest, {"seq": 17} or {"ts_ns": 1700000000000000000}'
        try:
            place = msgspec.json.decode(value, type=dict[str, int])
        except msgspec.MsgspecError:
            raise self.wrong(name, value, expected) from None
        number = next(iter(place.values()), -1)
        if len(place) != 1 or not place.keys() <= {"seq", "ts_ns"} or not 0 <= number <= U64_MAX:
            raise self.wrong(name, value, expected)
        return Start(None, place.get("seq"), place.get("ts_ns"))

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of names, separated by commas; an absent option is an empty one."""
        if name not in self:
            return ()
        return tuple(part for raw in self.text(name).split(",") if (part := raw.strip()))

    def wrong(self, name: str, value: str, expected: str) -> InvalidConfig:
        """Return the error for a value that cannot be used."""
        return InvalidConfig(f"option {name!r} of {self._format} is {value!r}; it must be {expected}")
