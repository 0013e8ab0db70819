"""What of a condition in SQL a source can evaluate itself: ranges, sets and prefixes of columns.

Parses terms that are joined by `and`: comparisons with a constant, `between`, `in` and `like 'x%'`. Whatever
it does not know is left out, so what is found holds for every row that the condition holds for, and for
others too: the condition itself has to be evaluated as well. Does not depend on Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

Constant = int | str


class Term(NamedTuple):
    """A condition on one column: `column op values`, with `=`, `<`, `<=`, `>`, `>=`, `in` or `like`."""

    column: str
    op: str
    values: tuple[Constant, ...]
    is_time: bool = False
    """Whether the constant is written as a timestamp: `timestamp '2026-01-01 00:00:00'`."""


class _Token(NamedTuple):
    kind: str
    text: str


_TOKEN: Final = re.compile(
    r"\s*(?:(?P<text>'(?:[^'\\])*')|(?P<number>\d+(?![\w.]))|(?P<word>[A-Za-z_]\w*)|`(?P<quoted>\w+)`"
    r"|(?P<op><=>|<=|>=|<>|!=|==|[<>=])|(?P<open>\()|(?P<close>\))|(?P<comma>,)|(?P<minus>-(?!-))"
    r"|(?P<other>[^\s\\\"/`'-]))"
)
_TEXT: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NAMES: Final = frozenset({"word", "quoted"})
_COMPARED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "==": "="}
"""Each comparison, and the same with its sides exchanged."""

_OPEN_ENDED: Final = frozenset({"or", "between", "case", "select"})
"""Words that decide where the terms beside them end: with one of them in an unknown term nothing is known."""


def names_in(where: str) -> set[str]:
    """Return the words of a condition in small letters, texts left out: its columns are among them."""
    return {word.lower() for word in re.findall(r"\w+", _TEXT.sub(" ", where))}


def known_terms(where: str) -> list[Term]:
    """Return the terms of a condition that are understood; none if it is not clear where they end."""
    tokens = _tokens(where)
    try:
        return [] if tokens is None else _Parser(tokens).conjunction()
    except _UnknownError:
        return []


def _tokens(where: str) -> list[_Token] | None:
    found: list[_Token] = []
    at, text = 0, where.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:  # a comment, an escape or a text in double quotes
            return None
        kind = match.lastgroup
        token = match[kind]
        found.append(_Token(kind, token.lower() if kind in _NAMES else token))
        at = match.end()
    return found


class _UnknownError(Exception):
    """Where terms end is not clear."""


class _Parser:
    """Reads the terms of one level of parentheses."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens

    def conjunction(self) -> list[Term]:
        """Return the known terms."""
        found: list[Term] = []
        at = 0
        while at < len(self._tokens):
            terms, end = self._known(at)
            if terms is None or not self._is_end(end):
                terms, end = [], self._end_of_unknown(at)
            found += terms
            at = end + 1
        return found

    def _is_end(self, at: int) -> bool:
        return at == len(self._tokens) or self._tokens[at] == ("word", "and")

    def _end_of_unknown(self, at: int) -> int:
        while not self._is_end(at):
            token = self._tokens[at]
            if token.kind == "word" and token.text in _OPEN_ENDED:
                raise _UnknownError
            at = self._closing(at) + 1 if token.kind == "open" else at + 1
        return at

    def _closing(self, at: int) -> int:
        """Return where the parenthesis that opens at `at` closes."""
        depth = 0
        for place in range(at, len(self._tokens)):
            kind = self._tokens[place].kind
            depth += (kind == "open") - (kind == "close")
            if depth == 0:
                return place
        raise _UnknownError

    def _known(self, at: int) -> tuple[list[Term] | None, int]:
        """Return the term that begins here and its end; None if it is not known."""
        token = self._tokens[at]
        if token.kind == "open":
            end = self._closing(at)
            try:
                return _Parser(self._tokens[at + 1 : end]).conjunction(), end + 1
            except _UnknownError:
                return [], end + 1
        if token.kind in _NAMES and at + 1 < len(self._tokens):
            found = self._of_column(token.text, at + 1)
            if found is not None:
                return found
        left = self._constant(at)
        if left is None:
            return None, at
        value, is_time, end = left
        if end + 1 < len(self._tokens) and self._tokens[end].text in _COMPARED:
            name = self._tokens[end + 1]
            if name.kind in _NAMES:
                return [Term(name.text, _COMPARED[self._tokens[end].text], (value,), is_time)], end + 2
        return None, at

    def _of_column(self, name: str, at: int) -> tuple[list[Term], int] | None:
        token = self._tokens[at]
        if token.kind == "op" and token.text in _COMPARED:
            right = self._constant(at + 1)
            if right is None:
                return None
            value, is_time, end = right
            return [Term(name, token.text.replace("==", "="), (value,), is_time)], end
        if token.kind != "word":
            return None
        if token.text == "between":
            return self._between(name, at + 1)
        if token.text == "like":
            right = self._constant(at + 1)
            return None if right is None else ([Term(name, "like", (right[0],))], right[2])
        return self._one_of(name, at + 1) if token.text == "in" else None

    def _between(self, name: str, at: int) -> tuple[list[Term], int] | None:
        low = self._constant(at)
        if low is None or low[2] >= len(self._tokens) or self._tokens[low[2]] != ("word", "and"):
            return None
        high = self._constant(low[2] + 1)
        if high is None:
            return None
        ends = [Term(name, ">=", (low[0],), low[1]), Term(name, "<=", (high[0],), high[1])]
        return ends, high[2]

    def _one_of(self, name: str, at: int) -> tuple[list[Term], int] | None:
        if at >= len(self._tokens) or self._tokens[at].kind != "open":
            return None
        end, values = self._closing(at), list[Constant]()
        at += 1
        while at < end:
            one = self._constant(at)
            if one is None or one[1] or (one[2] != end and self._tokens[one[2]].kind != "comma"):
                return None
            values.append(one[0])
            at = one[2] + 1
        return ([Term(name, "in", tuple(values))], end + 1) if values else None

    def _constant(self, at: int) -> tuple[Constant, bool, int] | None:
        """Return a constant, whether it is a timestamp, and where it ends."""
        tokens = self._tokens[at : at + 2]
        kinds = [token.kind for token in tokens]
        if kinds[:1] == ["number"]:
            return int(tokens[0].text), False, at + 1
        if kinds == ["minus", "number"]:
            return -int(tokens[1].text), False, at + 2
        if kinds[:1] == ["text"]:
            return tokens[0].text[1:-1], False, at + 1
        if kinds == ["word", "text"] and tokens[0].text == "timestamp":
            return tokens[1].text[1:-1], True, at + 2
        return None


def bounds_of(terms: list[Term], column: str) -> tuple[int | None, int | None]:
    """Return the smallest and the largest whole number that a column can be; None where there is no bound."""
    low: int | None = None
    high: int | None = None
    for least, most in _ranges(terms, column):
        if least is not None:
            low = least if low is None else max(low, least)
        if most is not None:
            high = most if high is None else min(high, most)
    return low, high


def _ranges(terms: list[Term], column: str) -> Iterator[tuple[int | None, int | None]]:
    for term in terms:
        numbers = [value for value in term.values if isinstance(value, int)]
        if term.column != column or len(numbers) != len(term.values) or term.op == "like":
            continue
        if term.op in ("=", "in"):
            yield min(numbers), max(numbers)
        elif term.op in (">", ">="):
            yield numbers[0] + (term.op == ">"), None
        else:
            yield None, numbers[0] - (term.op == "<")


def choices_of(terms: list[Term], column: str) -> tuple[Constant, ...] | None:
    """Return the constants of the first term that lists all that a column can be; None if there is none."""
    for term in terms:
        if term.column == column and term.op in ("=", "in") and not term.is_time:
            return term.values
    return None


def prefix_of(terms: list[Term], column: str) -> str | None:
    """Return what a text column begins with, by the first `like` that ends in `%`; None without one."""
    for term in terms:
        (pattern,) = term.values[:1]
        if term.column == column and term.op == "like" and isinstance(pattern, str):
            text, percent, rest = pattern.partition("%")
            if percent and not rest and text and not set("_\\") & set(text):
                return text
    return None
