"""Spec 15: the defaults, the presets, and what a setting may not be."""

from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from everlog.errors import InvalidConfig
from everlog.queue import BusySpin, Queue, Sleep, SpinThenPark, WriterConfig
from everlog.queue.config import WriterSettings
from everlog.queue.reader import HEARTBEAT_INTERVAL_NS, WRITER_TTL_S
from everlog.queue.writer import BLOCK_POLL_NS
from tests.support.queues import open_reader, open_writer

MIB = 2**20


def test_the_defaults_are_those_of_the_specification() -> None:
    config = WriterConfig()
    assert config.segment_size == 128 * MIB
    assert config.index_stride == 4096
    assert (config.index_flush_interval_s, config.index_flush_records) == (None, None)
    assert config.retention
    assert (config.retention_check_interval_s, config.retention_check_bytes) == (0.01, MIB)
    assert config.reader_ttl_s == 30
    assert config.max_reader_lag_bytes == 10 * 2**30
    assert (config.max_segments, config.max_bytes) == (None, None)
    assert config.backpressure == "fail-fast"
    assert (config.defer_seal_sync, config.require_prealloc, config.memlock) == (False, False, False)
    assert config.prealloc_wait_s == 0
    assert not config.large_blocks
    assert config.clock_mode == "wall"
    assert BLOCK_POLL_NS == 100_000
    assert HEARTBEAT_INTERVAL_NS == 10**9
    assert WRITER_TTL_S == 5
    assert SpinThenPark().spin_us == 10


def test_ultra_low_latency_does_nothing_slow_in_append() -> None:
    assert WriterConfig.ultra_low_latency() == WriterConfig(
        defer_seal_sync=True, require_prealloc=True, prealloc_wait_s=0.001, memlock=True
    )


def test_archive_keeps_everything_and_indexes_often() -> None:
    assert WriterConfig.archive() == WriterConfig(
        index_flush_interval_s=1, index_flush_records=4096, retention=False
    )


def test_blocking_waits_for_readers() -> None:
    assert WriterConfig.blocking(3, 5000, 2.5) == WriterConfig(
        max_segments=3, max_bytes=5000, backpressure="block", block_timeout_s=2.5
    )
    assert WriterConfig.blocking(max_bytes=1).max_segments is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("segment_size", size) for size in (0, 64, 127, 129, 1000, -128, 2**32 + 64)],
        *[("index_stride", stride) for stride in (0, -1)],
        *[("index_flush_records", count) for count in (0, -5)],
        *[("index_flush_interval_s", interval) for interval in (0, -1, float("nan"))],
        *[("retention_check_interval_s", interval) for interval in (0, -1, float("nan"))],
        ("retention_check_bytes", 0),
        *[("reader_ttl_s", ttl) for ttl in (0, -1, float("nan"))],
        ("max_reader_lag_bytes", -1),
        ("max_segments", 0),
        ("max_bytes", 0),
        *[("block_timeout_s", timeout) for timeout in (-1, float("nan"))],
        *[("prealloc_wait_s", wait) for wait in (-0.5, float("nan"))],
        ("backpressure", "drop"),
        ("clock_mode", "gps"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} must .*got"):
        WriterConfig(**{name: value})
    with pytest.raises(InvalidConfig, match=name):
        Queue.open_publisher(tmp_path / "q", **{name: value})
    assert not (tmp_path / "q").exists(), "a refused setting leaves no trace"


@pytest.mark.parametrize(
    ("name", "value"),
    [("segment_size", "big"), ("max_segments", 1.5), ("reader_ttl_s", "30"), ("max_bytes", True)],
)
def test_a_setting_of_the_wrong_kind_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} must be a .*number, got "):
        WriterConfig(**{name: value})


def test_a_number_of_another_library_is_a_number() -> None:
    assert WriterConfig(segment_size=np.int64(4096), reader_ttl_s=np.float64(1)).segment_size == 4096


def test_type_checkers_know_every_setting() -> None:
    known = get_type_hints(WriterSettings)
    assert known == get_type_hints(WriterConfig)


def test_an_unknown_setting_is_refused_and_the_known_ones_are_listed(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"unknown setting segmentsize; valid are .*segment_size"):
        Queue.open_publisher(tmp_path / "q", segmentsize=1024)
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize("size", [128, 192, 2**32])
def test_the_borders_of_the_segment_size_are_allowed(size: int) -> None:
    assert WriterConfig(segment_size=size).segment_size == size


def test_settings_win_over_the_config(tmp_path: Path) -> None:
    config = WriterConfig(segment_size=2048, index_stride=7)
    with Queue.open_publisher(tmp_path / "q", config, index_stride=3) as writer:
        assert (writer.config.segment_size, writer.config.index_stride) == (2048, 3)
    assert config.index_stride == 7


def test_the_segment_size_of_an_existing_queue_wins(tmp_path: Path) -> None:
    open_writer(tmp_path / "q", segment_size=2048).close()
    with open_writer(tmp_path / "q", segment_size=1024) as writer:
        assert (writer.segment_size, writer.config.segment_size) == (2048, 2048)
        writer.append(1, bytes(1900))
        with open_reader(tmp_path / "q") as reader:
            assert reader.segment_size == 2048


@pytest.mark.parametrize(
    "config",
    [WriterConfig.ultra_low_latency(), WriterConfig.archive(), WriterConfig.blocking(10, 10**6)],
)
def test_a_queue_works_with_every_preset(tmp_path: Path, config: WriterConfig) -> None:
    with (
        Queue.open_publisher(tmp_path / "q", config, segment_size=4096, prealloc_wait_s=30) as writer,
        open_reader(tmp_path / "q") as reader,
    ):
        for number in range(200):
            writer.append(1, number.to_bytes(4, "little"))
        assert [int.from_bytes(view, "little") for view in reader] == list(range(200))


@pytest.mark.parametrize("spin_us", [-1, float("nan")])
def test_a_spin_must_not_be_negative(spin_us: float) -> None:
    with pytest.raises(InvalidConfig, match="spin_us"):
        SpinThenPark(spin_us)


@pytest.mark.parametrize("interval_us", [0, -1, float("nan")])
def test_a_sleep_must_take_time(interval_us: float) -> None:
    with pytest.raises(InvalidConfig, match="interval_us"):
        Sleep(interval_us)


@pytest.mark.parametrize("strategy", ["spin", BusySpin, 5])
def test_an_unknown_wait_strategy_is_refused_and_leaves_no_trace(tmp_path: Path, strategy: Any) -> None:
    open_writer(tmp_path / "q").close()
    with pytest.raises(InvalidConfig, match="wait_strategy must be BusySpin, SpinThenPark or Sleep"):
        open_reader(tmp_path / "q", wait_strategy=strategy)
    assert not (tmp_path / "q/readers").exists()
    open_reader(tmp_path / "q").close()
