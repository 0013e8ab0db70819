"""The state of a bridge survives a torn write, and is never read as that of another bridge."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.bridge.state import (
    VERSION,
    Plan,
    QueuePlan,
    QueueToTopicState,
    StateFile,
    TopicToQueueState,
    bridge_names,
    check_name,
    load_any,
    new_identity,
    state_path,
)
from everlog.errors import CorruptMetadata, InvalidConfig, InvalidName
from everlog.fs import OsFs


def out_of(folder: Path, name: str = "b") -> StateFile[QueueToTopicState]:
    """The file of a bridge out of a queue."""
    return StateFile(OsFs(), str(folder), name, QueueToTopicState)


def fresh(name: str = "b") -> QueueToTopicState:
    """A bridge that never sent anything."""
    return QueueToTopicState(VERSION, name, new_identity(), "t")


def planned(state: QueueToTopicState, number: int) -> QueueToTopicState:
    """The state with its plan number so-and-so."""
    plan = Plan(number * 10, number * 10 + 9, 10, (0, 64 * number), 5, 1000 + number)
    return msgspec.structs.replace(state, generation=state.generation + 1, plan=plan)


@given(cut=st.integers(0, 1023), number=st.integers(1, 4))
def test_a_store_that_was_cut_off_leaves_the_one_before(
    tmp_path_factory: pytest.TempPathFactory, cut: int, number: int
) -> None:
    folder = tmp_path_factory.mktemp("state")
    file = out_of(folder)
    states = [file.create(fresh())]
    for step in range(number):
        states.append(planned(states[-1], step))
        file.store(states[-1])
    file.close()
    path = Path(state_path(str(folder), "b"))
    data = bytearray(path.read_bytes())
    start = states[-1].generation % 2 * QueueToTopicState.SLOT_BYTES
    length = 8 + len(msgspec.json.encode(states[-1]))
    torn_from = start + cut % length
    data[torn_from : start + length] = bytes(byte ^ 0xFF for byte in data[torn_from : start + length])
    path.write_bytes(data)
    assert out_of(folder).load() == states[-2]


def test_what_was_stored_last_is_loaded(tmp_path: Path) -> None:
    file = out_of(tmp_path)
    assert file.load() is None
    state = file.create(fresh())
    for step in range(5):
        state = planned(state, step)
        file.store(state)
        assert out_of(tmp_path).load() == state
    file.close()


def test_two_that_begin_together_have_one_identity(tmp_path: Path) -> None:
    first = out_of(tmp_path).create(fresh())
    assert out_of(tmp_path).create(fresh()) == first
    assert [path.name for path in (tmp_path / "bridges").iterdir()] == ["b.state"]


def test_damage_and_other_versions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bridges").mkdir()
    Path(state_path(str(tmp_path), "b")).write_bytes(b"\xff" * 2048)
    with pytest.raises(CorruptMetadata, match="no valid state"):
        out_of(tmp_path).load()
    with pytest.raises(CorruptMetadata, match="version 9"):
        out_of(tmp_path, "c").create(msgspec.structs.replace(fresh("c"), version=9))


def test_a_state_of_either_direction_is_found(tmp_path: Path) -> None:
    runs = [(seq, 1) for seq in range(2, 2000, 2)]
    back = TopicToQueueState(VERSION, "in", new_identity(), "t", QueuePlan(0, len(runs), 0, 1999, runs))
    StateFile(OsFs(), str(tmp_path), "in", TopicToQueueState).create(back)
    out = out_of(tmp_path, "out").create(fresh("out"))
    assert load_any(OsFs(), str(tmp_path), "in") == back
    assert load_any(OsFs(), str(tmp_path), "out") == out
    assert load_any(OsFs(), str(tmp_path), "none") is None
    assert bridge_names(OsFs(), str(tmp_path)) == ["in", "out"]
    assert bridge_names(OsFs(), str(tmp_path / "nowhere")) == []


@pytest.mark.parametrize("name", ["", ".", "a/b", "a\x00", "é" * 33, "a\n"])
def test_names_that_make_no_file_name_are_refused(name: str) -> None:
    with pytest.raises((InvalidName, InvalidConfig)):
        check_name(name)
