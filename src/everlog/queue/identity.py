"""The identity of a queue: `queue.id`, which tells a queue from one that was made anew at the same path.

Readers that store positions outside of the queue compare it: a seq means nothing in another queue.
"""

from __future__ import annotations

import os
import uuid
from typing import Final

from everlog.fs import Fs, read_file, replace_file
from everlog.queue.layout import IDENTITY_FILE

_DIGITS: Final = 32


def create(fs: Fs, queue_path: str) -> None:
    """Give the queue an identity, whatever one of the same path had."""
    replace_file(fs, os.path.join(queue_path, IDENTITY_FILE), uuid.uuid4().hex.encode("ascii"))


def load(fs: Fs, queue_path: str) -> str | None:
    """Return the identity; None if no writer of this version has opened the queue yet."""
    try:
        found = read_file(fs, os.path.join(queue_path, IDENTITY_FILE))
    except FileNotFoundError:
        return None
    return found.decode("ascii", "replace") if len(found) == _DIGITS else None
