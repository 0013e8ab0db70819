"""Which records a predicate means: by tag, or by the beginning of a tag. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from everlog.errors import InvalidRequest


class TagMatch(NamedTuple):
    """Records whose tag is `tag`, or begins with it."""

    tag: bytes
    prefix: bool

    def matches(self, tag: bytes | None) -> bool:
        """Tell whether a record with this tag is meant; one without a tag never is."""
        if not tag:
            return False
        return tag.startswith(self.tag) if self.prefix else tag == self.tag

    def canonical(self) -> list[str]:
        """Return the tuple form, as it is reported."""
        text = self.tag.decode("utf-8", "surrogatepass")
        return ["tag", "Glob", text + "*"] if self.prefix else ["tag", "Eq", text]


def parse_match(match: str | Sequence[Any]) -> TagMatch:
    """Read a predicate: `["tag","Eq",v]`, `["tag","Glob","p*"]`, or a string, a final `*` meaning prefix."""
    if isinstance(match, str):
        field, operator, value = "tag", "Glob" if match.endswith("*") else "Eq", match
    elif isinstance(match, list | tuple) and len(match) == 3 and all(isinstance(part, str) for part in match):
        field, operator, value = match
    else:
        raise InvalidRequest(f'match is {match!r}; it must be a string or ["tag", "Eq" or "Glob", text]')
    if field != "tag" or operator not in ("Eq", "Glob"):
        raise InvalidRequest(f'match {match!r} must be about "tag" with "Eq" or "Glob"')
    if operator == "Eq":
        return TagMatch(value.encode("utf-8", "surrogatepass"), False)
    if not value.endswith("*"):
        raise InvalidRequest(f"the Glob pattern {value!r} must end in *; only that one is a wildcard")
    return TagMatch(value[:-1].encode("utf-8", "surrogatepass"), True)
