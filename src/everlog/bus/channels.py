"""Order channels: the pair of queues between one strategy and the router.

Owns the opening, READY marking and closing of that pair. Knows nothing about what an order or
a fill looks like; payloads are the application's.

    strategy                                                    router
    --------                                                    ------
    outbox  writer  ->  orders_out  (type 0x2000, orders)  ->   inbox   reader "router"
    inbox   reader  <-  orders_in   (type 0x2001, fills)   <-   outbox  writer
            "<strategy id>"

Each side creates its own outbox and never the other's, because the creator
of a queue is its only writer. Two ways to begin:

* `open` creates the outbox at once and attaches the inbox if it is already there; if not,
  `attach_inbox` is called again later. It never waits for the other side.
* `try_open` opens the inbox first. While the other side has not created it, the result is None
  and nothing has been created.

So the two may start in any order as long as one of them uses `open`. The usual choice is
`StrategyChannel.open` (a strategy announces itself) and, for each `Added` event of the
discovery, `RouterChannel.try_open` (the router follows). A router with a fixed list of
strategies may use `RouterChannel.open` instead, and a strategy that must not run without its
router `StrategyChannel.try_open`. Only if both sides use `try_open`, each waits for the other.

READY is marked on the outbox as soon as it can be opened, and withdrawn by `close`, so that the
other side sees an orderly end. After a crash it stays (the queue can still be opened);
the reader of the other side then reports the disconnect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Self

from everlog.bus.layout import IpcLayout, StrategyEndpoints
from everlog.bus.markers import clear_ready, mark_ready
from everlog.clock import Clock
from everlog.errors import Closed
from everlog.fs import Fs
from everlog.queue import MessageView, Queue, QueueReader, QueueWriter, StartMode, WriterConfig

if TYPE_CHECKING:  # only the type checker needs it; Python has it from 3.12 on
    from typing_extensions import Buffer

ORDER_TYPE_ID = 0x2000
FILL_TYPE_ID = 0x2001
ROUTER_READER = "router"


class OrderChannel(ABC):
    """What both sides share: the writer of their own queue, the reader of the other's.

    `outbox` is the writer; `inbox` is the reader, None until it is attached; both may be used
    directly, for batches or in a `FanInReader`. `skipped` counts messages of an unknown type
    that `StrategyChannel.next_fill` or `RouterChannel.next_order` passed over.

    For one thread at a time, like the reader and the writer inside. A sidecar thread may open
    a channel and hand it to the hot thread.
    """

    def __init__(
        self,
        endpoints: StrategyEndpoints,
        outbox: QueueWriter,
        inbox: QueueReader | None,
        *,
        start: StartMode | str,
        clock: Clock | None,
        fs: Fs | None,
    ) -> None:
        self.endpoints = endpoints
        self.outbox = outbox
        self.inbox = inbox
        self.skipped = 0
        self._start = start
        self._clock = clock
        self._fs = fs
        self._closed = False

    @classmethod
    def open(
        cls,
        layout: IpcLayout,
        strategy_id: str,
        *,
        config: WriterConfig | None = None,
        start: StartMode | str = StartMode.RESUME_STRICT,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> Self:
        """Create the outbox, attach the inbox if it is there already, and mark READY."""
        endpoints = layout.orders().strategy_endpoints(strategy_id)
        outbox = Queue.open_publisher(cls._outbox_dir(endpoints), config, clock=clock, fs=fs)
        return cls(endpoints, outbox, None, start=start, clock=clock, fs=fs)._complete()

    @classmethod
    def try_open(
        cls,
        layout: IpcLayout,
        strategy_id: str,
        *,
        config: WriterConfig | None = None,
        start: StartMode | str = StartMode.RESUME_STRICT,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> Self | None:
        """Open both queues and mark READY; None, and nothing created, while there is no inbox."""
        endpoints = layout.orders().strategy_endpoints(strategy_id)
        inbox = cls._try_open_inbox(endpoints, start, clock, fs)
        if inbox is None:
            return None
        try:
            outbox = Queue.open_publisher(cls._outbox_dir(endpoints), config, clock=clock, fs=fs)
        except BaseException:
            inbox.close()
            raise
        return cls(endpoints, outbox, inbox, start=start, clock=clock, fs=fs)._complete()

    @property
    def strategy(self) -> str:
        """The id of the strategy this channel belongs to."""
        return self.endpoints.strategy

    def attach_inbox(self) -> bool:
        """Open the inbox unless that is done; False while the other side has not created it.

        Opens files: call it before the hot loop or while nothing else is to be done.
        """
        if self._closed:
            raise Closed(f"the channel of strategy {self.strategy!r} was closed; open a new one")
        if self.inbox is None:
            self.inbox = self._try_open_inbox(self.endpoints, self._start, self._clock, self._fs)
        return self.inbox is not None

    def commit(self, durable: bool = True) -> None:
        """Commit the inbox after the last message received, if it is attached."""
        if self.inbox is not None:
            self.inbox.commit(durable)

    def heartbeat(self) -> None:
        """Show that this side is alive, as writer of its outbox and as reader of its inbox."""
        self.outbox.heartbeat()
        if self.inbox is not None:
            self.inbox.heartbeat()

    def close(self) -> None:
        """Withdraw READY and close both queues. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            # Before the writer lock is given up: afterwards the marker may be a successor's.
            clear_ready(self._outbox_dir(self.endpoints), fs=self._fs)
        finally:
            self._close_queues()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    @abstractmethod
    def _outbox_dir(endpoints: StrategyEndpoints) -> Path:
        """Name the queue this side writes."""

    @staticmethod
    @abstractmethod
    def _inbox_dir(endpoints: StrategyEndpoints) -> Path:
        """Name the queue this side reads."""

    @staticmethod
    @abstractmethod
    def _reader_name(endpoints: StrategyEndpoints) -> str:
        """Name this side's reader of its inbox."""

    @classmethod
    def _try_open_inbox(
        cls, endpoints: StrategyEndpoints, start: StartMode | str, clock: Clock | None, fs: Fs | None
    ) -> QueueReader | None:
        return Queue.try_open_subscriber(
            cls._inbox_dir(endpoints), cls._reader_name(endpoints), start, clock=clock, fs=fs
        )

    def _complete(self) -> Self:
        """Attach the inbox if possible and announce the outbox; on failure leave nothing open."""
        try:
            self.attach_inbox()
            mark_ready(self._outbox_dir(self.endpoints), fs=self._fs)
        except BaseException:
            self._closed = True
            self._close_queues()
            raise
        return self

    def _close_queues(self) -> None:
        try:
            self.outbox.close()
        finally:
            if self.inbox is not None:
                self.inbox.close()

    def _next_of_type(self, type_id: int) -> MessageView | None:
        if self.inbox is None:
            return None
        while (message := self.inbox.next()) is not None:
            if message.type_id == type_id:
                return message
            self.skipped += 1
        return None


class StrategyChannel(OrderChannel):
    """The strategy's side: sends orders, receives fills. Its reader bears the strategy's id."""

    def send_order(self, payload: Buffer, timestamp_ns: int | None = None) -> int:
        """Append an order to `orders_out` and return its sequence number."""
        return self.outbox.append(ORDER_TYPE_ID, payload, timestamp_ns)

    def next_fill(self) -> MessageView | None:
        """Return the next fill, None if there is none yet or the router has not appeared yet."""
        return self._next_of_type(FILL_TYPE_ID)

    @staticmethod
    def _outbox_dir(endpoints: StrategyEndpoints) -> Path:
        return endpoints.orders_out

    @staticmethod
    def _inbox_dir(endpoints: StrategyEndpoints) -> Path:
        return endpoints.orders_in

    @staticmethod
    def _reader_name(endpoints: StrategyEndpoints) -> str:
        return endpoints.strategy


class RouterChannel(OrderChannel):
    """The router's side towards one strategy: receives orders, sends fills."""

    def send_fill(self, payload: Buffer, timestamp_ns: int | None = None) -> int:
        """Append a fill to `orders_in` and return its sequence number."""
        return self.outbox.append(FILL_TYPE_ID, payload, timestamp_ns)

    def next_order(self) -> MessageView | None:
        """Return the next order, None if there is none yet or the strategy has not appeared yet."""
        return self._next_of_type(ORDER_TYPE_ID)

    @staticmethod
    def _outbox_dir(endpoints: StrategyEndpoints) -> Path:
        return endpoints.orders_in

    @staticmethod
    def _inbox_dir(endpoints: StrategyEndpoints) -> Path:
        return endpoints.orders_out

    @staticmethod
    def _reader_name(endpoints: StrategyEndpoints) -> str:
        return ROUTER_READER
