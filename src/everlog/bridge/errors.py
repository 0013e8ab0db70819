"""What can stop a bridge besides the errors of the queue and of the client."""

from __future__ import annotations

from everlog.errors import EverlogError


class BatchInDoubt(EverlogError):
    """Nobody can tell any more whether a batch reached its topic, so a person has to decide.

    `first_seq` and `last_seq` are those of the queue.
    """

    code = "bridge_in_doubt"

    def __init__(self, message: str, first_seq: int = 0, last_seq: int = 0) -> None:
        super().__init__(message)
        self.first_seq = first_seq
        self.last_seq = last_seq
