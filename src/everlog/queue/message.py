"""Owned copies of messages, for whoever wants to keep them without the mapping."""

from __future__ import annotations

from typing import NamedTuple

from everlog.native.queue import MessageView


class Message(NamedTuple):
    """A message copied out of the queue."""

    seq: int
    timestamp_ns: int
    type_id: int
    payload: bytes


def copy_message(view: MessageView) -> Message:
    """Copy what a view shows."""
    return Message(view.seq, view.timestamp_ns, view.type_id, bytes(view))
