"""The exceptions of the clients; all of them are `EverlogError`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from everlog.errors import DataLost, EverlogError

if TYPE_CHECKING:
    from everlog.api_types import Tombstone

UNREACHABLE: Final = 0
"""The `status` of a failure without any answer."""

BUSY_STATUSES: Final = frozenset({429, 503})
GATEWAY_STATUSES: Final = frozenset({502, 504})


class ApiFailed(EverlogError):
    """A request was refused, or was not answered (`status` is then UNREACHABLE).

    `code` and `detail` are those of the server. `was_sent` says whether the server may have seen the request;
    without an answer it is then unknown whether it was carried out.
    """

    code = "api_failed"

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        detail: dict[str, Any] | None = None,
        retry_after_s: float = 0.0,
        was_sent: bool = True,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.was_sent = was_sent

    def __reduce__(self) -> tuple[object, ...]:
        # Errors are pickled between processes; the default would call the constructor with the message only.
        parts = (self.status, self.code, str(self), self.detail, self.retry_after_s, self.was_sent)
        return type(self), parts

    @property
    def is_busy(self) -> bool:
        """Whether the server asks for a retry: it starts, stops, or is at a limit."""
        return self.status in BUSY_STATUSES

    @property
    def is_outage(self) -> bool:
        """Whether no server answered."""
        return self.status == UNREACHABLE or self.status in GATEWAY_STATUSES


class RecordsLost(DataLost):
    """Records were gone before they were read; `tombstone` says which, and where to continue."""

    code = "records_lost"

    def __init__(self, message: str, tombstone: Tombstone | None = None) -> None:
        super().__init__(message)
        self.tombstone = tombstone


class ProducerFailed(EverlogError):
    """A batch could not be delivered, so the producer stopped; the cause is chained.

    `undelivered` counts the buffered records that no answer confirmed. If the cause is an outage, the first
    batch of them may have been appended.
    """

    code = "producer_failed"

    def __init__(self, message: str, undelivered: int = 0) -> None:
        super().__init__(message)
        self.undelivered = undelivered


class BufferFull(EverlogError):
    """The buffer of a producer stayed full for as long as the call was to wait."""

    code = "buffer_full"
