"""What a notebook shows of records and messages: a table of the first and last ones, as HTML.

Owns the bounds of such a table and the escaping. Whatever is in a record is text here, never markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Final, TypeVar

ENDS_SHOWN: Final = 10
"""Rows at the beginning, and at the end."""
CELL_CHARS_MAX: Final = 200
T = TypeVar("T")


def html_table(
    caption: str, columns: Sequence[str], entries: Sequence[T], row: Callable[[T], Sequence[object]]
) -> str:
    """Return a table of entries: `row` gives the cells of one. Of many, those in the middle are left out."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    left_out = max(0, len(entries) - 2 * ENDS_SHOWN)
    first = entries[:ENDS_SHOWN] if left_out else entries
    last = entries[-ENDS_SHOWN:] if left_out else []
    body = [_row(row(entry)) for entry in first]
    if left_out:
        body.append(f'<tr><td colspan="{len(columns)}">{left_out:,} more</td></tr>')
    body += [_row(row(entry)) for entry in last]
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def _row(cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in cells)}</tr>"


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= CELL_CHARS_MAX else f"{text[:CELL_CHARS_MAX]}…")
