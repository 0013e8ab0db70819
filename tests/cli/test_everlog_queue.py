"""`everlog queue ls | inspect | tail | doctor`: text for people, JSON for programs, one line for errors."""

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from typer.testing import CliRunner

import everlog
from everlog.cli.main import app
from everlog.clock import NS_PER_S, SystemClock, TestClock
from everlog.queue import Queue, layout
from tests.support.command_lines import command_line, on_terminal, run
from tests.support.queues import (
    RECORDS_PER_SEGMENT,
    SMALL,
    flip,
    name_dead_writer,
    overwrite,
    payload_of,
    snapshot,
    write_messages,
)


def everlog_queue(*arguments: object, code: int = 0) -> str:
    """Run `everlog queue ...` in this process and return its standard output."""
    result = CliRunner().invoke(app, ["queue", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout


def everlog_json(*arguments: object, code: int = 0) -> Any:
    """Run `everlog queue ... --json` and return the one document it prints."""
    return json.loads(everlog_queue(*arguments, "--json", code=code))


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A queue of three segments, a dead writer and two readers."""
    path = tmp_path / "root" / "q"
    write_messages(path, 2 * RECORDS_PER_SEGMENT + 1)
    name_dead_writer(path)
    Queue.open_subscriber(path, "one").close()
    Queue.open_subscriber(path, "two", "latest").close()
    return path


def test_the_version_is_printed() -> None:
    ended = run("everlog", "--version")
    assert (ended.returncode, ended.stdout) == (0, f"everlog {everlog.__version__}\n")


# -- inspect -------------------------------------------------------------------------------


def test_inspect_as_json_holds_everything(queue: Path) -> None:
    document = everlog_json("inspect", queue)
    assert document["queue"] == str(queue)
    assert (document["head_segment"], document["head_offset"], document["head_pos"]) == (2, 192, 2240)
    assert document["segment_size"] == SMALL
    assert document["writer_epoch"] == 1
    assert document["head_torn"] is False
    assert document["control_error"] is None
    assert document["index"] is None
    assert document["lock"]["alive"] is False
    assert set(document["lock"]) == {"pid", "start_time", "epoch", "alive"}
    assert document["segments"] == [
        {"segment": number, "bytes": SMALL, "sealed": number < 2, "error": None} for number in range(3)
    ]
    assert [reader["name"] for reader in document["readers"]] == ["one", "two"]
    assert [reader["lag_bytes"] for reader in document["readers"]] == [2240 - 64, 0]
    count = 2 * RECORDS_PER_SEGMENT + 1
    assert (document["first_seq"], document["last_seq"]) == (0, count - 1)
    assert [(each["next_seq"], each["lag_messages"]) for each in document["readers"]] == [
        (0, count),
        (count, 0),
    ]
    assert document["readers"][0]["lag_ms"] >= 0 and document["readers"][1]["lag_ms"] == 0
    for key in ("writer_heartbeat_ns", "notify_seq", "waiters_pending", "bytes_on_disk"):
        assert isinstance(document[key], int)
    assert document["unreadable"] == {}


def test_inspect_in_a_pipe_is_plain_text(queue: Path) -> None:
    text = everlog_queue("inspect", queue)
    assert "\x1b" not in text
    assert text.isascii()
    lines = text.splitlines()
    assert lines[0].split() == ["queue", str(queue)]
    assert lines[1].split(maxsplit=1) == ["head", "segment 2, offset 192"]
    segments = lines.index("segments")
    assert lines[segments + 1].split() == ["segment", "size", "state"]
    assert lines[segments + 2].split() == ["0", "1.0", "KiB", "sealed"]
    readers = lines.index("readers")
    count = 2 * RECORDS_PER_SEGMENT + 1
    assert f"messages          {count}, seq 0 to {count - 1}" in lines
    assert lines[readers + 1].split() == [
        "reader",
        "next",
        "seq",
        "lag",
        "bytes",
        "segment",
        "offset",
        "heartbeat",
    ]
    assert lines[readers + 2].split()[:5] == ["one", "0", str(count), "messages,", ANY]
    assert lines[readers + 2].split()[5] == "s"
    assert lines[readers + 3].split()[:3] == ["two", str(count), "0"]


def test_inspect_shows_what_it_can_of_a_damaged_queue_and_then_fails(queue: Path) -> None:
    overwrite(queue / layout.CONTROL_FILE, layout.CTRL_INIT_STATE, struct.pack("<I", 1))
    (queue / "readers/one.meta").write_bytes(b"short")
    (queue / layout.LOCK_FILE).unlink()
    (queue / layout.LOCK_FILE).mkdir()
    ended = run("everlog", "queue", "inspect", "--json", queue)
    assert ended.returncode == 1
    document = json.loads(ended.stdout)
    assert document["head_segment"] is None
    assert document["control_error"]["code"] == "corrupt_metadata"
    assert [reader["error"] is None for reader in document["readers"]] == [False, True]
    assert "not a regular file" in document["unreadable"]["writer.lock"]
    assert json.loads(ended.stderr)["error"] == document["control_error"]
    text = everlog_queue("inspect", queue, code=1)
    assert "reader meta is 5 bytes long" in text
    assert "unreadable: it is not a regular file" in text


def test_inspect_of_many_segments_lists_the_newest(tmp_path: Path) -> None:
    write_messages(tmp_path, 30 * RECORDS_PER_SEGMENT)
    text = everlog_queue("inspect", tmp_path)
    assert "segments (newest 20 of 30; --json lists all)" in text
    assert len(everlog_json("inspect", tmp_path)["segments"]) == 30


# -- ls ------------------------------------------------------------------------------------


def test_ls_lists_every_queue_in_order(queue: Path) -> None:
    write_messages(queue.parent / "a/b", 1)
    broken = Path(shutil.copytree(queue, queue.parent / "broken"))
    overwrite(broken / layout.CONTROL_FILE, 0, b"JUNK")
    document = everlog_json("ls", queue.parent)
    assert document["root"] == str(queue.parent)
    expected = [str(queue.parent / name) for name in ("a/b", "broken", "q")]
    assert [entry["queue"] for entry in document["queues"]] == expected
    first, second, third = document["queues"]
    assert (first["head_segment"], first["head_offset"], first["segments"]) == (0, 192, 1)
    assert (first["writer_alive"], first["readers"]) == (True, 0)  # this process wrote it and still runs
    assert second["control_error"]["code"] == "corrupt_metadata"
    assert second["head_segment"] is None
    assert (third["writer_alive"], third["readers"], third["segments"]) == (False, 2, 3)
    assert all(isinstance(entry["bytes_on_disk"], int) for entry in document["queues"])
    rows = [line.split() for line in everlog_queue("ls", queue.parent).splitlines()[1:]]
    assert rows[0] == ["queue", "messages", "on", "disk", "writer", "readers", "most", "behind"]
    count = str(2 * RECORDS_PER_SEGMENT + 1)
    assert [row[:2] for row in rows[1:]] == [
        [expected[0], "1"],
        [expected[1], "unreadable"],
        [expected[2], count],
    ]
    assert rows[3][-4:-2] == [count, "messages,"]
    assert [entry["messages"] for entry in document["queues"]] == [1, None, int(count)]


def test_ls_of_a_directory_without_queues_says_so(tmp_path: Path) -> None:
    assert everlog_queue("ls", tmp_path) == f"no queues found under {tmp_path}\n"
    assert everlog_json("ls", tmp_path) == {"root": str(tmp_path), "queues": []}


# -- tail ----------------------------------------------------------------------------------


def test_tail_formats(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path, segment_size=SMALL) as writer:
        writer.append(1, "grün\n\x1b[2J".encode(), timestamp_ns=1)
        writer.append(2, b"\xff\x00", timestamp_ns=2)
        writer.append(3, b"", timestamp_ns=3)
    assert everlog_queue("tail", tmp_path, "--format", "text").splitlines() == [
        "seq=0 ts=1 type=1 len=10",
        "grün",
        "\\x1b[2J",
        "seq=1 ts=2 type=2 len=2",
        "\\xff\\x00",
        "seq=2 ts=3 type=3 len=0",
    ]
    assert "0000: ff 00\n" in everlog_queue("tail", tmp_path)
    lines = everlog_queue("tail", tmp_path, "--json").splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "seq": 0,
            "timestamp_ns": 1,
            "type_id": 1,
            "length": 10,
            "payload_hex": "6772c3bc6e0a1b5b324a",
            "payload_text": "grün\n\x1b[2J",
        },
        {
            "seq": 1,
            "timestamp_ns": 2,
            "type_id": 2,
            "length": 2,
            "payload_hex": "ff00",
            "payload_text": None,
        },
        {"seq": 2, "timestamp_ns": 3, "type_id": 3, "length": 0, "payload_hex": "", "payload_text": ""},
    ]
    assert everlog_queue("tail", tmp_path, "--format", "json").splitlines() == lines


# -- doctor --------------------------------------------------------------------------------


def test_doctor_as_json(queue: Path) -> None:
    before = snapshot(queue.parent)
    document = everlog_json("doctor", queue.parent)
    assert snapshot(queue.parent) == before
    assert document["root"] == str(queue.parent)
    (result,) = document["queues"]
    assert result["queue"] == str(queue)
    assert result["retention_candidates"] == {"count": 0, "first": None, "last": None}
    assert result["control_error"] is None
    assert [finding["code"] for finding in result["findings"]] == ["stale_lock"]
    assert set(result["findings"][0]) == {"code", "severity", "subject", "message"}


def test_doctor_as_text_names_each_queue_and_its_findings(queue: Path) -> None:
    (queue / "readers/two.meta").write_bytes(b"?")
    (queue / layout.LOCK_FILE).unlink()
    lines = everlog_queue("doctor", queue.parent, code=3).splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["queue", str(queue)],
        ["writer", "none"],
        ["deletable", "segments", "0"],
    ]
    assert lines[5].startswith("error     reader_meta_unreadable  ")
    (queue / "readers/two.meta").unlink()
    assert "findings            none" in everlog_queue("doctor", queue.parent)


def test_doctor_shows_the_range_of_deletable_segments(queue: Path) -> None:
    for name in ("one", "two"):
        (queue / f"readers/{name}.meta").unlink()
    assert "deletable segments  2, 0 to 1" in everlog_queue("doctor", queue.parent)
    (result,) = everlog_json("doctor", queue.parent)["queues"]
    assert result["retention_candidates"] == {"count": 2, "first": 0, "last": 1}


def test_doctor_with_check_says_by_its_exit_code_whether_to_act(queue: Path) -> None:
    everlog_queue("doctor", "--check", queue.parent, code=0)  # a stale lock is only good to know
    long_ago = TestClock(SystemClock().wall_ns() - 100 * NS_PER_S)
    Queue.open_subscriber(queue, "gone", clock=long_ago).close()
    everlog_queue("doctor", queue.parent, code=0)
    everlog_queue("doctor", "--check", queue.parent, code=3)
    everlog_json("doctor", "--check", queue.parent, code=3)


def test_doctor_tells_of_errors_by_its_exit_code_and_looks_at_every_record_with_deep(queue: Path) -> None:
    flip(queue / layout.segment_name(0), 64 + 8)
    everlog_queue("doctor", queue.parent, code=0)
    assert "record_damaged" in everlog_queue("doctor", "--deep", queue.parent, code=3)
    (result,) = everlog_json("doctor", "--deep", queue.parent, code=3)["queues"]
    (finding,) = [finding for finding in result["findings"] if finding["severity"] == "error"]
    assert (finding["code"], finding["subject"]) == ("record_damaged", "000000000.q:64")


def test_doctor_without_queues_says_so(tmp_path: Path) -> None:
    assert everlog_queue("doctor", tmp_path) == f"no queues found under {tmp_path}\n"
    assert everlog_json("doctor", tmp_path) == {"root": str(tmp_path), "queues": []}


# -- errors and terminals ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["inspect", "nothing"], "queue_not_found"),
        (["tail", "nothing"], "queue_not_found"),
        (["tail", "-f", "nothing"], "queue_not_found"),
        (["tail", "q", "--reader", "../x"], "invalid_name"),
        (["ls", "nothing"], "io"),
        (["doctor", "nothing"], "io"),
        (["bench", "--queue-path", "q"], "unsupported"),
    ],
)
def test_every_error_is_one_line_on_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_messages(tmp_path / "q", 1)
    ended = run("everlog", "queue", *arguments)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    ended = run("everlog", "queue", *arguments, "--json")
    assert (ended.returncode, ended.stdout) == (1, "")
    problem = json.loads(ended.stderr)
    assert set(problem) == {"error"}
    assert set(problem["error"]) == {"code", "message"}
    assert problem["error"]["code"] == code


def test_wrong_usage_is_exit_code_2(tmp_path: Path) -> None:
    wrong: list[list[object]] = [
        [],
        ["queue"],
        ["nonsense"],
        ["queue", "inspect"],
        ["queue", "tail", "--from", "-1", tmp_path],
        ["queue", "tail", "--format", "xml", tmp_path],
        ["queue", "bench", "--payload-bytes", "-1"],
        ["queue", "ls", "--loud"],
    ]
    for arguments in wrong:
        assert CliRunner().invoke(app, [str(argument) for argument in arguments]).exit_code == 2


def test_on_a_terminal_tables_are_drawn_and_nothing_is_taken_for_markup(tmp_path: Path) -> None:
    path = tmp_path / "[red]q[/red]"
    write_messages(path, 2 * RECORDS_PER_SEGMENT)
    name_dead_writer(path)
    Queue.open_subscriber(path, "[bold]one").close()
    for arguments in (["inspect", path], ["ls", tmp_path], ["doctor", tmp_path]):
        code, shown = on_terminal("everlog", "queue", *arguments, columns=300)
        assert code == 0
        assert "\x1b[1m" in shown
        assert "─────" in shown
        assert str(path) in shown
    assert "[bold]one" in on_terminal("everlog", "queue", "inspect", path, columns=300)[1]


def test_a_path_that_is_no_text_is_shown_escaped(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n"))
    write_messages(path, 1)
    for arguments in (["ls", tmp_path], ["doctor", tmp_path], ["inspect", path]):
        ended = run("everlog", "queue", *arguments)
        assert ended.returncode == 0
        assert "\\udcff\\n" in ended.stdout
    assert json.loads(run("everlog", "queue", "ls", "--json", tmp_path).stdout)["queues"][0]["queue"] == str(
        path
    )
    (path / layout.CONTROL_FILE).unlink()
    ended = run("everlog", "queue", "inspect", path)
    assert ended.stderr.startswith("error: no queue at ")
    assert ended.stderr.count("\n") == 1


def test_a_full_disk_under_the_output_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    write_messages(tmp_path, 1)
    with open("/dev/full", "w", encoding="utf-8") as full:
        ended = subprocess.run(
            command_line("everlog", "queue", "inspect", tmp_path),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == "error: cannot go on: [Errno 28] No space left on device\n"


def test_messages_written_by_the_helper_are_what_tail_prints(queue: Path) -> None:
    first = json.loads(everlog_queue("tail", queue, "--json", "--limit", 1))
    assert first["payload_hex"] == payload_of(0).hex()
