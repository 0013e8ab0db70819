"""Waiting until what can be read is synced, for every class."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.errors import Closed, TopicNotFound
from everlog.topics import Durability, Engine, NewRecord, TopicConfig
from tests.support.engines import open_engine


def engine_with(path: Path | None, durability: Durability) -> Engine:
    """An engine with one topic of this class and one record in it, everything synced."""
    engine = open_engine(path)
    engine.wait_for(engine.put_topic("t", TopicConfig(durability=durability)).commit)
    engine.wait_for(engine.append("t", [NewRecord(b"1")]).commit)
    engine.wait_for(engine.synced_commit("t"))
    return engine


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
def test_a_record_that_is_only_written_is_waited_for(tmp_path: Path, durability: Durability) -> None:
    with engine_with(tmp_path, durability) as engine:
        assert engine.synced_commit("t").done
        appended = engine.append("t", [NewRecord(b"2")])
        engine.write()
        assert appended.commit.done and engine.state("t").head_seq == 2
        commit = engine.synced_commit("t")
        assert not commit.done
        engine.wait_for(commit)
        assert engine.synced_commit("t").done


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.EPHEMERAL])
def test_a_class_without_such_records_has_nothing_to_wait_for(tmp_path: Path, durability: Durability) -> None:
    with engine_with(tmp_path, durability) as engine:
        engine.append("t", [NewRecord(b"2")])
        engine.write()
        assert engine.synced_commit("t").done


def test_nothing_is_waited_for_in_memory() -> None:
    with engine_with(None, Durability.DISK) as engine:
        engine.append("t", [NewRecord(b"2")])
        assert engine.synced_commit("t").done


def test_an_absent_topic_or_a_closed_engine_is_an_error() -> None:
    engine = engine_with(None, Durability.DISK)
    with pytest.raises(TopicNotFound):
        engine.synced_commit("absent")
    engine.close()
    with pytest.raises(Closed):
        engine.synced_commit("t")
