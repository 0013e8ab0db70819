"""Which strings may become part of a path. Owns the rules; touches no file."""

from __future__ import annotations

from everlog.errors import InvalidName

_FORBIDDEN = {"/": "a slash", "\\": "a backslash", "\0": "a NUL"}


def check_component(value: str, what: str) -> str:
    """Return `value` if it may be one component of a path; `what` names it in the error.

    A component that could climb out of its directory, or mean two things on two systems,
    is refused here, once, so that no caller has to escape anything.
    """
    if not isinstance(value, str):
        raise InvalidName(f"{what} {value!r} is not text; pass a str")
    if not value:
        raise InvalidName(f"{what} is empty; it needs at least one character")
    if value in (".", ".."):
        raise InvalidName(
            f"{what} {value!r} is not allowed: '.' and '..' name directories; choose another name"
        )
    for character, description in _FORBIDDEN.items():
        if character in value:
            raise InvalidName(f"{what} {value!r} must not contain {description}; choose another name")
    return value
