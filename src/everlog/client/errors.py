"""The exceptions of the clients; all of them are `EverlogError`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from everlog import errors
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
        # The class of a code is made when it is needed, so it cannot be found by its name.
        return ApiFailed if type(self) is ApiFailed else api_failed, parts

    @property
    def is_busy(self) -> bool:
        """Whether the server asks for a retry: it starts, stops, or is at a limit."""
        return self.status in BUSY_STATUSES

    @property
    def is_outage(self) -> bool:
        """Whether no server answered."""
        return self.status == UNREACHABLE or self.status in GATEWAY_STATUSES


def api_failed(
    status: int,
    code: str,
    message: str,
    detail: dict[str, Any] | None = None,
    retry_after_s: float = 0.0,
    was_sent: bool = True,
) -> ApiFailed:
    """The failure with this code: an `ApiFailed` that is also the class of `everlog.errors` with the code.

    `except everlog.TopicNotFound` therefore catches what a server refuses and what an engine raises.
    """
    return _class_of(code)(status, code, message, detail, retry_after_s, was_sent)


@cache
def _classes() -> dict[str, type[EverlogError]]:
    found = (value for value in vars(errors).values() if isinstance(value, type))
    return {
        kind.code: type(kind.__name__, (ApiFailed, kind), {"__doc__": kind.__doc__, "__module__": __name__})
        for kind in found
        if issubclass(kind, EverlogError) and kind is not EverlogError
    }


def _class_of(code: str) -> type[ApiFailed]:
    found = _classes().get(code, ApiFailed)
    assert issubclass(found, ApiFailed)
    return found


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
