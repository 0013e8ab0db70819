"""The doctor: finds every listed problem on a real queue, and leaves the tree as it was, to the byte."""

import ast
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everlog.queue.doctor
from everlog.bus.markers import mark_ready
from everlog.clock import NS_PER_S, SystemClock, TestClock
from everlog.errors import CorruptMetadata, Io
from everlog.fault_fs import FaultFs
from everlog.fs import OsFs
from everlog.queue import Queue, layout
from everlog.queue.doctor import (
    MAX_READER_LAG_BYTES,
    READER_TTL_NS,
    QueueFindings,
    Severity,
    examine,
    examine_queue,
    retention_candidates,
)
from everlog.queue.inspect import inspect_queue
from everlog.queue.segment import list_segments, remove_segment
from tests.support.command_lines import Holder, holding
from tests.support.effort import effort
from tests.support.files import hooked_fs
from tests.support.processes import eventually
from tests.support.queues import (
    RECORDS_PER_SEGMENT,
    SMALL,
    fabricate_far_behind,
    name_dead_writer,
    overwrite,
    snapshot,
    write_messages,
)

HEAD = 4
"""The head segment of the sample queue; segments 0 to 3 are full and sealed."""

SLEEPER = """
import sys
from everlog.queue import Queue
reader = Queue.open_subscriber(sys.argv[1], None, "latest")
print("open", flush=True)
reader.wait()
"""

WRITER = """
import sys
from everlog.queue import Queue
writer = Queue.open_publisher(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def live_writer(queue: Path) -> Iterator[Holder]:
    """Run a writer in another process; yields when it has prepared its next segment."""
    with holding(WRITER, str(queue)) as writer:
        assert writer.read_line() == "open"
        prepared = queue / layout.segment_name(HEAD + 1)
        eventually("the next segment is prepared", prepared.exists)
        yield writer


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy queue of five segments without a lock record, to be copied and damaged."""
    path = tmp_path_factory.mktemp("sample") / "q"
    write_messages(path, HEAD * RECORDS_PER_SEGMENT + 2)
    (path / layout.LOCK_FILE).unlink()
    return path


@pytest.fixture
def queue(sample: Path, tmp_path: Path) -> Path:
    """A copy of the sample, in a root of its own."""
    return Path(shutil.copytree(sample, tmp_path / "root/q"))


def examined(root: Path) -> list[QueueFindings]:
    """Examine and prove that nothing was changed."""
    before = snapshot(root)
    results = examine(OsFs(), SystemClock(), str(root))
    assert snapshot(root) == before
    return results


def codes(root: Path) -> dict[str, Severity]:
    """The findings of the only queue below root: code to severity."""
    (result,) = examined(root)
    return {finding.code: finding.severity for finding in result.findings}


# -- one injection for every code ------------------------------------------------------------


def break_control(queue: Path) -> None:
    overwrite(queue / layout.CONTROL_FILE, layout.CTRL_INIT_STATE, struct.pack("<I", 1))


def tear_control(queue: Path) -> None:
    generation = (queue / layout.CONTROL_FILE).read_bytes()[layout.CTRL_SEGMENT_GEN]
    overwrite(queue / layout.CONTROL_FILE, layout.CTRL_SEGMENT_GEN, bytes([generation | 1]))


def lose_segment(queue: Path) -> None:
    remove_segment(OsFs(), str(queue), 2)


def damage_segment(queue: Path) -> None:
    overwrite(queue / layout.segment_name(1), 0, b"JUNK")


def unseal(segment_id: int) -> Callable[[Path], None]:
    def inject(queue: Path) -> None:
        overwrite(queue / layout.segment_name(segment_id), layout.SEG_FLAGS, bytes(4))

    return inject


def damage_reader_meta(queue: Path) -> None:
    Queue.open_subscriber(queue, "hurt").close()
    os.truncate(queue / "readers/hurt.meta", 33)


def expire_reader(queue: Path) -> None:
    long_ago = TestClock(SystemClock().wall_ns() - READER_TTL_NS - NS_PER_S)
    Queue.open_subscriber(queue, "gone", clock=long_ago).close()


def lag(queue: Path) -> None:
    shutil.rmtree(queue)
    fabricate_far_behind(queue, MAX_READER_LAG_BYTES + 64)


def overtake_reader(queue: Path) -> None:
    Queue.open_subscriber(queue, "late").close()
    remove_segment(OsFs(), str(queue), 0)


def kill_sleeper(queue: Path) -> None:
    with holding(SLEEPER, str(queue)) as sleeper:
        assert sleeper.read_line() == "open"
        control = queue / layout.CONTROL_FILE
        eventually("the reader sleeps", lambda: any(control.read_bytes()[layout.CTRL_WAITERS_PENDING :][:4]))
        sleeper.kill()


def leave_temp(queue: Path) -> None:
    (queue / f"{layout.segment_name(HEAD + 1)}.tmp").write_bytes(b"half")


def orphan_index(queue: Path) -> None:
    (queue / layout.seek_index_name(77)).touch()


def kill_ready_writer(queue: Path) -> None:
    with live_writer(queue) as writer:
        mark_ready(queue)
        writer.kill()


def hide_lock(queue: Path) -> None:
    os.mkfifo(queue / layout.LOCK_FILE)


def lose_control(queue: Path) -> None:
    (queue / layout.CONTROL_FILE).unlink()


def set_head_back(queue: Path) -> None:
    head = layout.CTRL_CURRENT_SEGMENT
    overwrite(queue / layout.CONTROL_FILE, head, (HEAD - 1).to_bytes(4, "little"))


INJECTIONS: dict[str, tuple[Callable[[Path], object], Severity]] = {
    "control_error": (break_control, Severity.ERROR),
    "control_missing": (lose_control, Severity.ERROR),
    "control_torn": (tear_control, Severity.WARNING),
    "head_behind": (set_head_back, Severity.ERROR),
    "segment_missing": (lose_segment, Severity.ERROR),
    "segment_damaged": (damage_segment, Severity.ERROR),
    "segment_unsealed": (unseal(1), Severity.ERROR),
    "reader_meta_unreadable": (damage_reader_meta, Severity.ERROR),
    "reader_expired": (expire_reader, Severity.WARNING),
    "reader_lagging": (lag, Severity.WARNING),
    "reader_segment_missing": (overtake_reader, Severity.WARNING),
    "waiters_leaked": (kill_sleeper, Severity.WARNING),
    "leftover_temp": (leave_temp, Severity.WARNING),
    "orphan_index": (orphan_index, Severity.WARNING),
    "ready_without_writer": (kill_ready_writer, Severity.WARNING),
    "stale_lock": (name_dead_writer, Severity.INFO),
    "file_unreadable": (hide_lock, Severity.ERROR),
}


def all_codes() -> set[str]:
    """Every code that the source of the doctor can produce."""
    tree = ast.parse(Path(everlog.queue.doctor.__file__).read_text(encoding="utf-8"))
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    made = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Finding")
    return {call.args[0].value for call in made if isinstance(call.args[0], ast.Constant)}  # type: ignore[misc]


def test_every_code_is_injected_here_and_explained_in_the_module() -> None:
    assert all_codes() == {*INJECTIONS, "directory_unreadable"}
    explained = re.findall(r"^    (\w+)  +\w", everlog.queue.doctor.__doc__ or "", re.MULTILINE)
    assert set(explained) == all_codes()


@pytest.mark.parametrize("code", INJECTIONS)
def test_the_problem_is_found_and_nothing_is_changed(queue: Path, code: str) -> None:
    inject, severity = INJECTIONS[code]
    inject(queue)
    found = codes(queue.parent)
    assert found.pop(code) is severity
    assert set(found) == ({"stale_lock"} if code == "ready_without_writer" else set())


def test_every_finding_says_what_to_do(queue: Path) -> None:
    for inject, _ in list(INJECTIONS.values()):
        alone = (lag, kill_sleeper, kill_ready_writer, name_dead_writer, break_control, lose_control)
        if inject not in (*alone, set_head_back):
            inject(queue)
    (result,) = examined(queue.parent)
    assert len(result.findings) >= 8
    for finding in result.findings:
        assert re.search(r"; |: its|restore|remove|start|let|look again", finding.message), finding


def test_a_healthy_queue_has_no_findings(queue: Path) -> None:
    with live_writer(queue):
        mark_ready(queue)
        with Queue.open_subscriber(queue, "reader"):
            results = examine(OsFs(), SystemClock(), str(queue.parent))
    assert [result.findings for result in results] == [[]]
    assert results[0].lock is not None
    assert results[0].lock.alive


# -- details ---------------------------------------------------------------------------------


def test_a_half_initialised_control_block_is_reported_at_once_and_the_others_are_examined(
    queue: Path,
) -> None:
    class NoWaiting(SystemClock):
        def sleep_ns(self, duration_ns: int) -> None:
            raise AssertionError("the doctor must not sleep")

    other = Path(shutil.copytree(queue, queue.parent / "other"))
    break_control(other)
    orphan_index(other)
    leave_temp(other)
    damage_reader_meta(queue)
    results = examine(OsFs(), NoWaiting(), str(queue.parent))
    assert [result.path for result in results] == [str(other), str(queue)]
    assert isinstance(results[0].control_error, CorruptMetadata)
    assert {finding.code for finding in results[0].findings} == {
        "control_error",
        "orphan_index",
        "leftover_temp",
    }
    assert [finding.code for finding in results[1].findings] == ["reader_meta_unreadable"]


def test_the_segment_before_the_head_is_only_a_warning_because_the_next_writer_seals_it(
    queue: Path,
) -> None:
    unseal(HEAD - 1)(queue)
    assert codes(queue.parent) == {"segment_unsealed": Severity.WARNING}
    Queue.open_publisher(queue, retention=False).close()
    name_dead_writer(queue)
    assert codes(queue.parent) == {"stale_lock": Severity.INFO}


def test_a_hole_is_reported_once_as_a_range(queue: Path) -> None:
    for segment_id in (1, 2):
        (queue / layout.segment_name(segment_id)).unlink()
        (queue / layout.seek_index_name(segment_id)).unlink(missing_ok=True)
    (result,) = examined(queue.parent)
    assert [finding.code for finding in result.findings] == ["segment_missing"]
    assert "000000001.q to 000000002.q is missing" in result.findings[0].message


def test_a_head_billions_of_segments_away_is_one_finding(queue: Path) -> None:
    overwrite(queue / layout.CONTROL_FILE, layout.CTRL_CURRENT_SEGMENT, struct.pack("<I", 2**32 - 1))
    (result,) = examined(queue.parent)
    assert [finding.code for finding in result.findings].count("segment_missing") == 1


def test_deleted_old_segments_are_no_hole(queue: Path) -> None:
    for segment_id in (0, 1):
        remove_segment(OsFs(), str(queue), segment_id)
    assert codes(queue.parent) == {}


def test_a_missing_head_is_an_error_unless_the_queue_was_never_finished(queue: Path) -> None:
    (queue / layout.segment_name(HEAD)).unlink()
    (queue / layout.seek_index_name(HEAD)).unlink(missing_ok=True)
    assert codes(queue.parent) == {"segment_missing": Severity.ERROR}
    for name in os.listdir(queue):
        if name != layout.CONTROL_FILE:
            (queue / name).unlink()
    assert codes(queue.parent) == {"segment_missing": Severity.ERROR}
    overwrite(queue / layout.CONTROL_FILE, layout.CTRL_CURRENT_SEGMENT, bytes(4))
    overwrite(queue / layout.CONTROL_FILE, layout.CTRL_WRITE_OFFSET, struct.pack("<Q", 64))
    assert codes(queue.parent) == {"segment_missing": Severity.WARNING}


def test_a_lag_equal_to_the_limit_still_counts(queue: Path) -> None:
    shutil.rmtree(queue)
    fabricate_far_behind(queue, MAX_READER_LAG_BYTES)
    (result,) = examined(queue.parent)
    assert "reader_lagging" not in {finding.code for finding in result.findings}
    assert result.candidates == []


def test_a_reader_without_heartbeat_never_expires(queue: Path) -> None:
    (queue / "readers").mkdir()
    (queue / "readers/legacy.meta").write_bytes(struct.pack("<QQ", 0, 64))
    assert codes(queue.parent) == {}


def test_a_reader_waiting_above_the_head_stands_on_solid_ground(queue: Path) -> None:
    (queue / "readers").mkdir()
    (queue / "readers/archiver.meta").write_bytes(struct.pack("<QQ", HEAD + 1, 64))
    assert codes(queue.parent) == {}


def test_a_live_reader_asleep_is_no_leak(queue: Path) -> None:
    named = SLEEPER.replace("None", "'napper'")
    with holding(named, str(queue)) as sleeper:
        assert sleeper.read_line() == "open"
        control = queue / layout.CONTROL_FILE
        eventually("the reader sleeps", lambda: any(control.read_bytes()[layout.CTRL_WAITERS_PENDING :][:4]))
        found = {finding.code for finding in examine_queue(OsFs(), SystemClock(), str(queue)).findings}
        sleeper.kill()
    assert "waiters_leaked" not in found


@pytest.mark.parametrize(
    "name", ["index.meta.tmp", "000000002.idx.tmp", "READY.tmp", "control.meta.tmp", "readers/x.meta.tmp"]
)
def test_temporary_files_of_every_kind_are_found(queue: Path, name: str) -> None:
    Queue.open_subscriber(queue, "x").close()
    (queue / name).touch()
    (result,) = examined(queue.parent)
    assert [(finding.code, finding.subject) for finding in result.findings] == [("leftover_temp", name)]


def test_a_segment_being_prepared_by_a_live_writer_is_only_mentioned(queue: Path) -> None:
    with live_writer(queue):
        leave_temp(queue)
        (result,) = examine(OsFs(), SystemClock(), str(queue.parent))
    assert [(finding.code, finding.severity) for finding in result.findings] == [
        ("leftover_temp", Severity.INFO)
    ]


def test_ready_must_be_a_regular_file_to_count(queue: Path) -> None:
    (queue / "READY").mkdir()
    assert codes(queue.parent) == {}


def test_what_a_second_look_does_not_confirm_is_not_reported(queue: Path) -> None:
    """A roll seals its segment a moment after publishing the head; that moment is no problem."""
    unseal(HEAD - 1)(queue)
    leave_temp(queue)
    looks: list[str] = []

    def before(operation: str, arguments: tuple[object, ...]) -> None:
        if operation == "open" and str(arguments[0]).endswith(layout.CONTROL_FILE):
            looks.append("look")
            if len(looks) == 2:
                sealed = struct.pack("<I", layout.SEG_FLAG_SEALED)
                overwrite(queue / layout.segment_name(HEAD - 1), layout.SEG_FLAGS, sealed)
                (queue / f"{layout.segment_name(HEAD + 1)}.tmp").unlink()
                orphan_index(queue)  # seen once as well, by the second look

    result = examine_queue(hooked_fs(before), SystemClock(), str(queue))
    assert len(looks) == 2
    assert result.findings == []


def test_a_queue_that_vanishes_meanwhile_is_left_out(queue: Path) -> None:
    def before(operation: str, arguments: tuple[object, ...]) -> None:
        if operation == "open":
            shutil.rmtree(queue, ignore_errors=True)

    assert examine(hooked_fs(before), SystemClock(), str(queue.parent)) == []


def test_a_directory_that_cannot_be_listed_is_reported_and_the_rest_examined(queue: Path) -> None:
    closed = queue.parent / "closed"
    closed.mkdir()
    fs = FaultFs(str(queue.parent))
    fs.fail_when(lambda call: call.name == "listdir" and call.path.endswith("/closed"), 13, times=2)
    results = examine(fs, SystemClock(), str(queue.parent))
    assert [result.path for result in results] == [str(closed), str(queue)]
    assert [finding.code for finding in results[0].findings] == ["directory_unreadable"]
    assert isinstance(results[0].control_error, Io)


def test_a_queue_that_becomes_unreadable_is_reported_and_the_rest_examined(queue: Path) -> None:
    other = Path(shutil.copytree(queue, queue.parent / "other"))
    fs = FaultFs(str(queue.parent))
    listings = 0

    def second_listing(call: object) -> bool:
        nonlocal listings
        listings += getattr(call, "name", "") == "listdir" and getattr(call, "path", "").endswith("/other")
        return listings == 2

    fs.fail_when(second_listing, 5)
    results = examine(fs, SystemClock(), str(queue.parent))
    assert [result.path for result in results] == [str(other), str(queue)]
    assert [finding.code for finding in results[0].findings] == ["directory_unreadable"]


def test_a_root_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Io, match="cannot look for queues"):
        examine(OsFs(), SystemClock(), str(tmp_path / "nothing"))


# -- retention candidates --------------------------------------------------------------------


def test_without_a_readers_directory_nothing_may_go(queue: Path) -> None:
    assert examined(queue.parent)[0].candidates == []


def test_without_a_counting_reader_everything_below_the_head_may_go(queue: Path) -> None:
    expire_reader(queue)
    assert examined(queue.parent)[0].candidates == [0, 1, 2, 3]


def test_a_damaged_reader_meta_holds_back_everything(queue: Path) -> None:
    expire_reader(queue)
    damage_reader_meta(queue)
    assert examined(queue.parent)[0].candidates == []


def test_the_newest_segment_with_a_record_stays_even_if_it_lies_below_the_head(tmp_path: Path) -> None:
    path = tmp_path / "q"
    write_messages(path, RECORDS_PER_SEGMENT)
    with Queue.open_publisher(path, retention=False) as writer, pytest.raises(ZeroDivisionError):
        writer.append_in_place(1, 8, lambda view: 1 // 0)
    expire_reader(path)
    info = inspect_queue(OsFs(), SystemClock(), str(path))
    assert info.control is not None
    kept = max(segment.segment_id for segment in info.segments if segment.has_records)
    assert kept < info.control.head_segment
    assert retention_candidates(info) == list(range(kept))


@given(
    readers=st.lists(
        st.tuples(st.integers(0, HEAD), st.sampled_from(["live", "expired"])), min_size=1, max_size=3
    )
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
def test_the_candidates_are_exactly_what_a_writer_deletes(
    sample: Path, tmp_path_factory: pytest.TempPathFactory, readers: list[tuple[int, str]]
) -> None:
    path = Path(shutil.copytree(sample, tmp_path_factory.mktemp("root") / "q"))
    now_ns = SystemClock().wall_ns()
    for number, (segment_id, state) in enumerate(readers):
        heartbeat_ns = now_ns if state == "live" else now_ns - 2 * READER_TTL_NS
        with Queue.open_subscriber(path, f"r{number}", "earliest", clock=TestClock(heartbeat_ns)) as reader:
            reader.seek_seq(segment_id * RECORDS_PER_SEGMENT)
            reader.commit()
    result = examine_queue(OsFs(), SystemClock(), str(path))
    before = list_segments(OsFs(), str(path))
    # A worker that keeps looking drops a reader only after watching it; drop the dead ones for it.
    for number, (_, state) in enumerate(readers):
        if state == "expired":
            (path / f"readers/r{number}.meta").unlink()
    expected = sorted(set(before) - set(result.candidates))
    with Queue.open_publisher(path, retention_check_interval_s=0.001):
        eventually(
            "the candidates are deleted",
            lambda: [i for i in list_segments(OsFs(), str(path)) if i in before] == expected,
        )
    shutil.rmtree(path.parent)


# -- whatever the files hold -----------------------------------------------------------------


@given(
    damage=st.lists(
        st.tuples(
            st.sampled_from(
                ["control.meta", "writer.lock", "readers/r.meta", "000000000.q", "000000004.q", "index.meta"]
            ),
            st.integers(0, SMALL),
            st.binary(max_size=16),
            st.sampled_from(["overwrite", "cut"]),
        ),
        max_size=5,
    )
)
@settings(max_examples=effort(60))
def test_whatever_the_files_hold_the_examination_ends_and_changes_nothing(
    sample: Path, tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[str, int, bytes, str]]
) -> None:
    root = tmp_path_factory.mktemp("root")
    path = Path(shutil.copytree(sample, root / "q"))
    Queue.open_subscriber(path, "r").close()
    for name, offset, data, kind in damage:
        target = path / name
        target.touch()
        if kind == "cut":
            os.truncate(target, offset)
        else:
            overwrite(target, offset, data)
    (result,) = examined(root)
    assert result.path == str(path)
    shutil.rmtree(root)
