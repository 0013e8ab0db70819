"""The sidecar pattern: a router whose hot thread never opens, closes or lists a file.

    python examples/sidecar.py

Three strategies, each a process of its own, send orders to one router and get a fill for each.
The last one starts when the others are already trading. The router has these threads:

    hot        owns the fan-in reader and all writers; obeys commands, reads orders, sends fills
    discovery  finds strategies, opens their channels, hands them to the hot thread, closes the
               ones it hands back, renews the leases, and does the logging
    prepare    one per writer, started by the queue: builds the next segment before it is needed
    retention  one per writer, started by the queue: deletes what every reader has committed

The example ends by itself after a few seconds and prints what happened.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from everlog.bus import (
    Added,
    HandOff,
    IpcLayout,
    Removed,
    RouterChannel,
    RouterDiscovery,
    StrategyChannel,
    write_lease,
)
from everlog.queue import FanInReader, WriterConfig

# Small segments, so that a short run rolls often enough to give every worker something to do.
CONFIG = WriterConfig(segment_size=64 * 1024)
ORDER = struct.Struct("<QQ48x")  # number, time of sending; 64 bytes as a real order might have
OUTSTANDING_MAX = 8  # orders a strategy sends before it waits for their fills
DEADLINE_S = 60.0


# --- The strategies (processes of their own) -------------------------------------------------


def run_strategy(root: str, name: str, orders: int) -> None:
    """Send `orders` orders, insist on a fill for each, in order, and report the round trip."""
    round_trips_ns: list[int] = []

    def take_fills(channel: StrategyChannel) -> None:
        while (fill := channel.next_fill()) is not None:
            number, sent_ns = ORDER.unpack(fill.payload)
            if number != len(round_trips_ns):
                sys.exit(f"{name}: fill {len(round_trips_ns)} expected, {number} received")
            round_trips_ns.append(time.monotonic_ns() - sent_ns)

    # `open` announces the strategy and does not wait for a router: either may start first.
    with StrategyChannel.open(IpcLayout(root), name, config=CONFIG) as channel:
        while not channel.attach_inbox():
            time.sleep(0.001)
        assert channel.inbox is not None
        for number in range(orders):
            channel.send_order(ORDER.pack(number, time.monotonic_ns()))
            while number + 1 - len(round_trips_ns) >= OUTSTANDING_MAX and channel.inbox.wait(DEADLINE_S):
                take_fills(channel)
            if number % 500 == 0:
                channel.commit(durable=False)  # lets retention delete what has been read
        while len(round_trips_ns) < orders and channel.inbox.wait(DEADLINE_S):
            take_fills(channel)
        channel.commit()
    if len(round_trips_ns) < orders:
        sys.exit(f"{name}: only {len(round_trips_ns)} of {orders} fills came within {DEADLINE_S:.0f} s")
    median_us = sorted(round_trips_ns)[orders // 2] / 1000
    print(f"  {name}: {orders} orders, {len(round_trips_ns)} fills, median round trip {median_us:.0f} us")


# --- The router: what the two threads say to each other --------------------------------------


@dataclass(frozen=True)
class Attach:
    """Sidecar to hot thread: here is a channel, ready to use; it is yours now."""

    channel: RouterChannel


@dataclass(frozen=True)
class Detach:
    """Sidecar to hot thread: this strategy has left; finish its orders and give it back."""

    strategy: str


class HotThread(threading.Thread):
    """Obey commands, read, process. In a real router this thread is pinned to a core."""

    def __init__(self) -> None:
        super().__init__(name="hot")
        self.commands: HandOff[Attach | Detach] = HandOff()
        self.returned: HandOff[RouterChannel] = HandOff()
        self.stopping = False
        self.fills: Counter[str] = Counter()
        self._channels: list[RouterChannel] = []
        self._leaving: set[str] = set()
        self._fan_in: FanInReader | None = None

    def run(self) -> None:
        """Loop until told to stop: commands first, then one message, or wait for one."""
        while not self.stopping:
            for command in self.commands.drain():
                self._obey(command)
            if self._fan_in is None:
                time.sleep(0.001)  # no strategy yet, so nothing to be late for
                continue
            message = self._fan_in.next()
            if message is None:
                self._idle()
                continue
            index, order = message
            channel = self._channels[index]
            channel.send_fill(order.payload, order.timestamp_ns)
            self.fills[channel.strategy] += 1
            if self.fills[channel.strategy] % 500 == 0:
                self._fan_in.commit(index, durable=False)

    def _obey(self, command: Attach | Detach) -> None:
        match command:
            case Attach(channel):
                assert channel.inbox is not None
                if self._fan_in is None:
                    self._fan_in = FanInReader([channel.inbox])
                else:
                    self._fan_in.add(channel.inbox)
                self._channels.append(channel)
            case Detach(strategy):
                self._leaving.add(strategy)

    def _idle(self) -> None:
        """Nothing to read from any writer: wait, or close the readers of writers that left."""
        assert self._fan_in is not None
        if not self._leaving:
            self._fan_in.wait(0.01)
            return
        self._fan_in.commit_all()
        # The fan-in holds no message back now, so it can be rebuilt without those who left.
        staying = [channel for channel in self._channels if channel.strategy not in self._leaving]
        for channel in self._channels:
            if channel.strategy in self._leaving:
                self.returned.offer(channel)
        self._leaving.clear()
        self._channels = staying
        readers = [channel.inbox for channel in staying if channel.inbox is not None]
        self._fan_in = FanInReader(readers) if readers else None


class DiscoverySidecar(threading.Thread):
    """Everything slow: find, open, close, renew leases, log."""

    def __init__(self, layout: IpcLayout, hot: HotThread) -> None:
        super().__init__(name="discovery")
        self.stopping = threading.Event()
        self.left: list[str] = []
        self.rolls: Counter[str] = Counter()
        self.segments: dict[str, int] = {}
        self._layout = layout
        self._hot = hot
        self._started_s = time.monotonic()

    def run(self) -> None:
        """Loop until told to stop: wait for a change on disk, follow it, tidy up."""
        with RouterDiscovery(self._layout) as discovery:
            while not self.stopping.is_set():
                discovery.wait(0.05)
                for event in discovery.poll():
                    self._follow(event)
                for channel in self._hot.returned.drain():
                    self._close(channel)
            if discovery.degraded_reason:
                self._log(f"inotify was not fully available: {discovery.degraded_reason}")

    def _follow(self, event: Added | Removed) -> None:
        command: Attach | Detach
        match event:
            case Added(strategy):
                channel = RouterChannel.try_open(self._layout, strategy, config=CONFIG)
                if channel is None:
                    raise RuntimeError(f"{strategy} was marked READY before its queue could be opened")
                write_lease(channel.endpoints.orders_in, os.getpid(), channel.outbox.epoch, time.time_ns())
                self._log(f"found {strategy}, opened both queues, handed them to the hot thread")
                command = Attach(channel)
            case Removed(strategy):
                self._log(f"{strategy} has left")
                command = Detach(strategy)
        while not self._hot.commands.offer(command):
            time.sleep(0.001)  # the hot thread is busy; the sidecar has time

    def _close(self, channel: RouterChannel) -> None:
        self.rolls[channel.strategy] = channel.outbox.metrics.rolls
        channel.close()
        self.segments[channel.strategy] = len(list(channel.endpoints.orders_in.glob("*.q")))
        self.left.append(channel.strategy)
        self._log(f"closed the queues of {channel.strategy}")

    def _log(self, text: str) -> None:
        print(f"  {time.monotonic() - self._started_s:5.2f} s  {text}", flush=True)


# --- The run ---------------------------------------------------------------------------------


def start_strategy(root: Path, name: str, orders: int) -> multiprocessing.process.BaseProcess:
    """Start one strategy; spawned, not forked, because this process has threads."""
    process = multiprocessing.get_context("spawn").Process(
        target=run_strategy, args=(str(root), name, orders), name=name
    )
    process.start()
    return process


def run(root: Path, orders: int) -> int:
    """Run the router and its strategies below `root`; return the number of lost messages."""
    hot = HotThread()
    sidecar = DiscoverySidecar(IpcLayout(root), hot)
    names = ["arbitrage", "maker", "latecomer"]
    processes = [start_strategy(root, name, orders) for name in names[:2]]
    hot.start()
    sidecar.start()
    deadline_s = time.monotonic() + DEADLINE_S
    try:
        while len(sidecar.left) < len(names) and time.monotonic() < deadline_s:
            if not (hot.is_alive() and sidecar.is_alive()):
                break  # its traceback says why
            if len(processes) == 2 and hot.fills:
                processes.append(start_strategy(root, names[2], orders))
            time.sleep(0.01)
    finally:
        hot.stopping = True
        hot.join()
        sidecar.stopping.set()
        sidecar.join()
        for process in processes:
            process.join(max(0.0, deadline_s - time.monotonic()))
            if process.is_alive():
                process.kill()
    print("\nstrategy    orders   fills   rolls   segments left")
    for name in names:
        segments = sidecar.segments.get(name, 0)
        print(f"{name:<11} {orders:6} {hot.fills[name]:7} {sidecar.rolls[name]:7} {segments:15}")
    failed = [process.name for process in processes if process.exitcode != 0]
    lost = sum(orders - hot.fills[name] for name in names)
    print(f"\n{len(names)} strategies, {len(names) * orders} orders, {lost} lost", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return lost + len(failed)


def main() -> int:
    """Run in a directory that is removed afterwards; 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description="A router with a hot thread and sidecar threads.")
    parser.add_argument("--orders", type=int, default=20000, help="orders per strategy (default 20000)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everlog-sidecar-") as directory:
        return 1 if run(Path(directory), arguments.orders) else 0


if __name__ == "__main__":
    sys.exit(main())
