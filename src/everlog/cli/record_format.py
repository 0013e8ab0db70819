"""How records of a topic are printed: as text, JSON lines, data alone, or by a template.

Owns the formats and the language of templates. Prints nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from everlog.api_types import RawRecord
from everlog.cli.output import is_terminal, printable, visible_text

Renderer = Callable[[str, msgspec.Raw], str]
"""From the name of a topic and the JSON text of a record to what is printed."""

_decode = msgspec.json.Decoder(RawRecord).decode


def renderer(form: str) -> Renderer:
    """Return the renderer of a format: text, json, raw, or a template; raises ValueError for others."""
    known: dict[str, Renderer] = {"text": _text, "json": _json, "raw": _raw}
    if form in known:
        return known[form]
    return _Template(form).render


def _text(topic: str, raw: msgspec.Raw) -> str:
    record = _decode(raw)
    words = [f"seq={record.seq}", f"ts={record.ts_ms}"]
    words += [f"{name}={printable(value)}" for name in ("node", "tag") if (value := getattr(record, name))]
    if record.meta:
        words.append(f"meta={_shown(record.meta)}")
    return f"{' '.join(words)} {_shown(record.data)}\n"


def _shown(text: msgspec.Raw) -> str:
    return visible_text(bytes(text)).replace("\n", "\\n")


_UNPRINTABLE: Final = re.compile(r"[\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def _json(topic: str, raw: msgspec.Raw) -> str:
    # The rest of what could steer a terminal is escaped in any JSON. The value stays the same.
    text = bytes(raw).decode("utf-8", "backslashreplace")
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def _raw(topic: str, raw: msgspec.Raw) -> str:
    return _content(_decode(raw).data) + "\n"


def _content(text: msgspec.Raw) -> str:
    """A JSON string as the text that it stands for, anything else as it is."""
    encoded = bytes(text)
    if encoded.startswith(b'"'):
        return msgspec.json.decode(encoded, type=str)
    return encoded.decode("utf-8", "backslashreplace")


# --- Templates -------------------------------------------------------------------------------------------

_FIELDS: Final[dict[str, Callable[[str, RawRecord], str]]] = {
    "topic": lambda topic, record: topic,
    "seq": lambda topic, record: str(record.seq),
    "ts": lambda topic, record: str(record.ts_ms),
    "time": lambda topic, record: _time(record.ts_ms),
    "node": lambda topic, record: record.node or "",
    "tag": lambda topic, record: record.tag or "",
    "meta": lambda topic, record: bytes(record.meta).decode("utf-8", "backslashreplace"),
    "data": lambda topic, record: _content(record.data),
    "bytes": lambda topic, record: str(len(bytes(record.data))),
}
_SIGNS: Final = {
    "t": "topic",
    "o": "seq",
    "T": "ts",
    "n": "node",
    "k": "tag",
    "h": "meta",
    "s": "data",
    "S": "bytes",
}
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_PIECE: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|%(.?)|\\(.?)|[^{%\\}]+|[{}]", re.DOTALL)

TEMPLATE_HELP: Final = "fields are {}, or {}".format(
    ", ".join(f"{{{name}}}" for name in _FIELDS),
    ", ".join(f"%{sign} ({name})" for sign, name in _SIGNS.items()),
)


def _time(ts_ms: int) -> str:
    try:
        return datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(ts_ms)  # beyond the calendar


class _Template:
    """`{field}` and `%s` signs; `{{`, `}}` and `%%` stand for the single character; escapes as in C."""

    def __init__(self, form: str) -> None:
        self._pieces = [_piece(found) for found in _PIECE.finditer(form)]
        if not any(callable(piece) for piece in self._pieces):
            raise ValueError(f"{form!r} is neither text, json, raw nor a template; {TEMPLATE_HELP}")
        last = self._pieces[-1]
        if not (isinstance(last, str) and last.endswith(("\n", "\0"))):
            self._pieces.append("\n")

    def render(self, topic: str, raw: msgspec.Raw) -> str:
        record = _decode(raw)
        # Control characters in records must not reach a terminal; a program gets them as they are.
        show = _visible if is_terminal() else str
        return "".join(
            piece if isinstance(piece, str) else show(piece(topic, record)) for piece in self._pieces
        )


def _visible(text: str) -> str:
    return visible_text(text.encode("utf-8", "backslashreplace"))


def _piece(found: re.Match[str]) -> Any:
    text = found[0]
    if text in ("{{", "}}", "%%"):
        return text[0]
    if found[1] is not None:
        if found[1] in _FIELDS:
            return _FIELDS[found[1]]
    elif found[2] is not None:
        if found[2] in _SIGNS:
            return _FIELDS[_SIGNS[found[2]]]
    elif found[3] is not None:
        if found[3] in _ESCAPES:
            return _ESCAPES[found[3]]
        raise ValueError(f"{text!r} is not an escape; known ones are \\n, \\r, \\t, \\0 and \\\\")
    elif text not in ("{", "}"):
        return text
    raise ValueError(f"{text!r} is not a field; {TEMPLATE_HELP}")
