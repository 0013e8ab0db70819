"""Markdown as the reference pages use it. Owns how a table is written; knows nothing of what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MADE_BY: Final = "<!-- Made by `python -m tools.reference_pages`; do not edit. -->"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with its header; a bar in a cell stays part of the cell."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        cells = [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
        lines.append("| " + " | ".join(cells).rstrip() + " |")
    return "\n".join(lines) + "\n"


def code(text: object) -> str:
    """Text as code; nothing for nothing."""
    return f"`{text}`" if str(text) else ""
