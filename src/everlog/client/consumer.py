"""`Consumer` and `AsyncConsumer`: records of a topic from a cursor that the server stores.

Owns what counts as processed: a record does as soon as the next one is asked for. Progress is committed with
the next read, at the end of the block, or by `commit`; so after a crash some records come again and none is
missing. Both classes carry out the same flow.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final, Generic, Self, TypeVar

import msgspec

from everlog.api_types import ConsumerState, Record, Tombstone
from everlog.client import calls
from everlog.client.arguments import Gaps, Position, checked_gaps
from everlog.client.async_client import AsyncClient
from everlog.client.flows import ClientContext, Emit, Flow, Steps, Stream
from everlog.client.streams import LONG_POLL_MS, lost
from everlog.client.sync_client import Client
from everlog.errors import ConsumerNotFound, Fenced

C = TypeVar("C")
BATCH_RECORDS: Final = 256


class _Progress:
    """One consumer as its reader sees it: who owns it, what is processed, what is committed."""

    def __init__(
        self,
        topic: str,
        name: str,
        *,
        start: Position,
        owner: str | None,
        owner_ttl_ms: int | None,
        gaps: Gaps,
        follow: bool,
        limit: int,
    ) -> None:
        self.topic = topic
        self.name = name
        self.epoch: int | None = None
        self.done = self.committed = 0
        self._start = start
        self._owner = owner
        self._owner_ttl_ms = owner_ttl_ms
        self._gaps = checked_gaps(gaps)
        self._follow = follow
        self._limit = limit

    def begin(self) -> Steps[None]:
        """Find the consumer, create it if there is none, and become its owner if one was named."""

        def steps(context: ClientContext) -> Flow[None]:
            try:
                state = yield from calls.consumer(self.topic, self.name).steps(context)
            except ConsumerNotFound:
                put = calls.put_consumer(self.topic, self.name, start=self._start)
                state = yield from put.steps(context)
            self.done = self.committed = state.cursor
            if self._owner is not None:
                acquire = calls.acquire_consumer(
                    self.topic, self.name, self._owner, ttl_ms=self._owner_ttl_ms
                )
                self.epoch = (yield from acquire.steps(context)).owner_epoch

        return Steps(steps)

    def records(self) -> Stream[Record | Tombstone]:
        """What is behind the cursor; asking for the next one says that this one is processed."""

        def steps(context: ClientContext) -> Flow[None]:
            while True:
                read = calls.read_consumer(
                    self.topic,
                    self.name,
                    limit=self._limit,
                    wait_ms=LONG_POLL_MS if self._follow else 0,
                    commit=self.done if self.done > self.committed else None,
                    owner_epoch=self.epoch,
                )
                diff = yield from read.steps(context)
                self.committed = self.done = diff.consumer.cursor
                if diff.tombstone is not None:
                    gap = msgspec.structs.replace(diff.tombstone, topic=self.topic)
                    if self._gaps == "raise":
                        raise lost(gap)
                    yield Emit(gap)
                    self.done = gap.gap_to
                for record in diff.records:
                    yield Emit(record)
                    self.done = record.seq
                self.done = diff.next_from_seq
                if diff.caught_up and not self._follow:
                    yield from self.end().steps(context)
                    return

        return Stream(steps)

    def commit(self, seq: int | None) -> Steps[ConsumerState]:
        """Commit up to `seq`, or what is processed."""

        def steps(context: ClientContext) -> Flow[ConsumerState]:
            upto = self.done if seq is None else seq
            call = calls.commit_consumer(self.topic, self.name, upto, owner_epoch=self.epoch)
            state = yield from call.steps(context)
            self.committed, self.done = state.cursor, max(self.done, state.cursor)
            return state

        return Steps(steps)

    def end(self) -> Steps[None]:
        """Commit what is processed and not committed yet."""

        def steps(context: ClientContext) -> Flow[None]:
            if self.done > self.committed:
                yield from self.commit(None).steps(context)

        return Steps(steps)


class _Cursor(Generic[C]):
    """What both faces of a consumer share: the arguments, and how far it is."""

    def __init__(
        self,
        client: C,
        topic: str,
        name: str,
        *,
        start: Position = "earliest",
        owner: str | None = None,
        owner_ttl_ms: int | None = None,
        gaps: Gaps = "raise",
        follow: bool = True,
        limit: int = BATCH_RECORDS,
    ) -> None:
        """Without `follow` the iteration ends at the present end of the topic."""
        self._client = client
        self._progress = _Progress(
            topic,
            name,
            start=start,
            owner=owner,
            owner_ttl_ms=owner_ttl_ms,
            gaps=gaps,
            follow=follow,
            limit=limit,
        )

    @property
    def owner_epoch(self) -> int | None:
        """The epoch of this owner; None without `owner`."""
        return self._progress.epoch


class Consumer(_Cursor[Client]):
    """Iterates over the records behind a stored cursor, in a `with` block.

    A consumer that does not exist is created at `start`. With `owner` it is acquired: from then on an earlier
    owner gets `everlog.Fenced` from its next read or commit. A gap raises `RecordsLost`, or comes as a
    `Tombstone` with `gaps="yield"`; `commit(gap.gap_to)` goes past it.
    """

    def __enter__(self) -> Self:
        self._client.call(self._progress.begin())
        return self

    def __iter__(self) -> Iterator[Record | Tombstone]:
        return self._client.iterate(self._progress.records())

    def commit(self, seq: int | None = None) -> ConsumerState:
        """Commit now, up to `seq`, or up to the record before the one at hand."""
        return self._client.call(self._progress.commit(seq))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, Fenced):  # the cursor is another owner's
            self._client.call(self._progress.end())


class AsyncConsumer(_Cursor[AsyncClient]):
    """`Consumer` for asyncio: `async with`, `async for`, `await commit()`."""

    async def __aenter__(self) -> Self:
        await self._client.call(self._progress.begin())
        return self

    def __aiter__(self) -> AsyncIterator[Record | Tombstone]:
        return self._client.iterate(self._progress.records())

    async def commit(self, seq: int | None = None) -> ConsumerState:
        """Commit now, up to `seq`, or up to the record before the one at hand."""
        return await self._client.call(self._progress.commit(seq))

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, Fenced):
            await self._client.call(self._progress.end())
