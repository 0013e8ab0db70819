"""RouterDiscovery against a set: section 5.3 under any sequence of changes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from everlog.bus import Added, IpcLayout, Removed, RouterDiscovery, clear_ready, mark_ready
from everlog.clock import TestClock
from tests.support.effort import effort

NAMES = st.sampled_from(["a", "b", "c"])


class DiscoveryMachine(RuleBasedStateMachine):
    """Strategies come and go; each poll must report exactly the difference of two sets.

    The model holds the markers that exist (`ready`) and those last reported (`reported`). Time
    stands still except in `let_time_pass`, so inotify alone has to notice every change.
    """

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp())
        self.layout = IpcLayout(self.base / "bus")
        self.layout.root.mkdir()
        self.clock = TestClock()
        self.discovery = RouterDiscovery(self.layout, clock=self.clock)
        self.discovery.poll()
        self.ready: set[str] = set()
        self.reported: set[str] = set()

    def teardown(self) -> None:
        self.discovery.close()
        shutil.rmtree(self.base)

    def out(self, name: str) -> Path:
        return self.layout.orders().strategy_endpoints(name).orders_out

    @rule(name=NAMES)
    def make_strategy(self, name: str) -> None:
        self.out(name).parent.mkdir(parents=True, exist_ok=True)

    @rule(name=NAMES)
    def make_orders_out(self, name: str) -> None:
        self.out(name).mkdir(parents=True, exist_ok=True)

    @rule(name=NAMES)
    def set_marker(self, name: str) -> None:
        if (self.out(name) / "READY").is_dir():
            (self.out(name) / "READY").rmdir()
        self.out(name).mkdir(parents=True, exist_ok=True)
        mark_ready(self.out(name))
        self.ready.add(name)

    @rule(name=NAMES)
    def withdraw_marker(self, name: str) -> None:
        if name in self.ready:
            assert clear_ready(self.out(name))
            self.ready.discard(name)

    @rule(name=NAMES)
    def put_a_directory_in_place_of_the_marker(self, name: str) -> None:
        if self.out(name).is_dir() and name not in self.ready:
            (self.out(name) / "READY").mkdir(exist_ok=True)

    @rule(name=NAMES)
    def remove_strategy(self, name: str) -> None:
        shutil.rmtree(self.out(name).parent, ignore_errors=True)
        self.ready.discard(name)

    @rule(name=NAMES)
    def remove_orders_out(self, name: str) -> None:
        shutil.rmtree(self.out(name), ignore_errors=True)
        self.ready.discard(name)

    @rule(old=NAMES, new=NAMES)
    def rename_strategy(self, old: str, new: str) -> None:
        if self.out(old).parent.exists() and not self.out(new).parent.exists():
            self.out(old).parent.rename(self.out(new).parent)
            if old in self.ready:
                self.ready.discard(old)
                self.ready.add(new)

    @rule()
    @precondition(lambda self: self.layout.orders().root.exists())
    def remove_everything(self) -> None:
        shutil.rmtree(self.layout.orders().root)
        self.ready.clear()

    @rule()
    def let_time_pass(self) -> None:
        self.clock.advance_ns(500_000_000)

    @rule()
    def poll(self) -> None:
        expected: list[object] = [Removed(name) for name in sorted(self.reported - self.ready)]
        expected += [Added(name, self.out(name)) for name in sorted(self.ready - self.reported)]
        assert self.discovery.poll() == expected
        self.reported = set(self.ready)

    @invariant()
    def known_is_what_was_reported(self) -> None:
        assert self.discovery.known == self.reported


TestDiscoveryAgainstASet = DiscoveryMachine.TestCase
TestDiscoveryAgainstASet.settings = settings(max_examples=effort(60), stateful_step_count=30)
