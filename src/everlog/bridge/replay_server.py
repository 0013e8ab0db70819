"""A replay that others read as they read a feed: into a queue, a topic, and a WebSocket on loopback.

Owns where messages go and how commands come in: as lines of text, on the WebSocket or to `command`. What is
due is decided by `everlog.market.player`; records are rendered as those of a bridge.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from everlog.bridge.rendering import Format, Messages, Renderer
from everlog.client import Producer
from everlog.errors import EverlogError
from everlog.market.merge import MergedBatch
from everlog.market.player import Player
from everlog.queue import Queue

SEND_TIMEOUT_S: Final = 5.0
"""A WebSocket that does not take a message for so long is closed: it holds up all others."""
CLIENTS_MAX: Final = 64
STATUS_S: Final = 1.0
_TRY_AGAIN_LATER: Final = 1013
# Programs send no Origin. A page of another site could otherwise read the records and send commands.
_ORIGINS: Final = (None, re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"))

Sink = Callable[[MergedBatch], None]


class ReplayServer:
    """Publishes what a player says is due, until its end or `stop`."""

    def __init__(
        self,
        player: Player,
        names: Sequence[str],
        *,
        into_queue: str | None = None,
        producer: Producer | None = None,
        on_status: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """`names` are those of the player's sources, in order; records say of which they are."""
        self.player = player
        self._renderers = [Renderer(Format.AUTO, name) for name in names]
        self._into_queue = into_queue
        self._producer = producer
        self._on_status = on_status or (lambda status: None)
        self._clients: set[ServerConnection] = set()
        self._server: Server | None = None
        self._changed = asyncio.Event()
        self._is_stopped = False

    # --- Commands ------------------------------------------------------------------------------------------

    def command(self, text: str) -> dict[str, Any]:
        """Do what a line says; return the status, or what is wrong with the line."""
        try:
            status = self.player.command(text)
        except EverlogError as error:
            return {"error": {"code": error.code, "message": str(error)}}
        self._changed.set()
        return {"status": status}

    def stop(self) -> None:
        """End `run` before the next messages."""
        self._is_stopped = True
        self._changed.set()

    # --- Running -------------------------------------------------------------------------------------------

    async def listen(self, port: int = 0) -> int:
        """Serve WebSockets on loopback, to programs and to pages of this machine; return the port."""
        self._server = await serve(self._handle, "127.0.0.1", port, max_size=1 << 16, origins=_ORIGINS)
        bound: int = next(iter(self._server.sockets)).getsockname()[1]
        return bound

    async def run(self) -> None:
        """Publish until the end."""
        loop = asyncio.get_running_loop()
        shown_s = loop.time()
        with contextlib.ExitStack() as opened:
            sinks: list[Sink] = []
            if self._into_queue is not None:
                writer = opened.enter_context(Queue.open_publisher(self._into_queue))
                sinks.append(_queue_sink(writer))
            while not self._is_stopped and not self.player.is_done:
                taken = self.player.take()
                if taken is not None:
                    for sink in sinks:
                        sink(taken)
                    await self._publish_records(taken)
                    await asyncio.sleep(0)
                else:
                    await self._wait(self.player.wait_s())
                if loop.time() - shown_s >= STATUS_S:
                    shown_s = loop.time()
                    self._on_status(self.player.status())
        if self._producer is not None:
            await asyncio.to_thread(self._producer.flush)
        self._on_status(self.player.status())

    async def close(self) -> None:
        """Stop listening and let go of the sources."""
        self.player.close()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _wait(self, wait_s: float | None) -> None:
        """Wait until a message is due, a command comes, or the status is."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                self._changed.wait(), STATUS_S if wait_s is None else min(wait_s, STATUS_S)
            )

    # --- Records -------------------------------------------------------------------------------------------

    async def _publish_records(self, taken: MergedBatch) -> None:
        if self._producer is None and not self._clients:
            return
        records = self._rendered(taken)
        if self._producer is not None:
            await asyncio.to_thread(_send_all, self._producer, records)
        if self._clients:
            texts = [b'{"data":%b,"meta":{%b}}' % record for record in records]
            await asyncio.gather(*(self._send(client, texts) for client in [*self._clients]))

    def _rendered(self, taken: MergedBatch) -> list[tuple[bytes, bytes]]:
        """Return data and meta of each message, in order."""
        records: list[tuple[bytes, bytes]] = [(b"", b"")] * len(taken.key)
        payloads = [bytes(payload) for payload in taken.packed]
        for source in np.unique(taken.source).tolist():
            places = np.flatnonzero(taken.source == source)
            messages = Messages(
                taken.seq[places],
                taken.timestamp_ns[places],
                taken.type_id[places].tolist(),
                taken.flags[places].tolist(),
                [payloads[place] for place in places.tolist()],
            )
            rendered = self._renderers[source].records(messages)
            for place, record in zip(
                places.tolist(), zip(rendered.data, rendered.metas, strict=True), strict=True
            ):
                records[place] = record
        return records

    async def _send(self, client: ServerConnection, texts: Sequence[bytes]) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                for text in texts:
                    await client.send(text, text=True)
        except (ConnectionClosed, TimeoutError):
            self._clients.discard(client)
            client.transport.abort()

    async def _handle(self, client: ServerConnection) -> None:
        if len(self._clients) >= CLIENTS_MAX:
            await client.close(_TRY_AGAIN_LATER, f"{CLIENTS_MAX} clients are connected already")
            return
        self._clients.add(client)
        try:
            async for text in client:
                line = text if isinstance(text, str) else text.decode("utf-8", "replace")
                await client.send(msgspec.json.encode(self.command(line)), text=True)
        except ConnectionClosed:
            return
        finally:
            self._clients.discard(client)


def _queue_sink(writer: Any) -> Sink:
    def publish(taken: MergedBatch) -> None:
        packed = taken.packed
        writer.append_packed(
            taken.type_id, packed.buffer, packed.ends, taken.timestamp_ns, taken.flags, packed.offsets
        )

    return publish


def _send_all(producer: Producer, records: Sequence[tuple[bytes, bytes]]) -> None:
    for data, meta in records:
        producer.send(msgspec.Raw(data), meta=msgspec.json.decode(b"{%b}" % meta))


def source_names(paths: Sequence[str]) -> list[str]:
    """Return a name for each source: the last part of its path, with a number where that is not unique."""
    names = [os.path.basename(os.path.abspath(path)) for path in paths]
    return [f"{name}-{place}" if names.count(name) > 1 else name for place, name in enumerate(names)]
