"""Errors on the wire: one body for all of them, and which status an engine's error gets.

Owns the codes of the contract; the sentences come from where the error arose.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from everlog.errors import (
    BatchTooLarge,
    Closed,
    ConsumerNotFound,
    Corrupt,
    CursorBackwards,
    EverlogError,
    Fenced,
    InvalidRequest,
    Io,
    JobNotFound,
    LimitReached,
    NotAQueue,
    NotReady,
    ObjectStoreFailed,
    OutcomeUnknown,
    ReadOnly,
    RecordTooLarge,
    ScheduleNotFound,
    Superseded,
    TopicDamaged,
    TopicFull,
    TopicIncompatible,
    TopicNotEmpty,
    TopicNotFound,
)
from everlog.topics.storage.failures import errno_name

MESSAGE_MAX: Final = 1000
RETRY_SOON: Final = ((b"Retry-After", b"1"),)
SUPERSEDED: Final = (
    "another server has taken over and this one takes no more writes: send them there; reads go on"
)
CHALLENGE: Final = ((b"WWW-Authenticate", b"Bearer"),)
"""Goes with every 401: the scheme of authentication."""


class ApiError(Exception):
    """A refusal with its status, code and detail."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        detail: dict[str, Any] | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers

    def body(self) -> bytes:
        """The error as it is sent."""
        # Messages repeat what was sent, and that can be as long as a body.
        error: dict[str, Any] = {"code": self.code, "message": str(self)[:MESSAGE_MAX]}
        if self.detail is not None:
            error["detail"] = self.detail
        return msgspec.json.encode({"error": error})


def invalid(message: str, **detail: Any) -> ApiError:
    """A request that makes no sense."""
    return ApiError(400, "invalid_request", message, detail or None)


_STATUS: Final[dict[type[EverlogError], int]] = {
    BatchTooLarge: 400,
    RecordTooLarge: 400,
    TopicIncompatible: 409,
    TopicNotEmpty: 409,
    NotAQueue: 409,
    TopicFull: 422,
    ConsumerNotFound: 404,
    JobNotFound: 404,
    ScheduleNotFound: 404,
    CursorBackwards: 409,
    Fenced: 409,
}


def from_engine(error: EverlogError, topic: str | None) -> ApiError:
    """Turn an error of the engine into the one for the client."""
    message = str(error)
    if isinstance(error, LimitReached) and error.retry_after_ms:
        seconds = -(-error.retry_after_ms // 1000)
        headers = ((b"Retry-After", b"%d" % seconds),)
        return ApiError(429, error.code, message, {"retry_after_ms": error.retry_after_ms}, headers)
    if isinstance(error, LimitReached):
        return limit_reached(message, error.limit, error.maximum)
    if isinstance(error, Closed | NotReady):
        code = "shutting_down" if isinstance(error, Closed) else error.code
        about = {"topic": topic} if topic is not None and isinstance(error, NotReady) else None
        return ApiError(503, code, message, about, RETRY_SOON)
    if isinstance(error, TopicIncompatible):
        detail = {"existing_type": error.existing, "requested_type": error.requested}
        return ApiError(409, error.code, message, detail)
    if isinstance(error, TopicNotFound):
        return ApiError(404, error.code, message, {"topic": error.topic or topic})
    status = _STATUS.get(type(error))
    if status is not None:
        about = error.detail or ({"topic": topic} if topic is not None and status != 400 else None)
        return ApiError(status, error.code, message, about)
    if isinstance(error, InvalidRequest):
        return ApiError(400, "invalid_request", message)
    return (
        _from_storage(error, topic) if isinstance(error, Io | Corrupt) else ApiError(500, "internal", message)
    )


def _from_storage(error: Io | Corrupt, topic: str | None) -> ApiError:
    """A failure of the storage as a client may know it: the server log has its path."""
    if isinstance(error, TopicDamaged):
        return ApiError(
            503, error.code, str(error), {"topic": topic} if topic is not None else None, RETRY_SOON
        )
    if isinstance(error, Superseded):
        detail = {"primary": error.address} if error.address else None
        return ApiError(503, "storage_failed", "another server has taken over; send writes to it", detail)
    if isinstance(error, ObjectStoreFailed):
        message = "these records are in an object store that does not answer; try again"
        return ApiError(503, "storage_failed", message, None, RETRY_SOON)
    cause = f" ({errno_name(error.errno)})" if isinstance(error, Io) and error.errno is not None else ""
    closed = f"the log could not be written or synced{cause}; this topic takes no writes until a restart"
    if isinstance(error, OutcomeUnknown):
        return _outcome_unknown(error, closed)
    if isinstance(error, ReadOnly):
        return ApiError(503, "storage_failed", f"{closed}; nothing was changed", None, RETRY_SOON)
    if isinstance(error, Corrupt):
        advice = "see the server log, and run `everlog verify` on the stopped data directory"
        return ApiError(500, "internal", f"stored data is damaged; {advice}")
    return ApiError(500, "internal", f"the storage failed{cause}; nothing was changed, see the server log")


def _outcome_unknown(error: OutcomeUnknown, closed: str) -> ApiError:
    """The answer to a change that was written, and then not confirmed."""
    reason = error.reason
    if isinstance(reason, Superseded):
        message = (
            "another server has taken over while this change waited for its shipment; only that server shows "
            "whether it happened: repeat it there with the same idempotency key"
        )
        return ApiError(500, error.code, message, {"primary": reason.address} if reason.address else None)
    if reason is None or isinstance(reason, ReadOnly):
        return ApiError(500, error.code, f"{closed}, which shows whether this change happened")
    message = (
        "the backup did not take this change before the server stopped; a restart shows whether it happened"
    )
    return ApiError(500, error.code, message)


def limit_reached(message: str, limit: str, maximum: int) -> ApiError:
    """A resource cap is reached."""
    return ApiError(429, "throttled", message, {"limit": limit, "max": maximum}, RETRY_SOON)
