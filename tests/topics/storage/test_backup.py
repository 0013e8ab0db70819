"""Backup and restore: what is shipped is restored exactly, while the engine goes on, whatever is killed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.clock import SystemClock
from everlog.errors import Corrupt, InvalidConfig, InvalidRequest, Io, ObjectStoreFailed, Superseded
from everlog.fs import OsFs
from everlog.objects import ObjectStore, open_store
from everlog.topics import Engine, EngineSettings, TopicConfig, record_of
from everlog.topics.storage.layout import RESTORING_FILE
from everlog.topics.storage.restoring import SKIPPED_SEQS, Restorer
from everlog.topics.storage.shipping import Shipper, fence, last_number, log_key, take_epoch
from everlog.topics.storage.verify import verify
from tests.support.effort import effort
from tests.support.engines import EngineHarness

SMALL: dict[str, Any] = {"segment_max_events": 5, "file_bytes": 8192}


def shipper_of(harness: EngineHarness, store: ObjectStore, **options: Any) -> Shipper:
    return Shipper(str(harness.data_dir), store, OsFs(), SystemClock(), **options)


def bucket(root: Path) -> ObjectStore:
    return open_store(f"file://{root}/bucket")


def restored(store: ObjectStore, target: Path, **at: Any) -> EngineHarness:
    """Restore, verify, and open."""
    Restorer(store, str(target / "data"), OsFs()).restore(**at)
    assert verify(str(target / "data"), OsFs()).errors == []
    return EngineHarness(target, **SMALL)


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    harness = EngineHarness(tmp_path, **SMALL)
    for name in ("a", "b"):
        harness.put(name, durability="fsync")
        harness.append(name, *[record_of(number, tag=f"x{number % 3}") for number in range(23)])
    return harness


def fresh(root: Path, name: str = "target") -> Path:
    (root / name).mkdir()
    return root / name


def test_a_running_engine_is_restored_as_it_was(harness: EngineHarness, tmp_path: Path) -> None:
    harness.checkpoint()
    harness.append("a", *range(100, 110))
    harness.delete("b", match="x1")
    store = bucket(tmp_path)
    report = shipper_of(harness, store).round()
    assert report.has_base and report.log_bytes > 0
    copy = restored(store, fresh(tmp_path))
    for name in ("a", "b"):
        assert copy.items(name, include_tags=True) == harness.items(name, include_tags=True)
    copy.append("a", "goes on")
    assert copy.values("a") == [*harness.values("a"), "goes on"]


def test_a_second_backup_stores_only_what_is_new(harness: EngineHarness, tmp_path: Path) -> None:
    harness.checkpoint()
    store = bucket(tmp_path)
    first = shipper_of(harness, store).round()
    again = shipper_of(harness, store).round()
    assert again.objects == 1, "the snapshot alone, which is there already"
    harness.append("a", *range(3))
    harness.checkpoint()
    third = shipper_of(harness, store).round()
    assert 0 < third.object_bytes < first.object_bytes
    copy = restored(store, fresh(tmp_path))
    assert copy.values("a") == harness.values("a")


def test_marks_of_deleted_records_are_restored(harness: EngineHarness, tmp_path: Path) -> None:
    harness.checkpoint()
    store = bucket(tmp_path)
    shipper = shipper_of(harness, store)
    shipper.round()
    harness.delete("a", match="x1")
    harness.checkpoint(2)
    shipper.round()
    copy = restored(store, fresh(tmp_path))
    assert copy.values("a") == harness.values("a")
    copy.crash()
    assert copy.values("a") == harness.values("a")


def test_a_restore_to_a_shipment_or_a_time_has_what_was_shipped_then(
    harness: EngineHarness, tmp_path: Path
) -> None:
    store = bucket(tmp_path)
    shipper = shipper_of(harness, store)
    states: list[tuple[int, list[Any]]] = []
    for number in range(4):
        harness.append("a", f"n{number}")
        if number == 2:
            harness.checkpoint(2)
        shipper.round()
        states.append((last_number(store, "log"), harness.values("a")))
    for place, (shipment, values) in enumerate(states):
        copy = restored(store, fresh(tmp_path, f"at-{place}"), at_shipment=shipment)
        assert copy.values("a") == values
    with pytest.raises(InvalidRequest, match="reaches back to"):
        Restorer(store, str(tmp_path / "early"), OsFs()).restore(at_ms=1)


def test_with_objects_in_the_cold_tier_the_stubs_are_restored(tmp_path: Path) -> None:
    cold = {"cold_url": f"file://{tmp_path}/cold", "hot_retain_segments": 1}
    harness = EngineHarness(tmp_path, **SMALL, **cold)
    harness.append("a", *range(40))
    harness.checkpoint()
    assert harness.engine.relocate() > 3
    store = bucket(tmp_path)
    shipper_of(harness, store).round()
    target = fresh(tmp_path)
    Restorer(store, str(target / "data"), OsFs()).restore()
    copy = EngineHarness(target, **SMALL, **cold)
    assert copy.values("a") == list(range(40))


STEPS = st.lists(
    st.sampled_from(["append", "delete", "checkpoint", "ship", "crash", "new shipper", "drop topic"]),
    max_size=25,
)


@given(steps=STEPS, seed=st.integers(0, 1 << 16))
@settings(max_examples=effort(20))
def test_what_was_shipped_last_is_what_is_restored(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], seed: int
) -> None:
    root = tmp_path_factory.mktemp("model")
    rng = random.Random(seed)
    harness = EngineHarness(root, **SMALL)
    store = bucket(root)
    shipper = shipper_of(harness, store)
    shipped: dict[str, list[Any]] = {}
    for number, step in enumerate([*steps, "ship"]):
        name = rng.choice("ab")
        if step == "append":
            values = [record_of(f"{number}:{i}", tag=rng.choice("pq")) for i in range(rng.randint(1, 9))]
            harness.append(name, *values)
        elif step == "delete" and harness.engine.has_topic(name):
            harness.delete(name, match="p")
        elif step == "drop topic":
            harness.delete_topic(name)
        elif step == "checkpoint":
            harness.checkpoint()
        elif step == "crash":
            harness.crash()
        elif step == "new shipper":
            shipper = shipper_of(harness, store)
        elif step == "ship":
            shipper.round()
            shipped = {each: harness.items(each) for each in "ab" if harness.engine.has_topic(each)}
    copy = restored(store, fresh(root))
    assert {each: copy.items(each) for each in "ab" if copy.engine.has_topic(each)} == shipped


class Killed(BaseException):
    """The process ends here."""


def killed_at(store: ObjectStore, call: int) -> Callable[..., str]:
    """`put_new` that ends the process at its n-th call, before or after it has stored."""
    original = store.put_new
    left = call

    def put_new(key: str, data: bytes) -> str:
        nonlocal left
        left -= 1
        if left == 0:
            if call % 2:
                original(key, data)
            raise Killed
        return original(key, data)

    return put_new


def test_a_shipper_killed_at_any_put_leaves_a_backup_that_is_whole(
    harness: EngineHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.checkpoint()
    store = bucket(tmp_path)
    shipper_of(harness, store).round()
    before = harness.values("a")
    harness.append("a", *range(50, 70))
    harness.checkpoint()
    harness.append("a", *range(70, 75))
    for call in range(1, 14):
        with monkeypatch.context() as patched:
            patched.setattr(store, "put_new", killed_at(store, call))
            with suppress(Killed):
                shipper_of(harness, store).round()
        copy = restored(store, fresh(tmp_path, f"killed-{call}"))
        assert copy.values("a") in (before, harness.values("a"))
    shipper_of(harness, store).round()
    assert restored(store, fresh(tmp_path)).values("a") == harness.values("a")


def test_a_restore_that_was_killed_can_be_repeated(
    harness: EngineHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.checkpoint()
    store = bucket(tmp_path)
    shipper_of(harness, store).round()
    target = fresh(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Restorer, "_finish", _kill)
        with pytest.raises(Killed):
            Restorer(store, str(target / "data"), OsFs()).restore()
    assert (target / "data" / RESTORING_FILE).exists()
    with pytest.raises((Corrupt, Io)):
        Engine.open(target / "data", EngineSettings(shards=1)).close()
    assert restored(store, target).values("a") == harness.values("a")


def _kill(_: object) -> None:
    raise Killed


def test_a_directory_that_is_not_empty_is_left_alone(harness: EngineHarness, tmp_path: Path) -> None:
    store = bucket(tmp_path)
    shipper_of(harness, store).round()
    before = sorted(path for path in harness.data_dir.rglob("*"))
    with pytest.raises(InvalidRequest, match="is not empty"):
        Restorer(store, str(harness.data_dir), OsFs()).restore()
    assert sorted(path for path in harness.data_dir.rglob("*")) == before


def test_a_damaged_shipment_is_named_and_an_earlier_moment_is_restored(
    harness: EngineHarness, tmp_path: Path
) -> None:
    store = bucket(tmp_path)
    shipper = shipper_of(harness, store)
    shipper.round()
    good = last_number(store, "log")
    harness.append("a", "later")
    shipper.round()
    key = log_key(good + 1)
    data = bytearray(store.get(key).data)
    data[20] ^= 1
    store.put(key, bytes(data))
    with pytest.raises(Corrupt, match=key):
        Restorer(store, str(tmp_path / "first"), OsFs()).restore()
    assert restored(store, fresh(tmp_path), at_shipment=good).values("a") == list(range(23))


def test_an_owner_that_was_fenced_ships_nothing_more(harness: EngineHarness, tmp_path: Path) -> None:
    store = bucket(tmp_path)
    shipper = shipper_of(harness, store)
    shipper.round()
    mine = take_epoch(store, "http://127.0.0.1:1")
    fence(store, mine, SystemClock())
    harness.append("a", "not shipped")
    for _ in range(2):
        with pytest.raises(Superseded, match=r"http://127\.0\.0\.1:1") as refused:
            shipper.round()
        assert refused.value.address == "http://127.0.0.1:1"
    assert restored(store, fresh(tmp_path)).values("a") == list(range(23))


def test_an_empty_url_says_so(tmp_path: Path) -> None:
    with pytest.raises(Io, match="holds no backup"):
        Restorer(bucket(tmp_path), str(tmp_path / "target"), OsFs()).restore()


def test_a_backup_beside_a_busy_writer_is_a_state_that_was(tmp_path: Path) -> None:
    """Threads and real syncs: values count up by one, so any state is a beginning of the final one."""
    engine = Engine.open(tmp_path / "data", EngineSettings(shards=2, snapshot_log_bytes=40_000, **SMALL))
    engine.wait_for(engine.put_topic("a", TopicConfig(durability="fsync")).commit)
    store = bucket(tmp_path)
    done = threading.Event()
    failures: list[BaseException] = []

    def ship() -> None:
        try:
            shipper = Shipper(str(tmp_path / "data"), store, OsFs(), SystemClock())
            while not done.is_set():
                shipper.round()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=ship)
    thread.start()
    for number in range(600):
        engine.wait_for(engine.append("a", [record_of({"n": number, "pad": "x" * 200})]).commit)
        engine.poll()
    done.set()
    thread.join()
    assert failures == []
    engine.close()
    for place, shipment in enumerate(range(1, last_number(store, "log") + 1, 7)):
        target = fresh(tmp_path, f"t{place}")
        try:
            copy = restored(store, target, at_shipment=shipment)
        except InvalidRequest:
            continue  # before the first base
        found = [value["n"] for value in copy.values("a")] if copy.engine.has_topic("a") else []
        assert found == list(range(len(found)))


def test_a_store_that_fails_is_tried_again(
    harness: EngineHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bucket(tmp_path)
    shipper = shipper_of(harness, store)
    shipper.round()
    harness.append("a", "later")
    with monkeypatch.context() as broken:
        broken.setattr(store, "put_new", _unreachable)
        with pytest.raises(ObjectStoreFailed):
            shipper.round()
    shipper.round()
    assert restored(store, fresh(tmp_path)).values("a")[-1] == "later"


def _unreachable(*_: object) -> None:
    raise ObjectStoreFailed("the bucket does not answer")


@pytest.mark.parametrize("shards", [1, 3])
def test_what_a_takeover_may_have_lost_is_a_tombstone_and_its_seqs_are_not_used_again(
    tmp_path: Path, shards: int
) -> None:
    settings = {"file_bytes": 8192, "shards": shards}
    primary = EngineHarness(tmp_path, **settings)
    for name in "abcd":
        primary.put(name, durability="fsync")
        primary.append(name, *range(5))
    primary.put("m", durability="memory")
    primary.append("m", 1)
    store = bucket(tmp_path)
    shipper_of(primary, store).round()
    for name in "abcd":
        primary.append(name, *range(5, 9))  # acknowledged, and not shipped
    target = fresh(tmp_path)
    Restorer(store, str(target / "data"), OsFs()).restore(has_losses=True)
    assert verify(str(target / "data"), OsFs()).errors == []
    copy = EngineHarness(target, **settings)
    end = 5 + SKIPPED_SEQS
    for is_again in (False, True):
        for name in "abcd":
            assert copy.values(name)[:5] == list(range(5))
            assert copy.gap(name, 5) == (6, end, "corrupt")
            assert copy.gap(name, 9) == (10, end, "corrupt"), "a reader that had seen the lost records"
            assert copy.append(name, "new").first_seq == end + 1 + is_again
        assert copy.gap("m", 0) is None
        copy.crash()  # before a checkpoint: the log says it again
    copy.checkpoint(2)
    copy.restart()
    assert all(copy.gap(name, 7) == (8, end, "corrupt") for name in "abcd")


def test_a_wrong_url_is_refused_before_anything_is_recovered(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="is no object store"):
        Engine.open(tmp_path / "data", EngineSettings(backup_url="/no/url"))
    assert [path.name for path in (tmp_path / "data").rglob("*") if path.is_file()] == [".topics.lock"]


def test_a_lost_shipment_is_named_and_what_was_shipped_before_is_restored(
    harness: EngineHarness, tmp_path: Path
) -> None:
    store = bucket(tmp_path)
    shipper = shipper_of(harness, store)
    states: list[list[Any]] = []
    for number in range(5):
        harness.append("a", f"n{number}")
        shipper.round()
        states.append(harness.values("a"))
    newest = last_number(store, "log")
    lost = newest - 2
    follower = Restorer(store, str(tmp_path / "follower"), OsFs())
    follower.restore(at_shipment=lost - 1, is_final=False)
    store.delete([log_key(lost)])
    with pytest.raises(Corrupt, match=f"{log_key(lost)} is missing.*--at {lost - 1}"):
        restored(store, fresh(tmp_path))
    with pytest.raises(Corrupt, match=f"{log_key(lost)} is missing"):
        follower.follow()
    follower.close()
    assert restored(store, fresh(tmp_path, "before"), at_shipment=lost - 1).values("a") == states[1]


def test_a_shipment_that_a_base_needs_is_missed_even_if_none_is_behind_it(
    harness: EngineHarness, tmp_path: Path
) -> None:
    store = bucket(tmp_path)
    shipper_of(harness, store).round()
    newest = last_number(store, "log")
    assert last_number(store, "base") > newest
    store.delete([log_key(newest)])
    with pytest.raises(Corrupt, match=f"{log_key(newest)} is missing"):
        restored(store, fresh(tmp_path))


@pytest.mark.parametrize("folder", ["indexes", "data"])
@pytest.mark.parametrize("harm", [lambda data: data[:-3], lambda data: data + b"x", lambda data: b""])
def test_a_part_of_a_segment_that_was_cut_or_changed_is_named(
    harness: EngineHarness, tmp_path: Path, folder: str, harm: Callable[[bytes], bytes]
) -> None:
    harness.checkpoint()
    store = bucket(tmp_path)
    shipper_of(harness, store).round()
    key = next(iter(store.list(folder))).key
    store.put(key, harm(store.get(key).data))
    with pytest.raises(Corrupt, match=f"{key} does not match its checksum"):
        restored(store, fresh(tmp_path))
