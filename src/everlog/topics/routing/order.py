"""The order in which the batches of a topic become visible if they wait for more than one shard of the log.

Owns only that order; what becoming visible means is the entry's business.
"""

from __future__ import annotations

from typing import Protocol


class Publishable(Protocol):
    """A batch with its own condition."""

    def publish(self) -> None:
        """Make it visible."""
        ...


class SeqOrder:
    """The batches of a topic that is written through more than one shard: visible in the order of their seqs.

    Each joins when its seqs are given out. Those with seqs below `start_seq` came before there was an order.
    """

    __slots__ = ("_is_met", "start_seq")

    def __init__(self, start_seq: int) -> None:
        self.start_seq = start_seq
        self._is_met: dict[Publishable, bool] = {}  # in the order of seqs

    def join(self, entry: Publishable) -> None:
        """Take a place behind all others."""
        self._is_met[entry] = False

    def on_commit(self, entry: Publishable) -> None:
        """The condition of an entry is met; it and those that waited for it become visible."""
        if entry not in self._is_met:
            entry.publish()
            return
        self._is_met[entry] = True
        self._publish()

    def on_abort(self, entry: Publishable) -> None:
        """An entry failed; later ones do not wait for it any more."""
        if self._is_met.pop(entry, None) is not None:
            self._publish()

    def _publish(self) -> None:
        while self._is_met:
            entry, is_met = next(iter(self._is_met.items()))
            if not is_met:
                return
            del self._is_met[entry]
            entry.publish()
