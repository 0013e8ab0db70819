"""How messages of a queue look as records of a topic, after a bridge has brought them there.

Owns that knowledge alone; the watcher, the workers and the audit ask here. The first record of each
batch says in its meta which messages of the queue the batch holds; the others follow without a gap.
"""

from __future__ import annotations

import binascii
from typing import Any

BRIDGE_FIELD = "bridge"
TYPE_FIELD = "type"


class SourceSeqs:
    """Tells the seq in the queue of each record of a topic, given all of them in order."""

    def __init__(self) -> None:
        self._behind: int | None = None

    def of(self, seq: int, meta: dict[str, Any] | None) -> int:
        """Return the seq of the message in this record."""
        marker = (meta or {}).get(BRIDGE_FIELD)
        if marker is not None:
            self._behind = int(marker["first_seq"]) - seq
        if self._behind is None:
            raise ValueError(f"record {seq} is the first that is read, but no bridge says what it carries")
        return seq + self._behind


def type_id_of(meta: dict[str, Any] | None) -> int | None:
    """Return the type id of a message that a bridge brought as bytes, None if it became JSON."""
    return (meta or {}).get(TYPE_FIELD)


def payload_of(data: str) -> bytes:
    """Return the bytes of a message that a bridge brought as bytes."""
    return binascii.a2b_base64(data)
