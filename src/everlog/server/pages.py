"""Pages of a list: how long they are, and the cursor that leads from one to the next."""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from everlog.server.errors import invalid

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1000


def page_size(text: str | None) -> int:
    """The length of a page; what makes no sense counts as absent."""
    try:
        return min(max(int(text), 1), PAGE_MAX) if text else PAGE_DEFAULT
    except ValueError:
        return PAGE_DEFAULT


def cursor_behind(name: str) -> str:
    """The cursor of the page that begins behind a name."""
    return base64.urlsafe_b64encode(msgspec.json.encode({"after": name})).decode()


def name_in_cursor(cursor: str | None) -> str | None:
    """The name behind which a page begins, None for the first page."""
    if not cursor:
        return None
    try:
        return msgspec.json.decode(
            base64.b64decode(cursor, altchars=b"-_", validate=True), type=dict[str, str]
        )["after"]
    except (ValueError, msgspec.MsgspecError, KeyError):
        raise invalid(f"the cursor {cursor!r} is not one that this server gave") from None
