"""Values to JSON text without loss.

Owns the rule that NaN and the infinities are refused; the encoder alone would silently write them as null.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from everlog.errors import InvalidRecord

_plain: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode
_packed: Final[Callable[[Any], bytes]] = msgspec.msgpack.Encoder().encode

# A 64-bit float of MessagePack whose exponent marks NaN or an infinity.
_NOT_FINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]", re.DOTALL)


def encode(value: Any) -> bytes:
    """Return the value as JSON; raises InvalidRecord for a number that JSON does not have."""
    text = _plain(value)
    # Each such number is a null in the text, and most texts have none; only the others are checked.
    if b"null" in text and _may_hold_one(value):
        found = _not_finite_in(msgspec.to_builtins(value), "")
        if found is not None:
            path, number = found
            raise InvalidRecord(
                f"{path.lstrip('.') or 'the value'} is {number}, which JSON does not have; "
                "send None for a number that is not there, or its name as text"
            )
    return text


def _may_hold_one(value: Any) -> bool:
    """A quick check in MessagePack, which has such numbers; other bytes can look like one."""
    try:
        return _NOT_FINITE.search(_packed(value)) is not None
    except (OverflowError, ValueError):
        return True  # JSON has longer integers and texts


def _not_finite_in(value: Any, path: str) -> tuple[str, float] | None:
    """Path and value of the first number that is not finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, value)
    if isinstance(value, dict):
        members = [(f"{path}.{name}", member) for name, member in value.items()]
    elif isinstance(value, list | tuple):
        members = [(f"{path}[{index}]", member) for index, member in enumerate(value)]
    else:
        return None
    for place, member in members:
        found = _not_finite_in(member, place)
        if found is not None:
            return found
    return None
