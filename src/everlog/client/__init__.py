"""Clients of a topics server. What is imported here is loaded when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everlog.client.async_client import AsyncClient
    from everlog.client.errors import ApiFailed, BufferFull, ProducerFailed, RecordsLost
    from everlog.client.producer import Producer
    from everlog.client.records import (
        CaughtUp,
        Job,
        NewRecord,
        Record,
        Records,
        Tombstone,
        TopicGone,
        TopicSettings,
        WatchEvent,
    )
    from everlog.client.retrying import RetryPolicy
    from everlog.client.sync_client import Client
    from everlog.client.worker import DeadLetter, Worker

_HOMES = {
    "AsyncClient": "async_client",
    "ApiFailed": "errors",
    "BufferFull": "errors",
    "ProducerFailed": "errors",
    "RecordsLost": "errors",
    "Producer": "producer",
    "CaughtUp": "records",
    "Job": "records",
    "NewRecord": "records",
    "Record": "records",
    "Records": "records",
    "Tombstone": "records",
    "TopicGone": "records",
    "TopicSettings": "records",
    "WatchEvent": "records",
    "RetryPolicy": "retrying",
    "Client": "sync_client",
    "DeadLetter": "worker",
    "Worker": "worker",
}

__all__ = [
    "ApiFailed",
    "AsyncClient",
    "BufferFull",
    "CaughtUp",
    "Client",
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
    "TopicGone",
    "TopicSettings",
    "WatchEvent",
    "Worker",
]


def __getattr__(name: str) -> Any:
    # A command that lists topics need not wait for asyncio and WebSockets to be imported.
    from importlib import import_module

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    # Completion in a shell or notebook finds what is not loaded yet.
    return sorted({*globals(), *__all__})
