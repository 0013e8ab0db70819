"""`chron-cli`: the exact key=value output that scripts rely on."""

import os
import re
import shutil
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everlog.cli.chron_cli import app
from everlog.clock import NS_PER_S, SystemClock, TestClock
from everlog.queue import Queue, layout
from everlog.queue.writer_lock import process_start_ticks
from tests.support.command_lines import run
from tests.support.queues import RECORDS_PER_SEGMENT, SMALL, name_dead_writer, overwrite, write_messages

NOW_NS = 1_700_000_000 * NS_PER_S


def chron_cli(*arguments: object, code: int = 0) -> str:
    """Run the command in this process; it must end with this code and complain about nothing."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert (result.exit_code, result.stderr) == (code, "")
    return result.stdout


def test_inspect_prints_every_fact_on_its_line(tmp_path: Path) -> None:
    path = tmp_path / "q"
    clock = TestClock(NOW_NS)
    write_messages(path, RECORDS_PER_SEGMENT + 1, clock=clock)
    with Queue.open_subscriber(path, "zeta", clock=clock) as reader:
        reader.next()
        reader.commit()
    Queue.open_subscriber(path, "alpha", "latest", clock=clock).close()
    assert chron_cli("inspect", path) == (
        f"queue={path}\n"
        "head_segment=1 head_offset=192 head_pos=1216\n"
        f"segment_size={SMALL} writer_epoch=1\n"
        f"writer_heartbeat_ns={NOW_NS}\n"
        f"lock pid={os.getpid()} start_time={process_start_ticks(os.getpid())} epoch=1 alive=true\n"
        f"reader name=alpha segment=1 offset=192 lag_bytes=0 lag_segments=0 heartbeat_ns={NOW_NS}\n"
        f"reader name=zeta segment=0 offset=192 lag_bytes=1024 lag_segments=1 heartbeat_ns={NOW_NS}\n"
    )


def test_inspect_prints_the_flushed_position_and_the_absence_of_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "q"
    clock = TestClock(NOW_NS)
    with Queue.open_publisher(path, segment_size=SMALL, clock=clock) as writer:
        writer.append(1, b"12345678")
        writer.flush_sync()
    (path / layout.LOCK_FILE).unlink()
    assert chron_cli("inspect", path) == (
        f"queue={path}\n"
        "head_segment=0 head_offset=192 head_pos=192\n"
        f"segment_size={SMALL} writer_epoch=1\n"
        f"writer_heartbeat_ns={NOW_NS}\n"
        "index_segment=0 index_offset=192\n"
        "lock none\n"
    )


def test_inspect_names_a_dead_owner_and_a_damaged_reader(tmp_path: Path) -> None:
    path = tmp_path / "q"
    write_messages(path, 1)
    pid = name_dead_writer(path, epoch=3)
    (path / "readers").mkdir()
    (path / "readers/two words.meta").write_bytes(b"123")
    lines = chron_cli("inspect", path).splitlines()
    assert lines[4] == f"lock pid={pid} start_time=1 epoch=3 alive=false"
    assert lines[5].startswith(
        f'reader name="two words" error={path}/readers/two words.meta: reader meta is 3'
    )


def test_tail_prints_a_header_and_rows_of_sixteen_bytes(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path, segment_size=SMALL) as writer:
        writer.append(7, bytes(range(20)), timestamp_ns=11)
        writer.append(0, b"", timestamp_ns=12)
        writer.append(65534, b"\xff" * 16, timestamp_ns=13)
    assert chron_cli("tail", tmp_path) == (
        "seq=0 ts=11 type=7 len=20\n"
        "0000: 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f\n"
        "0010: 10 11 12 13\n"
        "seq=1 ts=12 type=0 len=0\n"
        "seq=2 ts=13 type=65534 len=16\n"
        "0000: ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff\n"
    )
    assert chron_cli("tail", "--limit", 1, "--from", 1, tmp_path) == "seq=1 ts=12 type=0 len=0\n"
    assert not (tmp_path / "readers").exists()


def test_doctor_prints_lock_and_candidates_of_every_queue_in_order(tmp_path: Path) -> None:
    for name in ("b", "a/deep"):
        write_messages(tmp_path / name, 3 * RECORDS_PER_SEGMENT + 1)
        (tmp_path / name / layout.LOCK_FILE).unlink()
    long_ago = TestClock(SystemClock().wall_ns() - 100 * NS_PER_S)
    Queue.open_subscriber(tmp_path / "b", "gone", clock=long_ago).close()
    lines = chron_cli("doctor", tmp_path).splitlines()
    assert lines[:6] == [
        f"queue={tmp_path}/a/deep",
        "lock none",
        "retention_candidates count=0",
        f"queue={tmp_path}/b",
        "lock none",
        "retention_candidates count=3 range=0..=2",
    ]
    assert re.fullmatch(
        r"finding code=reader_expired severity=warning subject=gone "
        r"message=reader 'gone' has been silent for 10\d s .*",
        lines[6],
    )
    assert len(lines) == 7


def test_doctor_reports_a_broken_control_block_and_goes_on(tmp_path: Path) -> None:
    write_messages(tmp_path / "a", 1)
    name_dead_writer(tmp_path / "a", epoch=9)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    overwrite(tmp_path / "a" / layout.CONTROL_FILE, layout.CTRL_INIT_STATE, struct.pack("<I", 1))
    lines = chron_cli("doctor", tmp_path, code=3).splitlines()
    assert lines[0] == f"queue={tmp_path}/a"
    assert re.fullmatch(r"lock pid=\d+ start_time=1 epoch=9 alive=false", lines[1])
    assert lines[2].startswith(f"control_error={tmp_path}/a/control.meta is not initialised (init_state 1")
    assert lines[3].startswith("finding code=control_error severity=error subject=control.meta message=")
    assert lines[4].startswith("finding code=stale_lock severity=info subject=writer.lock message=")
    assert lines[5] == f"queue={tmp_path}/b"


def test_doctor_says_when_there_is_nothing_to_examine(tmp_path: Path) -> None:
    assert chron_cli("doctor", tmp_path) == f"no queues found under {tmp_path}\n"


@pytest.mark.parametrize("read", [True, False])
def test_bench_prints_rates_and_cleans_up(tmp_path: Path, read: bool) -> None:
    path = tmp_path / "bench"
    arguments = [
        "--queue-path",
        path,
        "--messages",
        500,
        "--payload-bytes",
        10,
        *(["--read"] if read else []),
    ]
    lines = chron_cli("bench", *arguments).splitlines()
    number = r"\d+\.\d+"
    expected = [re.escape(f"queue_path={path}")]
    for what in ["write", "read"][: 1 + read]:
        expected.append(rf"{what}_elapsed_ms={number} {what}_msg_per_sec={number} {what}_mb_per_sec={number}")
    expected.append("cleanup=removed")
    assert len(lines) == len(expected)
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line)
    assert not path.exists()


def test_bench_keeps_the_queue_on_request(tmp_path: Path) -> None:
    path = tmp_path / "bench"
    output = chron_cli("bench", "--queue-path", path, "--messages", 3, "--payload-bytes", 1, "--keep")
    assert output.splitlines()[-1] == "cleanup=kept"
    assert len(chron_cli("tail", path).splitlines()) == 6


def test_an_error_is_one_line_on_standard_error_and_exit_code_1(tmp_path: Path) -> None:
    write_messages(tmp_path / "q", 1)
    overwrite(tmp_path / "q" / layout.CONTROL_FILE, 0, b"JUNK")
    for arguments in (
        ["inspect", tmp_path],
        ["tail", tmp_path],
        ["inspect", tmp_path / "q"],
        ["doctor", "/no"],
    ):
        ended = run("chron-cli", *arguments)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert re.fullmatch(r"error: [^\n]+\n", ended.stderr)


def test_wrong_usage_is_exit_code_2_and_monitor_is_not_offered(tmp_path: Path) -> None:
    wrong: list[list[object]] = [
        [],
        ["inspect"],
        ["nonsense"],
        ["monitor", tmp_path],
        ["tail", "--limit", 0, tmp_path],
        ["tail", "--from", "yesterday", tmp_path],
        ["bench", "--messages", "many"],
    ]
    for arguments in wrong:
        assert CliRunner().invoke(app, [str(argument) for argument in arguments]).exit_code == 2
    assert run("chron-cli", "monitor", tmp_path).returncode == 2


def test_the_installed_command_prints_the_same_as_the_one_tested_here(tmp_path: Path) -> None:
    write_messages(tmp_path, 2)
    ended = run("chron-cli", "tail", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == chron_cli("tail", tmp_path)
