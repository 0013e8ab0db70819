"""everlog: an ordered log that never loses anything silently, in three planes."""

from typing import TYPE_CHECKING, Any

from everlog.errors import (
    Closed,
    ConsumerNotFound,
    CursorBackwards,
    EverlogError,
    Fenced,
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    JobNotFound,
    NotAQueue,
    QueueFull,
    QueueNotFound,
    RecordTooLarge,
    RouterNotFound,
    ScheduleNotFound,
    TopicFull,
    TopicIncompatible,
    TopicNotEmpty,
    TopicNotFound,
)

if TYPE_CHECKING:
    from everlog.client.async_client import AsyncClient
    from everlog.client.consumer import AsyncConsumer, Consumer
    from everlog.client.errors import ApiFailed, RecordsLost
    from everlog.client.producer import Producer
    from everlog.client.sync_client import Client
    from everlog.client.worker import Worker

__all__ = [
    "ApiFailed",
    "AsyncClient",
    "AsyncConsumer",
    "Client",
    "Closed",
    "Consumer",
    "ConsumerNotFound",
    "CursorBackwards",
    "EverlogError",
    "Fenced",
    "InvalidConfig",
    "InvalidRecord",
    "InvalidRequest",
    "JobNotFound",
    "NotAQueue",
    "Producer",
    "QueueFull",
    "QueueNotFound",
    "RecordTooLarge",
    "RecordsLost",
    "RouterNotFound",
    "ScheduleNotFound",
    "TopicFull",
    "TopicIncompatible",
    "TopicNotEmpty",
    "TopicNotFound",
    "Worker",
    "__version__",
]
__version__ = "0.2.0"

_CLIENTS = (
    "ApiFailed",
    "AsyncClient",
    "AsyncConsumer",
    "Client",
    "Consumer",
    "Producer",
    "RecordsLost",
    "Worker",
)


def __getattr__(name: str) -> Any:
    # A program that uses only the queue does not wait for the clients to be imported.
    if name not in _CLIENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("everlog.client"), name)


def __dir__() -> list[str]:
    # Completion in a shell or notebook finds what is not loaded yet.
    return sorted({*globals(), *__all__})
