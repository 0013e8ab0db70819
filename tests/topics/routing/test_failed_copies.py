"""Copies whose write failed: the router goes back, and every record is copied in the end."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from everlog.topics.routing.definitions import Guarantee, RouterConfig
from tests.support.engines import EngineHarness, records


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    """A router that could not write its copies of two records."""
    harness = EngineHarness(tmp_path)
    for name in ("s", "d"):
        harness.put(name, durability="disk")
    harness.wait_for(harness.engine.put_router("r", RouterConfig(source="s", dest="d")).commit)
    harness.append("s", 0)
    assert harness.values("d") == [0]
    harness.engine.append("s", records([1, 2]))
    harness.engine.write()
    harness.advance_ms(100)
    harness.disk.fail_when("pwrite", errno.ENOSPC)
    assert harness.engine.forward_turn() == 2
    assert harness.engine.storage_health().errors == {"write": 1}
    return harness


def test_copies_that_could_not_be_written_are_made_again(harness: EngineHarness) -> None:
    assert harness.values("d") == [0, 1, 2]
    assert harness.engine.router("r").forwarded_total == 3
    harness.crash()
    assert harness.values("d") == [0, 1, 2]


def test_a_router_that_is_changed_meanwhile_has_not_copied_them(harness: EngineHarness) -> None:
    """The new definition is logged with the cursor, which counts what is committed."""
    changed = RouterConfig(source="s", dest="d", guarantee=Guarantee.EXACTLY_ONCE)
    harness.engine.put_router("r", changed)
    harness.engine.write()
    harness.crash()
    assert harness.values("d") == [0, 1, 2]
