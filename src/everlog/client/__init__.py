"""Clients of a topics server: `Client`, `AsyncClient`, `Producer`, `Consumer`, `Worker`, and their types.

The classes that send requests are imported when they are first used: a command that lists topics does not
wait for asyncio and WebSockets.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from everlog.api_types import (
    CaughtUp,
    ConsumerAtRisk,
    NewRecord,
    Record,
    Records,
    Tombstone,
    TopicCreated,
    TopicGone,
    TopicSettings,
    WatchEvent,
)
from everlog.client.arguments import as_base64
from everlog.client.errors import ApiFailed, BufferFull, ProducerFailed, RecordsLost
from everlog.job_types import Job

if TYPE_CHECKING:
    from everlog.client.async_client import AsyncClient
    from everlog.client.consumer import AsyncConsumer, Consumer
    from everlog.client.handlers import DeadLetter
    from everlog.client.producer import Producer
    from everlog.client.retrying import RetryPolicy
    from everlog.client.sync_client import Client
    from everlog.client.worker import Worker

_LAZY = {
    "AsyncClient": "async_client",
    "AsyncConsumer": "consumer",
    "Client": "sync_client",
    "Consumer": "consumer",
    "DeadLetter": "handlers",
    "Producer": "producer",
    "RetryPolicy": "retrying",
    "Worker": "worker",
}

__all__ = [
    "ApiFailed",
    "AsyncClient",
    "AsyncConsumer",
    "BufferFull",
    "CaughtUp",
    "Client",
    "Consumer",
    "ConsumerAtRisk",
    "DeadLetter",
    "Job",
    "NewRecord",
    "Producer",
    "ProducerFailed",
    "Record",
    "Records",
    "RecordsLost",
    "RetryPolicy",
    "Tombstone",
    "TopicCreated",
    "TopicGone",
    "TopicSettings",
    "WatchEvent",
    "Worker",
    "as_base64",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    # Completion in a shell or notebook also finds what is not loaded yet.
    return sorted({*globals(), *__all__})
