"""Order channels: section 5.5, with both sides in one process and with real ones."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from everlog.bus import (
    Added,
    IpcLayout,
    OrderChannel,
    Removed,
    RouterChannel,
    RouterDiscovery,
    StrategyChannel,
    is_ready,
)
from everlog.errors import Closed, InvalidName, Io, ReaderAlreadyActive, WriterAlreadyActive
from everlog.fs import OsFs
from everlog.queue import DisconnectReason, Queue, WriterConfig
from tests.bus.conftest import Spawn

SMALL = WriterConfig(segment_size=4096)
SIDES: list[type[OrderChannel]] = [StrategyChannel, RouterChannel]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes whatever a test opens, in reverse order."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def strategy(layout: IpcLayout, stack: ExitStack) -> StrategyChannel:
    return stack.enter_context(StrategyChannel.open(layout, "arb", config=SMALL))


@pytest.fixture
def router(layout: IpcLayout, strategy: StrategyChannel, stack: ExitStack) -> RouterChannel:
    """The router's side, after which the strategy has attached its inbox as well."""
    channel = RouterChannel.try_open(layout, "arb", config=SMALL)
    assert channel is not None
    assert strategy.attach_inbox()
    return stack.enter_context(channel)


def test_an_order_goes_from_the_strategy_to_the_router_with_type_0x2000(
    strategy: StrategyChannel, router: RouterChannel
) -> None:
    assert strategy.send_order(b"buy", timestamp_ns=7) == 0
    order = router.next_order()
    assert order is not None
    assert (order.seq, order.timestamp_ns, order.type_id, bytes(order)) == (0, 7, 0x2000, b"buy")
    assert router.next_order() is None


def test_a_fill_goes_from_the_router_to_the_strategy_with_type_0x2001(
    strategy: StrategyChannel, router: RouterChannel
) -> None:
    assert router.send_fill(b"filled", timestamp_ns=8) == 0
    fill = strategy.next_fill()
    assert fill is not None
    assert (fill.seq, fill.timestamp_ns, fill.type_id, bytes(fill)) == (0, 8, 0x2001, b"filled")
    assert strategy.next_fill() is None


def test_the_pair_lies_in_orders_out_and_orders_in(
    layout: IpcLayout, strategy: StrategyChannel, router: RouterChannel
) -> None:
    endpoints = layout.orders().strategy_endpoints("arb")
    assert strategy.strategy == router.strategy == "arb"
    assert Path(strategy.outbox.path) == endpoints.orders_out
    assert Path(router.outbox.path) == endpoints.orders_in


def test_the_reader_of_the_router_is_named_router_and_that_of_the_strategy_by_its_id(
    layout: IpcLayout, strategy: StrategyChannel, router: RouterChannel
) -> None:
    strategy.commit()
    router.commit()
    endpoints = layout.orders().strategy_endpoints("arb")
    assert [path.name for path in (endpoints.orders_out / "readers").iterdir()] == ["router.meta"]
    assert [path.name for path in (endpoints.orders_in / "readers").iterdir()] == ["arb.meta"]


@pytest.mark.parametrize("side", SIDES)
def test_try_open_is_none_and_creates_nothing_while_the_inbox_does_not_exist(
    layout: IpcLayout, side: type[OrderChannel]
) -> None:
    assert side.try_open(layout, "arb", config=SMALL) is None
    assert list(layout.root.rglob("*")) == []


@pytest.mark.parametrize(("opener", "follower"), [SIDES, SIDES[::-1]])
def test_try_open_succeeds_once_the_other_side_has_opened(
    layout: IpcLayout, stack: ExitStack, opener: type[OrderChannel], follower: type[OrderChannel]
) -> None:
    first = stack.enter_context(opener.open(layout, "arb", config=SMALL))
    assert first.inbox is None
    second = follower.try_open(layout, "arb", config=SMALL)
    assert second is not None
    stack.enter_context(second)
    assert second.inbox is not None
    assert first.attach_inbox()


def exchange(strategy: StrategyChannel, router: RouterChannel) -> None:
    """Send one message each way and insist on both."""
    assert strategy.attach_inbox()
    assert router.attach_inbox()
    strategy.send_order(b"order")
    order = router.next_order()
    assert order is not None
    router.send_fill(bytes(order))
    fill = strategy.next_fill()
    assert fill is not None
    assert bytes(fill) == b"order"


@pytest.mark.parametrize("strategy_way", ["open", "try_open"])
@pytest.mark.parametrize("router_way", ["open", "try_open"])
@pytest.mark.parametrize("strategy_first", [True, False])
def test_the_sides_may_start_in_any_order_unless_both_only_try(
    layout: IpcLayout, stack: ExitStack, strategy_way: str, router_way: str, strategy_first: bool
) -> None:
    opened: dict[type[OrderChannel], OrderChannel] = {}
    turns = list(zip(SIDES, (strategy_way, router_way), strict=True))
    # Three rounds, as two processes that try again until they are open.
    for side, way in itertools.chain.from_iterable([turns if strategy_first else turns[::-1]] * 3):
        if side not in opened and (channel := getattr(side, way)(layout, "arb", config=SMALL)) is not None:
            opened[side] = stack.enter_context(channel)
    if strategy_way == router_way == "try_open":
        assert opened == {}
        assert list(layout.root.rglob("*")) == []
        return
    strategy, router = opened[StrategyChannel], opened[RouterChannel]
    assert isinstance(strategy, StrategyChannel)
    assert isinstance(router, RouterChannel)
    exchange(strategy, router)


@pytest.mark.parametrize("side", SIDES)
def test_what_was_sent_before_the_other_side_appeared_is_received(
    layout: IpcLayout, stack: ExitStack, side: type[OrderChannel]
) -> None:
    first = stack.enter_context(side.open(layout, "arb", config=SMALL))
    sent = [first.outbox.append(0x2000, b"%d" % number) for number in range(100)]
    other = SIDES[1 - SIDES.index(side)]
    second = stack.enter_context(other.open(layout, "arb", config=SMALL))
    assert second.inbox is not None
    assert [message.seq for message in second.inbox] == sent


def test_without_an_inbox_there_is_nothing_to_receive(strategy: StrategyChannel) -> None:
    assert strategy.inbox is None
    assert strategy.attach_inbox() is False
    assert strategy.next_fill() is None
    strategy.commit()
    strategy.heartbeat()


class ReadyWatcher(OsFs):
    """The real file system; tries to open the queue at the moment READY appears."""

    def __init__(self) -> None:
        self.could_open: list[bool] = []

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if target.endswith("/READY"):
            reader = Queue.try_open_subscriber(Path(target).parent, None)
            self.could_open.append(reader is not None)
            if reader is not None:
                reader.close()


def test_each_side_marks_its_outbox_ready_when_it_can_be_opened(layout: IpcLayout, stack: ExitStack) -> None:
    fs = ReadyWatcher()
    strategy = stack.enter_context(StrategyChannel.open(layout, "arb", config=SMALL, fs=fs))
    assert fs.could_open == [True]
    assert is_ready(strategy.endpoints.orders_out)
    assert not is_ready(strategy.endpoints.orders_in)
    router = RouterChannel.try_open(layout, "arb", config=SMALL, fs=fs)
    assert router is not None
    stack.enter_context(router)
    assert fs.could_open == [True, True]
    assert is_ready(strategy.endpoints.orders_in)


def test_a_clean_close_withdraws_ready_and_a_second_close_does_nothing(
    layout: IpcLayout, strategy: StrategyChannel, router: RouterChannel
) -> None:
    strategy.close()
    assert not is_ready(strategy.endpoints.orders_out)
    assert is_ready(strategy.endpoints.orders_in)
    with StrategyChannel.open(layout, "arb", config=SMALL):
        strategy.close()
        assert is_ready(strategy.endpoints.orders_out)


def test_a_closed_channel_cannot_attach_an_inbox(strategy: StrategyChannel) -> None:
    strategy.close()
    with pytest.raises(Closed, match="arb"):
        strategy.attach_inbox()


def test_messages_of_another_type_are_skipped_and_counted(
    strategy: StrategyChannel, router: RouterChannel
) -> None:
    for type_id in (0x1000, 0x2001, 0x2000, 0x2002):
        strategy.outbox.append(type_id, b"%x" % type_id)
    order = router.next_order()
    assert order is not None
    assert bytes(order) == b"2000"
    assert router.next_order() is None
    assert router.skipped == 3


@pytest.mark.parametrize("way", [StrategyChannel.open, StrategyChannel.try_open])
def test_a_second_strategy_of_the_same_id_is_refused_and_the_first_stays_ready(
    layout: IpcLayout, strategy: StrategyChannel, router: RouterChannel, way: Callable[..., object]
) -> None:
    with pytest.raises((WriterAlreadyActive, ReaderAlreadyActive)):
        way(layout, "arb", config=SMALL)
    assert is_ready(strategy.endpoints.orders_out)
    exchange(strategy, router)


def test_when_the_outbox_is_taken_try_open_gives_the_inbox_back(
    layout: IpcLayout, strategy: StrategyChannel
) -> None:
    with (
        Queue.open_publisher(strategy.endpoints.orders_in, SMALL),
        pytest.raises(WriterAlreadyActive) as caught,
    ):
        RouterChannel.try_open(layout, "arb", config=SMALL)
    # The traceback keeps the failed call's reader alive, so that only a real close frees its name.
    assert caught.tb is not None
    Queue.open_subscriber(strategy.endpoints.orders_out, "router").close()


def test_when_the_inbox_is_taken_open_gives_the_outbox_back_and_is_not_ready(
    layout: IpcLayout, strategy: StrategyChannel
) -> None:
    with (
        Queue.open_subscriber(strategy.endpoints.orders_out, "router"),
        pytest.raises(ReaderAlreadyActive),
    ):
        RouterChannel.open(layout, "arb", config=SMALL)
    assert not is_ready(strategy.endpoints.orders_in)
    Queue.open_publisher(strategy.endpoints.orders_in, SMALL).close()


class NoMarkers(OsFs):
    """The real file system, except that no marker can be put in place."""

    def rename(self, source: str, target: str) -> None:
        if target.endswith("/READY"):
            raise OSError(errno.ENOSPC, "No space left on device")
        super().rename(source, target)


def test_when_ready_cannot_be_marked_nothing_stays_open(layout: IpcLayout) -> None:
    with pytest.raises(Io) as caught:
        StrategyChannel.open(layout, "arb", config=SMALL, fs=NoMarkers())
    assert caught.value.errno == errno.ENOSPC
    StrategyChannel.open(layout, "arb", config=SMALL).close()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("way", ["open", "try_open"])
@pytest.mark.parametrize("strategy_id", ["", "..", "a/b", "a\\b", "a\0"])
def test_a_strategy_id_obeys_the_rules_for_path_components(
    layout: IpcLayout, side: type[OrderChannel], way: str, strategy_id: str
) -> None:
    with pytest.raises(InvalidName, match="strategy id"):
        getattr(side, way)(layout, strategy_id)
    assert list(layout.root.rglob("*")) == []


def test_each_side_resumes_where_it_committed(layout: IpcLayout) -> None:
    with StrategyChannel.open(layout, "arb", config=SMALL) as strategy:
        for number in range(4):
            strategy.send_order(b"%d" % number)
    for expected in (b"0", b"1", b"2"):
        with RouterChannel.open(layout, "arb", config=SMALL) as router:
            order = router.next_order()
            assert order is not None
            assert bytes(order) == expected
            router.commit()


def test_a_strategy_that_opens_is_discovered_and_one_that_closes_is_removed(
    layout: IpcLayout, stack: ExitStack
) -> None:
    discovery = stack.enter_context(RouterDiscovery(layout, rescan_interval_s=3600))
    assert discovery.poll() == []
    with StrategyChannel.open(layout, "arb", config=SMALL) as strategy:
        assert discovery.poll() == [Added("arb", strategy.endpoints.orders_out)]
    assert discovery.poll() == [Removed("arb")]


STRATEGY = """
import sys
from everlog.bus import IpcLayout, StrategyChannel
from everlog.queue import WriterConfig
layout, first, last = IpcLayout(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with StrategyChannel.open(layout, "arb", config=WriterConfig(segment_size=4096)) as channel:
    for number in range(first, last):
        channel.send_order(b"%d" % number)
    print("sent", flush=True)
    while not channel.attach_inbox():
        pass
    fills = 0
    while fills < last - first:
        assert channel.inbox.wait(30), f"only {fills} fills"
        while channel.next_fill() is not None:
            fills += 1
    channel.commit()
    print("filled", flush=True)
    sys.stdin.readline()
"""


def fill_orders(router: RouterChannel, count: int) -> list[bytes]:
    """Receive `count` orders, answer each, and return what they said."""
    received: list[bytes] = []
    assert router.inbox is not None
    while len(received) < count:
        assert router.inbox.wait(30), f"only {len(received)} of {count} orders came"
        while (order := router.next_order()) is not None:
            received.append(bytes(order))
            router.send_fill(bytes(order))
    router.commit()
    return received


def test_a_strategy_killed_by_sigkill_is_noticed_and_its_successor_goes_on_without_loss(
    layout: IpcLayout, spawn: Spawn, stack: ExitStack
) -> None:
    discovery = stack.enter_context(RouterDiscovery(layout, rescan_interval_s=3600))
    discovery.poll()
    first = spawn(STRATEGY, layout.root, 0, 200)
    assert first.read_line() == "sent"
    [added] = discovery.poll()
    assert isinstance(added, Added)
    channel = RouterChannel.try_open(layout, added.strategy, config=SMALL)
    assert channel is not None
    router = stack.enter_context(channel)
    assert router.inbox is not None
    assert fill_orders(router, 200) == [b"%d" % number for number in range(200)]
    assert first.read_line() == "filled"
    assert router.inbox.detect_disconnect() is None

    first.kill()
    # No time has to pass: with a time to live of 0, only the death of the owner counts.
    assert router.inbox.detect_disconnect(0) is DisconnectReason.WRITER_LOCK_LOST
    assert discovery.poll() == []  # READY outlives a crash: the queue can still be opened

    second = spawn(STRATEGY, layout.root, 200, 300)
    assert second.read_line() == "sent"
    assert fill_orders(router, 100) == [b"%d" % number for number in range(200, 300)]
    assert second.read_line() == "filled"
    assert router.inbox.detect_disconnect() is None
    second.release()
    assert second.process.returncode == 0
    assert discovery.poll() == [Removed("arb")]


def test_a_router_killed_by_sigkill_is_noticed_by_the_strategy(layout: IpcLayout, spawn: Spawn) -> None:
    source = (
        "import sys\n"
        "from everlog.bus import IpcLayout, RouterChannel\n"
        "channel = RouterChannel.try_open(IpcLayout(sys.argv[1]), 'arb')\n"
        "channel.send_fill(b'filled')\n"
        "print('open', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with StrategyChannel.open(layout, "arb", config=SMALL) as strategy:
        child = spawn(source, layout.root)
        assert child.read_line() == "open"
        assert strategy.attach_inbox()
        assert strategy.inbox is not None
        assert strategy.inbox.detect_disconnect() is None
        child.kill()
        assert strategy.inbox.detect_disconnect(0) is DisconnectReason.WRITER_LOCK_LOST
        fill = strategy.next_fill()
        assert fill is not None  # what it wrote before it died is not lost
        assert bytes(fill) == b"filled"
