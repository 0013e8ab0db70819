"""Topics at the ends of routers that lose a segment: they alone are not served; their routers are paused."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.errors import TopicDamaged
from everlog.topics.routing.definitions import Guarantee, RouterConfig
from tests.support.engines import EngineHarness


def engine_with(root: Path, *routers: str, **caps: int) -> EngineHarness:
    """An engine with routers between topics of one letter each, some of which hold so many records."""
    harness = EngineHarness(root, file_bytes=8192, segment_max_events=4)
    for name in sorted(set("".join(routers))):
        harness.put(name, durability="fsync", cap_records=caps.get(name, 0), discard="reject")
    for router in routers:
        config = RouterConfig(source=router[0], dest=router[1], guarantee=Guarantee.EXACTLY_ONCE)
        harness.wait_for(harness.engine.put_router(router, config).commit)
    return harness


def send(harness: EngineHarness, numbers: range) -> None:
    """Append to both sources, and see to it that everything is copied."""
    for source, dest in ("ac", "xy"):
        harness.append_each(source, numbers)
        assert harness.values(dest)[-len(numbers) :] == list(numbers)


def segments_of(harness: EngineHarness, name: str) -> list[Path]:
    """The data files of a topic, oldest first."""
    topic_id = harness.engine._core.topics[name].topic_id
    return sorted((harness.data_dir / "topics" / f"{topic_id:08X}").glob("*.data"))


def paused(harness: EngineHarness) -> list[str]:
    """The routers that copy nothing."""
    return [state.router for state in harness.engine.routers() if state.paused]


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    """Ten records that were copied from a over b to c, and ten from x to y."""
    harness = engine_with(tmp_path, "ab", "bc", "xy")
    send(harness, range(10))
    return harness


@pytest.mark.parametrize("ends", ["close", "kill"])
@pytest.mark.parametrize(
    ("name", "stopped"), [("a", ["ab"]), ("b", ["ab", "bc"]), ("c", ["bc"])], ids=["source", "both", "dest"]
)
def test_a_topic_of_routers_that_lost_a_segment_is_not_served_and_its_routers_are_paused(
    harness: EngineHarness, name: str, stopped: list[str], ends: str
) -> None:
    harness.checkpoint(2)
    send(harness, range(10, 13))
    path = segments_of(harness, name)[1]
    harness.engine.close() if ends == "close" else harness.engine.abandon()
    content = path.read_bytes()
    path.unlink()
    for again in (harness.open_with, harness.restart, harness.crash):
        again()
        assert paused(harness) == stopped
        health = harness.engine.storage_health()
        assert (health.status, health.damaged_topics, health.paused_routers) == ("damaged", 1, len(stopped))
        with pytest.raises(TopicDamaged):
            harness.diff(name)
        for other in set("abcxy") - {name}:
            assert harness.values(other)[:13] == list(range(13)), other
        harness.append("x", -1)
        assert harness.values("y") == harness.values("x")
        assert harness.engine.is_quiet, "a paused router has nothing to do"
    harness.append("b" if name == "a" else "a", "meanwhile")
    harness.checkpoint()
    harness.engine.close()
    path.write_bytes(content)
    harness.open_with()
    assert paused(harness) == []
    assert harness.values("c") == [*range(13), "meanwhile"], "with the file back, copying goes on"
    assert harness.gap("c") is None
    assert harness.values(name)[:13] == list(range(13))


def test_routers_at_a_damaged_topic_can_be_deleted_and_none_can_be_added(harness: EngineHarness) -> None:
    harness.checkpoint()
    path = segments_of(harness, "b")[0]
    harness.engine.close()
    path.unlink()
    harness.open_with()
    with pytest.raises(TopicDamaged):
        harness.engine.put_router("yb", RouterConfig(source="y", dest="b"))
    for router in ("ab", "bc"):
        harness.wait_for(harness.engine.delete_router(router).commit)
    assert harness.engine.storage_health().paused_routers == 0
    harness.crash()
    assert [state.router for state in harness.engine.routers()] == ["xy"]


def test_a_repair_brings_topics_of_routers_back_with_a_tombstone(harness: EngineHarness) -> None:
    harness.checkpoint()
    paths = [segments_of(harness, name)[0] for name in "ab"]
    harness.engine.close()
    for path in paths:
        path.unlink()
    harness.open_with(segment_max_events=4, on_damage="give_up")
    harness.restart(segment_max_events=4)
    assert paused(harness) == []
    for name in "ab":
        assert harness.gap(name) == (1, 4, "corrupt")
        assert harness.values(name) == list(range(4, 10))
    harness.append("a", 10)
    assert harness.values("c") == list(range(11)), "what was copied before is untouched, and copying goes on"


def test_copies_that_only_a_lost_segment_has_the_records_of_are_made_when_it_is_back(tmp_path: Path) -> None:
    """Until then nothing is taken out of the log that says which copies there were."""
    harness = engine_with(tmp_path, "sd", "de", d=1)
    harness.append("d", "full")
    harness.append_each("s", range(8))
    harness.checkpoint(2)
    harness.put("d", durability="fsync")
    before = {name: harness.items(name) for name in "de"}
    assert [item["data"] for item in before["e"]] == ["full", *range(8)]
    path = segments_of(harness, "s")[0]
    harness.engine.abandon()
    content = path.read_bytes()
    path.unlink()
    for again in (harness.open_with, harness.restart, harness.crash):
        again()
        health = harness.engine.storage_health()
        assert (health.damaged_topics, health.damage) == (3, {"segment": 1, "copies": 2})
        harness.append_each("other", range(3))
        with pytest.raises(TopicDamaged, match="restore the file"):
            harness.checkpoint()
    harness.engine.close()
    path.write_bytes(content)
    harness.open_with()
    assert {name: harness.items(name) for name in "de"} == before
    assert harness.values("other") == [*range(3)] * 3
    harness.checkpoint()


def test_a_repair_gives_up_copies_that_cannot_be_made(tmp_path: Path) -> None:
    harness = engine_with(tmp_path, "sd", d=1)
    harness.append("d", "full")
    harness.append_each("s", range(8))
    harness.checkpoint(2)
    harness.put("d", durability="fsync")
    assert harness.values("d") == ["full", *range(8)]
    path = segments_of(harness, "s")[0]
    harness.engine.abandon()
    path.unlink()
    harness.open_with(segment_max_events=4, on_damage="give_up")
    harness.restart(segment_max_events=4)
    assert harness.engine.storage_health().damaged_topics == 0
    assert harness.gap("s") == (1, 4, "corrupt")
    assert harness.gap("d", 1) == (2, 5, "source_trim")
    assert harness.values("d") == ["full", 4, 5, 6, 7]
