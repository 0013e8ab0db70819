"""A router whose source has a record that cannot be read: it stops there, and everyone can see it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from everlog.topics.routing.definitions import Guarantee, RouterConfig
from everlog.topics.storage.failures import CURRENT_NS
from tests.support.engines import EngineHarness, record_of

BAD = 7


def damaged(root: Path, **options: object) -> EngineHarness:
    """Ten records in segments, the seventh with a flipped bit, and a router that copies them."""
    harness = EngineHarness(root, segment_max_events=20)
    harness.put("s", durability="fsync")
    harness.append("s", *(record_of(f"value {number}", tag="x") for number in range(1, 11)))
    harness.checkpoint(2)
    harness.restart()
    topic_id = harness.engine._core.topics["s"].topic_id
    (path,) = (harness.data_dir / "topics" / f"{topic_id:08X}").glob("*.data")
    content = bytearray(path.read_bytes())
    content[content.index(f"value {BAD}".encode())] ^= 1
    path.write_bytes(content)
    harness.restart()
    harness.put("d", durability="disk")
    config = RouterConfig(source="s", dest="d", **options)  # type: ignore[arg-type]
    harness.wait_for(harness.engine.put_router("r", config).commit)
    rewind(harness)
    return harness


def rewind(harness: EngineHarness) -> None:
    """Let the router begin with the first record."""
    core = harness.engine._core
    router = core.routers.by_name["r"]
    router.cursor = router.committed_cursor = 0
    core.totals.unforwarded[router.source.topic_id] = router.source


def turns(harness: EngineHarness, count: int) -> None:
    for _ in range(count):
        harness.advance_ms(100)
        harness.engine.forward_turn()
        harness.engine.write()
        harness.engine.poll()


@pytest.mark.parametrize("options", [{}, {"filter": "x"}, {"filter": ["data", "Ne", "other"]}])
@pytest.mark.parametrize("guarantee", Guarantee)
def test_a_router_copies_up_to_a_damaged_record_and_says_where_it_has_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, object], guarantee: Guarantee
) -> None:
    caplog.set_level(logging.ERROR, "everlog.topics")
    harness = damaged(tmp_path, guarantee=guarantee, **options)
    turns(harness, 3)
    head = harness.state("d").head_seq
    turns(harness, 30)
    assert harness.values("d") == [f"value {number}" for number in range(1, BAD)]
    assert harness.state("d").head_seq == head, "every try leaves seqs without a record"
    state = harness.engine.router("r")
    assert (state.paused, state.corrupt_seq, state.lag) == (True, BAD, 10 - BAD + 1)
    health = harness.engine.storage_health()
    assert (health.status, health.paused_routers) == ("damaged", 1)
    assert health.errors["corrupt_record"] == 1
    (line,) = [record.getMessage() for record in caplog.records if "cannot be copied" in record.getMessage()]
    assert "'r'" in line and str(BAD) in line and "'s'" in line


def test_once_the_damaged_record_is_deleted_the_router_goes_on(tmp_path: Path) -> None:
    harness = damaged(tmp_path)
    turns(harness, 3)
    harness.delete("s", before_seq=BAD + 1)
    assert not harness.engine.router("r").paused
    harness.append("s", "late")
    turns(harness, 3)
    assert harness.values("d") == [f"value {number}" for number in range(1, BAD)] + [
        "value 8",
        "value 9",
        "value 10",
        "late",
    ]
    harness.advance_ms(CURRENT_NS // 1_000_000)
    assert harness.engine.storage_health().status == "ok"
