"""RouterDiscovery: section 5.3, with real directories and real inotify.

The clock of these tests stands still unless a test moves it. Whatever is found without moving
it was found by inotify.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from inotify_simple import INotify  # type: ignore[import-untyped]

from everlog.bus import Added, IpcLayout, Removed, RouterDiscovery, clear_ready, mark_ready, watch
from everlog.clock import TestClock
from everlog.errors import Closed, InvalidConfig, Io
from everlog.fs import OsFs

HALF_A_SECOND_NS = 500_000_000


class CountingFs(OsFs):
    """The real file system; counts listings, and refuses them on demand."""

    def __init__(self) -> None:
        self.listings = 0
        self.refusal: OSError | None = None

    def listdir(self, path: str) -> list[str]:
        self.listings += 1
        if self.refusal is not None:
            raise self.refusal
        return super().listdir(path)


def orders_out(layout: IpcLayout, strategy: str) -> Path:
    return layout.orders().strategy_endpoints(strategy).orders_out


def make_ready(layout: IpcLayout, strategy: str) -> Path:
    directory = orders_out(layout, strategy)
    directory.mkdir(parents=True, exist_ok=True)
    mark_ready(directory)
    return directory


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def fs() -> CountingFs:
    return CountingFs()


@pytest.fixture
def discovery(layout: IpcLayout, clock: TestClock, fs: CountingFs) -> Iterator[RouterDiscovery]:
    with RouterDiscovery(layout, clock=clock, fs=fs) as discovery:
        yield discovery


@pytest.fixture
def scan_only(layout: IpcLayout, clock: TestClock) -> Iterator[RouterDiscovery]:
    """A discovery that may not watch anything, so that only time makes it look."""
    with RouterDiscovery(layout, clock=clock, max_watches=0) as discovery:
        yield discovery


def test_a_missing_root_is_an_empty_set(tmp_path: Path) -> None:
    with RouterDiscovery(IpcLayout(tmp_path / "nowhere" / "bus")) as discovery:
        assert discovery.poll() == []
        assert discovery.known == frozenset()


def test_a_strategy_that_is_ready_is_added_with_its_id_and_orders_out(
    layout: IpcLayout, discovery: RouterDiscovery
) -> None:
    directory = make_ready(layout, "arb")
    assert discovery.poll() == [Added("arb", directory)]
    assert discovery.known == {"arb"}


def test_a_second_poll_without_change_returns_nothing(
    layout: IpcLayout, discovery: RouterDiscovery, clock: TestClock
) -> None:
    make_ready(layout, "arb")
    assert len(discovery.poll()) == 1
    assert discovery.poll() == []
    clock.advance_ns(HALF_A_SECOND_NS)
    assert discovery.poll() == []


def test_a_withdrawn_marker_removes_the_strategy(layout: IpcLayout, discovery: RouterDiscovery) -> None:
    directory = make_ready(layout, "arb")
    discovery.poll()
    clear_ready(directory)
    assert discovery.poll() == [Removed("arb")]
    assert discovery.poll() == []


def test_events_come_as_set_differences_removed_before_added_in_order_of_id(
    layout: IpcLayout, discovery: RouterDiscovery
) -> None:
    for strategy in ("d", "b", "a"):
        make_ready(layout, strategy)
    discovery.poll()
    shutil.rmtree(orders_out(layout, "d").parent)
    clear_ready(orders_out(layout, "a"))
    new = [make_ready(layout, strategy) for strategy in ("e", "c")]
    assert discovery.poll() == [Removed("a"), Removed("d"), Added("c", new[1]), Added("e", new[0])]


def test_a_marker_set_and_withdrawn_between_two_polls_is_no_event(
    layout: IpcLayout, discovery: RouterDiscovery
) -> None:
    discovery.poll()
    clear_ready(make_ready(layout, "arb"))
    assert discovery.poll() == []


def test_marking_ready_again_is_no_event(layout: IpcLayout, discovery: RouterDiscovery) -> None:
    directory = make_ready(layout, "arb")
    discovery.poll()
    mark_ready(directory)
    assert discovery.poll() == []


@pytest.mark.parametrize("kind", ["directory", "link", "temp"])
def test_only_a_regular_file_named_ready_counts(
    layout: IpcLayout, discovery: RouterDiscovery, kind: str
) -> None:
    directory = orders_out(layout, "arb")
    directory.mkdir(parents=True)
    if kind == "directory":
        (directory / "READY").mkdir()
    elif kind == "link":
        (directory / "READY").symlink_to("/dev/null")
    else:
        (directory / "READY.tmp").touch()
    assert discovery.poll() == []


def test_ready_in_orders_in_does_not_count(layout: IpcLayout, discovery: RouterDiscovery) -> None:
    directory = layout.orders().strategy_endpoints("arb").orders_in
    directory.mkdir(parents=True)
    mark_ready(directory)
    assert discovery.poll() == []


def test_entries_that_cannot_be_strategies_are_ignored(layout: IpcLayout, discovery: RouterDiscovery) -> None:
    queue_root = layout.orders().queue_root
    (queue_root / "back\\slash" / "orders_out").mkdir(parents=True)
    mark_ready(queue_root / "back\\slash" / "orders_out")
    (queue_root / "file").touch()
    (queue_root / "dangling").symlink_to("nowhere")
    (queue_root / "loop").symlink_to("loop")
    make_ready(layout, "arb")
    assert [event.strategy for event in discovery.poll()] == ["arb"]


def test_a_strategy_directory_may_be_a_link_to_another_place(
    layout: IpcLayout, discovery: RouterDiscovery, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere" / "orders_out").mkdir(parents=True)
    layout.orders().queue_root.mkdir(parents=True)
    (layout.orders().queue_root / "arb").symlink_to(tmp_path / "elsewhere")
    assert discovery.poll() == []
    mark_ready(tmp_path / "elsewhere" / "orders_out")
    assert discovery.poll() == [Added("arb", orders_out(layout, "arb"))]


def test_without_a_watch_nothing_is_looked_at_until_500_ms_have_passed(
    layout: IpcLayout, scan_only: RouterDiscovery, clock: TestClock
) -> None:
    assert scan_only.poll() == []
    directory = make_ready(layout, "arb")
    assert scan_only.poll() == []
    clock.advance_ns(HALF_A_SECOND_NS - 1)
    assert scan_only.poll() == []
    clock.advance_ns(1)
    assert scan_only.poll() == [Added("arb", directory)]


def test_a_wall_clock_that_jumps_back_does_not_delay_the_rescan(
    layout: IpcLayout, scan_only: RouterDiscovery, clock: TestClock
) -> None:
    scan_only.poll()
    directory = make_ready(layout, "arb")
    clock.set_wall_ns(0)
    clock.advance_ns(HALF_A_SECOND_NS)
    assert scan_only.poll() == [Added("arb", directory)]


def test_the_watch_makes_a_poll_look_before_500_ms_have_passed(
    layout: IpcLayout, discovery: RouterDiscovery, fs: CountingFs
) -> None:
    layout.orders().queue_root.mkdir(parents=True)
    discovery.poll()
    listings = fs.listings
    assert discovery.poll() == []
    assert fs.listings == listings
    make_ready(layout, "arb")
    assert len(discovery.poll()) == 1
    assert fs.listings > listings


def test_ready_is_seen_at_once_however_the_levels_above_it_came_about(
    layout: IpcLayout, discovery: RouterDiscovery
) -> None:
    directory = orders_out(layout, "arb")
    levels = [layout.orders().root, layout.orders().queue_root, directory.parent, directory]
    assert discovery.poll() == []
    for level in levels:
        level.mkdir()
        assert discovery.poll() == []
    mark_ready(directory)
    assert discovery.poll() == [Added("arb", directory)]


@pytest.mark.parametrize("existing", range(5))
def test_ready_is_seen_at_once_when_the_levels_below_any_point_appear_together(
    layout: IpcLayout, discovery: RouterDiscovery, existing: int
) -> None:
    directory = orders_out(layout, "arb")
    levels = [layout.root, layout.orders().root, layout.orders().queue_root, directory.parent, directory]
    levels[existing].mkdir(parents=True, exist_ok=True)
    assert discovery.poll() == []
    make_ready(layout, "arb")
    assert discovery.poll() == [Added("arb", directory)]


@pytest.mark.parametrize("level", range(4))
def test_the_removal_of_any_level_is_seen_at_once(
    layout: IpcLayout, discovery: RouterDiscovery, level: int
) -> None:
    directory = make_ready(layout, "arb")
    discovery.poll()
    shutil.rmtree([layout.root, layout.orders().root, layout.orders().queue_root, directory][level])
    assert discovery.poll() == [Removed("arb")]


@pytest.mark.parametrize("level", range(5))
def test_moving_any_level_away_and_back_is_seen_at_once(
    layout: IpcLayout, discovery: RouterDiscovery, tmp_path: Path, level: int
) -> None:
    ready = make_ready(layout, "arb") / "READY"
    directory = ready.parent
    discovery.poll()
    moved = [layout.orders().root, layout.orders().queue_root, directory.parent, directory, ready][level]
    moved.rename(tmp_path / "away")
    assert discovery.poll() == [Removed("arb")]
    (tmp_path / "away").rename(moved)
    assert discovery.poll() == [Added("arb", directory)]


def test_moving_the_bus_itself_away_is_seen_at_once_and_its_return_when_time_has_passed(
    layout: IpcLayout, discovery: RouterDiscovery, clock: TestClock, tmp_path: Path
) -> None:
    directory = make_ready(layout, "arb")
    discovery.poll()
    layout.root.rename(tmp_path / "away")
    assert discovery.poll() == [Removed("arb")]
    (tmp_path / "away").rename(layout.root)
    clock.advance_ns(HALF_A_SECOND_NS)
    assert discovery.poll() == [Added("arb", directory)]


def test_a_directory_replaced_by_another_of_the_same_name_is_watched_anew(
    layout: IpcLayout, discovery: RouterDiscovery
) -> None:
    directory = make_ready(layout, "arb")
    discovery.poll()
    shutil.rmtree(directory.parent)
    directory.mkdir(parents=True)
    assert discovery.poll() == [Removed("arb")]
    mark_ready(directory)
    assert discovery.poll() == [Added("arb", directory)]


def test_a_strategy_that_comes_back_between_two_polls_was_never_gone(
    layout: IpcLayout, discovery: RouterDiscovery
) -> None:
    directory = make_ready(layout, "arb")
    discovery.poll()
    shutil.rmtree(directory.parent)
    make_ready(layout, "arb")
    assert discovery.poll() == []
    clear_ready(directory)
    assert discovery.poll() == [Removed("arb")]


def test_segments_and_leases_that_come_and_go_do_not_make_a_poll_look(
    layout: IpcLayout, discovery: RouterDiscovery, fs: CountingFs
) -> None:
    directory = make_ready(layout, "arb")
    discovery.poll()
    discovery.poll()
    listings = fs.listings
    for name in ("000000001.q.tmp", "LEASE", "000000000.idx"):
        (directory / name).touch()
        (directory / name).unlink()
    assert discovery.poll() == []
    assert fs.listings == listings


def test_an_overflow_of_the_event_queue_loses_nothing(layout: IpcLayout, discovery: RouterDiscovery) -> None:
    directory = orders_out(layout, "arb")
    directory.mkdir(parents=True)
    discovery.poll()
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for _ in range(limit // 2 + 10):
        os.close(os.open(directory / "noise", os.O_CREAT | os.O_WRONLY))
        os.unlink(directory / "noise")
    mark_ready(directory)
    assert discovery.poll() == [Added("arb", directory)]


def test_a_poll_reads_a_bounded_number_of_events_and_the_next_one_goes_on(
    layout: IpcLayout, discovery: RouterDiscovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = orders_out(layout, "arb")
    directory.mkdir(parents=True)
    discovery.poll()
    monkeypatch.setattr(watch, "_READ_BYTES", 256)
    monkeypatch.setattr(watch, "_READS_MAX", 1)
    for number in range(50):
        (directory / f"noise-{number}").touch()
    mark_ready(directory)
    polls = [discovery.poll() for _ in range(50)]
    assert polls[0] == []
    assert [event for events in polls for event in events] == [Added("arb", directory)]


def test_every_directory_is_watched_and_watches_end_with_their_directory(
    layout: IpcLayout, discovery: RouterDiscovery
) -> None:
    for number in range(10):
        make_ready(layout, f"s{number}")
    discovery.poll()
    assert discovery.degraded_reason is None
    assert discovery.watch_count == 3 + 2 * 10
    for number in range(9):
        shutil.rmtree(orders_out(layout, f"s{number}").parent)
    discovery.poll()
    assert discovery.watch_count == 3 + 2


def kernel_watches() -> int:
    """Count the inotify watches of this process as the kernel sees them."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            count += Path("/proc/self/fdinfo", descriptor).read_text().count("inotify wd:")
    return count


def test_a_directory_that_moved_away_is_watched_no_longer(
    layout: IpcLayout, discovery: RouterDiscovery, fs: CountingFs, tmp_path: Path
) -> None:
    directory = make_ready(layout, "arb")
    discovery.poll()
    assert kernel_watches() == 5
    directory.parent.rename(tmp_path / "away")
    discovery.poll()
    assert kernel_watches() == discovery.watch_count == 3
    listings = fs.listings
    assert discovery.poll() == []
    assert fs.listings == listings, "the end of a watch is no reason to look again"


def test_a_look_that_was_broken_off_leaves_no_watch_behind(
    layout: IpcLayout, discovery: RouterDiscovery, fs: CountingFs, tmp_path: Path
) -> None:
    directory = make_ready(layout, "arb")
    discovery.poll()
    directory.parent.rename(tmp_path / "away")
    fs.refusal = OSError(errno.EIO, "Input/output error")
    for _ in range(3):
        with pytest.raises(Io):
            discovery.poll()
    fs.refusal = None
    assert discovery.poll() == [Removed("arb")]
    assert kernel_watches() == 3


def test_the_number_of_watches_is_bounded_and_the_rest_is_found_by_time(
    layout: IpcLayout, clock: TestClock
) -> None:
    directories = [make_ready(layout, strategy) for strategy in ("a", "b")]
    with RouterDiscovery(layout, clock=clock, max_watches=5) as discovery:
        assert len(discovery.poll()) == 2
        assert discovery.watch_count == 5
        assert discovery.degraded_reason == "the limit of 5 watches is reached"
        clear_ready(directories[1])
        assert discovery.poll() == []
        clock.advance_ns(HALF_A_SECOND_NS)
        assert discovery.poll() == [Removed("b")]
        shutil.rmtree(directories[1].parent)
        assert discovery.poll() == []
        assert discovery.degraded_reason is None


class NoInstances:
    """Stands for inotify when its number of instances is used up."""

    def __init__(self, nonblocking: bool) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class NoWatches(INotify):  # type: ignore[misc]
    """Stands for inotify when its number of watches is used up."""

    def add_watch(self, path: str, mask: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("exhausted", "reason"),
    [(NoInstances, "inotify is not available"), (NoWatches, "inotify cannot watch")],
)
def test_when_inotify_has_reached_its_limit_it_says_so_and_scans_until_there_is_room(
    layout: IpcLayout,
    discovery: RouterDiscovery,
    clock: TestClock,
    monkeypatch: pytest.MonkeyPatch,
    exhausted: type,
    reason: str,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(watch, "INotify", exhausted)
        assert discovery.poll() == []
        assert str(discovery.degraded_reason).startswith(reason)
        directory = make_ready(layout, "arb")
        assert discovery.poll() == []
        clock.advance_ns(HALF_A_SECOND_NS)
        assert discovery.poll() == [Added("arb", directory)]
    if exhausted is NoWatches:
        monkeypatch.setattr(NoWatches, "add_watch", INotify.add_watch)
    clock.advance_ns(HALF_A_SECOND_NS)
    assert discovery.poll() == []
    assert discovery.degraded_reason is None
    clear_ready(directory)
    assert discovery.poll() == [Removed("arb")]


def test_a_root_that_cannot_be_read_is_an_error_and_removes_no_strategy(
    layout: IpcLayout, discovery: RouterDiscovery, clock: TestClock, fs: CountingFs
) -> None:
    directory = make_ready(layout, "arb")
    discovery.poll()
    fs.refusal = PermissionError(errno.EACCES, "Permission denied")
    clock.advance_ns(HALF_A_SECOND_NS)
    with pytest.raises(Io, match="orders/queue") as caught:
        discovery.poll()
    assert caught.value.errno == errno.EACCES
    assert discovery.known == {"arb"}
    clear_ready(directory)
    fs.refusal = None
    assert discovery.poll() == [Removed("arb")]
    assert discovery.watch_count == 5


def test_after_a_failed_look_the_next_poll_looks_again_without_waiting(
    layout: IpcLayout, clock: TestClock, fs: CountingFs
) -> None:
    directory = make_ready(layout, "arb")
    with RouterDiscovery(layout, clock=clock, fs=fs, max_watches=0) as discovery:
        discovery.poll()
        clear_ready(directory)
        clock.advance_ns(HALF_A_SECOND_NS)
        fs.refusal = OSError(errno.EIO, "Input/output error")
        for _ in range(2):
            with pytest.raises(Io):
                discovery.poll()
        fs.refusal = None
        assert discovery.poll() == [Removed("arb")]


def test_wait_returns_when_a_watch_fires(layout: IpcLayout) -> None:
    # A real clock and a rescan far in the future: only the watch can end the wait in time.
    with RouterDiscovery(layout, rescan_interval_s=3600) as discovery:
        directory = orders_out(layout, "arb")
        directory.mkdir(parents=True)
        discovery.poll()
        mark_ready(directory)
        discovery.wait(3600)
        assert discovery.poll() == [Added("arb", directory)]


def test_wait_without_watches_sleeps_until_the_rescan_is_due(
    layout: IpcLayout, discovery: RouterDiscovery, clock: TestClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "INotify", NoInstances)
    discovery.poll()
    directory = make_ready(layout, "arb")
    discovery.wait(0.2)
    assert clock.monotonic_ns() == 200_000_000
    assert discovery.poll() == []
    discovery.wait(3600)
    assert clock.monotonic_ns() == HALF_A_SECOND_NS
    assert discovery.poll() == [Added("arb", directory)]


def test_a_closed_discovery_refuses_to_poll_and_to_wait(discovery: RouterDiscovery) -> None:
    discovery.close()
    discovery.close()
    with pytest.raises(Closed):
        discovery.poll()
    with pytest.raises(Closed):
        discovery.wait(0)


def test_closing_gives_the_descriptor_back(layout: IpcLayout) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with RouterDiscovery(layout) as discovery:
        discovery.poll()
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("interval_s", [-0.1, float("nan"), float("inf")])
def test_an_interval_that_cannot_work_is_refused(layout: IpcLayout, interval_s: float) -> None:
    with pytest.raises(InvalidConfig, match="rescan_interval_s"):
        RouterDiscovery(layout, rescan_interval_s=interval_s)
