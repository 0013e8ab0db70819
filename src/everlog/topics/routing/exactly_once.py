"""Where a copy is from, for routers that promise each record once: the mark in its meta.

Owns the text of the mark and the memory of the marks that a destination still holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from everlog.native.topics.log import meta_of, next_live

if TYPE_CHECKING:
    from everlog.native.topics.log import Sources
    from everlog.topics.topic import Topic

MARK: Final = "_topics_router"
ORIGINAL: Final = "_topics_original_meta"
META_KEYS_MAX: Final = 64

_encode: Final = msgspec.json.encode


class Origin(msgspec.Struct, frozen=True):
    """The router and the source of a copy."""

    router: str
    source: str
    source_id: int
    epoch: int

    def key(self, seq: int) -> str:
        """The key that identifies the copy of one record."""
        return f"router:{self.router}:{self.source_id}:{self.epoch}:{seq}"

    def meta(self, seq: int, meta: bytes | None) -> bytes:
        """The meta of a copy of the record `seq`, whose own meta is `meta`."""
        mark = msgspec.Raw(
            _encode(
                {
                    "idempotency_key": self.key(seq),
                    "router": self.router,
                    "source_topic": self.source,
                    "source_topic_id": self.source_id,
                    "source_epoch": self.epoch,
                    "source_seq": seq,
                }
            )
        )
        if meta is None:
            return _encode({MARK: mark})
        try:
            fields = msgspec.json.decode(meta, type=dict[str, msgspec.Raw])
        except msgspec.MsgspecError:
            return _encode({ORIGINAL: msgspec.Raw(meta), MARK: mark})
        fields.pop(MARK, None)  # of the router before, if this is the copy of a copy
        if len(fields) >= META_KEYS_MAX:
            return _encode({ORIGINAL: msgspec.Raw(meta), MARK: mark})
        return _encode({**fields, MARK: mark})


class _Marked(msgspec.Struct):
    mark: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name=MARK)


class _Mark(msgspec.Struct):
    idempotency_key: str = ""


def key_in(meta: bytes | None) -> str | None:
    """The key that a record carries, None if it carries none."""
    if meta is None or MARK.encode() not in meta:
        return None
    try:
        marked = msgspec.json.decode(meta, type=_Marked)
        return msgspec.json.decode(marked.mark, type=_Mark).idempotency_key or None
    except msgspec.MsgspecError:
        return None


class Evidence:
    """The keys of the live records of a destination; looked up when first needed, then kept up to date.

    A record that is gone is no evidence any more. Memory is bounded by what the destination keeps.
    """

    def __init__(self) -> None:
        self._seqs: dict[str, int] = {}  # by key, in the order of the seqs
        self._seen_seq = 0

    def look(self, sources: Sources, dest: Topic) -> None:
        """Take in what has come to the destination since the last time."""
        log = dest.log
        if self._seen_seq < log.base_seq - 1:
            self._forget(log.base_seq)
        seq = next_live(log, max(self._seen_seq + 1, log.base_seq))
        while seq < log.next_seq:
            key = key_in(meta_of(sources, log, seq))
            if key is not None:
                self._seqs[key] = seq
            seq = next_live(log, seq + 1)
        self._seen_seq = log.next_seq - 1

    def _forget(self, base_seq: int) -> None:
        for key in [key for key, seq in self._seqs.items() if seq < base_seq]:
            del self._seqs[key]

    def find(self, dest: Topic, key: str) -> int:
        """The live record of the destination that carries this key, 0 if there is none."""
        seq = self._seqs.get(key, 0)
        return seq if seq and dest.log.is_live(seq) else 0
