"""`tail` as a process: following, signals, kill -9, broken and blocked pipes, deleted segments."""

import fcntl
import json
import os
import shutil
import signal
import struct
import termios
from pathlib import Path

import pytest

from everlog.cli.tail import BATCH_MAX, TailRequest, tail
from everlog.clock import SystemClock
from everlog.errors import Corrupt, SegmentMissing
from everlog.fs import OsFs
from everlog.queue import MessageView, Queue, StartMode, layout
from everlog.queue.inspect import inspect_queue
from everlog.queue.segment import remove_segment
from tests.support import ring_twin
from tests.support.command_lines import Started, run, started
from tests.support.processes import eventually
from tests.support.queues import RECORD_SIZE, RECORDS_PER_SEGMENT, SMALL, overwrite, snapshot, write_messages


def seqs(text: str) -> list[int]:
    """The sequence numbers in the output of `tail --json`."""
    return [json.loads(line)["seq"] for line in text.splitlines()]


def reads(command: Started, path: Path) -> bool:
    """Whether a tail has opened the queue."""
    return str(path) in Path(f"/proc/{command.process.pid}/maps").read_text(encoding="utf-8")


def saved(path: Path, name: str) -> tuple[int, int]:
    """The committed position of a reader."""
    stored = inspect_queue(OsFs(), SystemClock(), str(path)).stored
    assert stored is not None
    position = stored[name]
    assert not isinstance(position, Corrupt)
    return position.segment_id, position.offset


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_follower_prints_what_comes_and_ends_cleanly_by_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    with (
        Queue.open_publisher(tmp_path, segment_size=SMALL) as writer,
        started("everlog", "queue", "tail", "-f", "--format", "text", tmp_path) as command,
    ):
        for text in (b"first", b"second"):
            writer.append(1, text, timestamp_ns=5)
            assert command.line().startswith(f"seq={writer.next_seq - 1} ts=5 type=1 len={len(text)}")
            assert command.line() == text.decode()
        for _ in range(3 * RECORDS_PER_SEGMENT):
            writer.append(1, b"12345678")
            command.line()
            assert command.line() == "12345678"
        assert command.end(number) == (0, "", "")
    assert not (tmp_path / "readers").exists()


def test_kill_minus_nine_leaves_no_trace(tmp_path: Path) -> None:
    write_messages(tmp_path, 3)
    before = snapshot(tmp_path)
    with started("everlog", "queue", "tail", "-f", "--json", tmp_path) as command:
        assert [json.loads(command.line())["seq"] for _ in range(3)] == [0, 1, 2]
        assert command.end(signal.SIGKILL)[0] == -signal.SIGKILL
    assert snapshot(tmp_path) == before  # no file, and no waiter left in the control block either


def test_a_tail_without_a_name_changes_nothing_at_all(tmp_path: Path) -> None:
    write_messages(tmp_path, 20)
    before = snapshot(tmp_path)
    assert run("everlog", "queue", "tail", tmp_path).returncode == 0
    assert run("chron-cli", "tail", "--limit", "3", tmp_path).returncode == 0
    assert snapshot(tmp_path) == before


def test_a_named_reader_goes_on_where_its_last_printed_message_ended(tmp_path: Path) -> None:
    write_messages(tmp_path, 10)
    arguments = ("queue", "tail", "--json", "--reader", "bob")
    assert seqs(run("everlog", *arguments, "--limit", 3, tmp_path).stdout) == [0, 1, 2]
    assert saved(tmp_path, "bob") == (0, 64 + 3 * RECORD_SIZE)
    assert seqs(run("everlog", *arguments, tmp_path).stdout) == list(range(3, 10))
    assert seqs(run("everlog", *arguments, tmp_path).stdout) == []
    assert seqs(run("everlog", *arguments, "--from", 8, tmp_path).stdout) == [8, 9]
    assert seqs(run("everlog", *arguments, "--from", "earliest", "--limit", 1, tmp_path).stdout) == [0]


def test_a_named_follower_has_committed_what_it_printed_when_a_signal_ends_it(tmp_path: Path) -> None:
    write_messages(tmp_path, 2)
    with started("everlog", "queue", "tail", "-f", "--json", "--reader", "bob", tmp_path) as command:
        assert [json.loads(command.line())["seq"] for _ in range(2)] == [0, 1]
        assert command.end(signal.SIGTERM) == (0, "", "")
    assert saved(tmp_path, "bob") == (0, 64 + 2 * RECORD_SIZE)


def test_a_second_tail_of_the_same_name_is_refused(tmp_path: Path) -> None:
    write_messages(tmp_path, 1)
    with started("everlog", "queue", "tail", "-f", "--json", "--reader", "bob", tmp_path) as command:
        command.line()
        second = run("everlog", "queue", "tail", "--json", "--reader", "bob", tmp_path)
        assert second.returncode == 1
        assert json.loads(second.stderr)["error"]["code"] == "reader_already_active"
        command.end(signal.SIGTERM)


def test_a_reader_of_the_output_that_has_seen_enough_ends_it_silently(tmp_path: Path) -> None:
    write_messages(
        tmp_path,
        3000,
    )
    with started("everlog", "queue", "tail", "-f", tmp_path) as command:
        assert command.line().startswith("seq=0 ")
        assert command.process.stdout is not None
        command.process.stdout.close()
        assert command.process.stderr is not None
        assert command.process.stderr.read() == b""
        assert command.process.wait(60) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_even_while_its_output_is_not_read(tmp_path: Path, number: signal.Signals) -> None:
    with Queue.open_publisher(tmp_path, segment_size=1 << 20, retention=False) as writer:
        for _ in range(300):
            writer.append(1, bytes(1000))
    with started("everlog", "queue", "tail", "-f", "--reader", "bob", tmp_path) as command:
        pipe = command.process.stdout
        assert pipe is not None

        def waiting_bytes() -> int:
            return int(struct.unpack("i", fcntl.ioctl(pipe.fileno(), termios.FIONREAD, bytes(4)))[0])

        eventually("the pipe is full", lambda: waiting_bytes() >= 60_000)
        command.process.send_signal(number)
        assert command.process.wait(60) == 0
    assert saved(tmp_path, "bob") == (0, 64)  # nothing was printed completely, so nothing is committed


def test_without_follow_a_signal_is_told_by_the_exit_code(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path, segment_size=1 << 20, retention=False) as writer:
        for _ in range(300):
            writer.append(1, bytes(1000))
    with started("everlog", "queue", "tail", tmp_path) as command:
        command.line()
        command.process.send_signal(signal.SIGINT)
        assert command.process.wait(60) == 130


def test_without_follow_it_ends_although_a_writer_never_pauses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Queue.open_publisher(tmp_path, segment_size=SMALL, retention=False) as writer:
        for _ in range(10):
            writer.append(1, b"12345678")

        def render(view: MessageView) -> str:
            assert view.seq < 100, "it runs after the writer for ever"
            writer.append(1, b"12345678")
            return f"{view.seq} "

        tail(TailRequest(str(tmp_path)), render)
    assert capsys.readouterr().out == "0 1 2 3 4 5 6 7 8 9 "


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], list(range(20))),
        (["--from", "earliest"], list(range(20))),
        (["--from", "latest"], []),
        (["--from", "0"], list(range(20))),
        (["--from", "13"], list(range(13, 20))),
        (["--from", "13", "--limit", "2"], [13, 14]),
        (["--from", "20"], []),
        (["--from", "99999"], []),
    ],
)
def test_from_chooses_where_to_start(tmp_path: Path, options: list[str], expected: list[int]) -> None:
    write_messages(tmp_path, 20)
    ended = run("everlog", "queue", "tail", "--json", *options, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert seqs(ended.stdout) == expected


def test_a_follower_waits_for_a_sequence_number_that_does_not_exist_yet(tmp_path: Path) -> None:
    with (
        Queue.open_publisher(tmp_path, segment_size=SMALL) as writer,
        started("everlog", "queue", "tail", "-f", "--json", "--from", 5, "--limit", 2, tmp_path) as command,
    ):
        eventually("it reads the queue", lambda: reads(command, tmp_path))
        for _ in range(10):
            writer.append(1, b"")
        code, out, _ = command.wait()
    assert (code, seqs(out)) == (0, [5, 6])


def test_a_follower_whose_next_segment_was_deleted_says_so_and_goes_on(tmp_path: Path) -> None:
    with (
        Queue.open_publisher(tmp_path, segment_size=SMALL, retention=False) as writer,
        started("everlog", "queue", "tail", "-f", "--json", tmp_path) as command,
    ):
        writer.append(1, b"12345678")
        assert json.loads(command.line())["seq"] == 0
        command.process.send_signal(signal.SIGSTOP)
        for _ in range(5 * RECORDS_PER_SEGMENT):
            writer.append(1, b"12345678")
        for segment_id in range(3):
            remove_segment(OsFs(), str(tmp_path), segment_id)
        command.process.send_signal(signal.SIGCONT)
        # It stands on segment 0, which it has mapped, so it loses segments 1 and 2 only.
        numbers = [*range(1, 7), *range(21, 36)]
        assert [json.loads(command.line())["seq"] for _ in numbers] == numbers
        warning = json.loads(command.line("stderr"))["warning"]
        assert warning["code"] == "segment_missing"
        assert "going on from the oldest segment" in warning["message"]
        assert command.end(signal.SIGTERM) == (0, "", "")


def test_a_named_reader_whose_segment_was_deleted_is_told_what_to_do(tmp_path: Path) -> None:
    write_messages(tmp_path, 3 * RECORDS_PER_SEGMENT)
    run("everlog", "queue", "tail", "--reader", "bob", "--limit", 1, tmp_path)
    remove_segment(OsFs(), str(tmp_path), 0)
    ended = run("everlog", "queue", "tail", "--reader", "bob", tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "--from earliest or --from latest" in ended.stderr
    again = run("everlog", "queue", "tail", "--json", "--reader", "bob", "--from", "earliest", tmp_path)
    assert seqs(again.stdout) == list(range(RECORDS_PER_SEGMENT, 3 * RECORDS_PER_SEGMENT))


def test_a_follower_notices_that_the_queue_was_created_anew(tmp_path: Path) -> None:
    path = tmp_path / "q"
    write_messages(path, 2)
    with started("everlog", "queue", "tail", "-f", "--json", path) as command:
        assert [json.loads(command.line())["seq"] for _ in range(2)] == [0, 1]
        shutil.rmtree(path)
        write_messages(path, 3)
        assert [json.loads(command.line())["seq"] for _ in range(3)] == [0, 1, 2]
        assert json.loads(command.line("stderr"))["warning"]["code"] == "queue_replaced"
        assert command.end(signal.SIGTERM) == (0, "", "")


def test_a_damaged_record_ends_it_after_everything_before_was_printed_and_committed(tmp_path: Path) -> None:
    write_messages(tmp_path, 5)
    overwrite(tmp_path / layout.segment_name(0), 64 + 3 * RECORD_SIZE + 64, b"?")
    ended = run("everlog", "queue", "tail", "--json", "--reader", "bob", tmp_path)
    assert ended.returncode == 1
    assert seqs(ended.stdout) == [0, 1, 2]
    assert json.loads(ended.stderr)["error"]["code"] == "corrupt"
    assert saved(tmp_path, "bob") == (0, 64 + 3 * RECORD_SIZE)
    assert seqs(run("everlog", "queue", "tail", "--json", "--from", 4, tmp_path).stdout) == [4]


def test_sequence_numbers_that_start_anew_within_a_queue_are_reported_as_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_messages(tmp_path, 4)
    segment = tmp_path / layout.segment_name(0)
    data = bytearray(segment.read_bytes())
    for number in (2, 3):
        ring_twin.append(data, 64 + number * RECORD_SIZE, number - 2, 7, 1, b"again")
    segment.write_bytes(data)
    with pytest.raises(Corrupt, match=r"offset 320 of segment 0 has seq 0, expected 2"):
        tail(TailRequest(str(tmp_path)), lambda view: f"{view.seq} ")
    assert capsys.readouterr().out == "0 1 "


def test_the_limit_counts_messages_on_both_sides_of_a_deleted_segment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_messages(tmp_path, 4 * RECORDS_PER_SEGMENT)

    def render(view: MessageView) -> str:
        if view.seq == 0:
            remove_segment(OsFs(), str(tmp_path), 1)
        return f"{view.seq} "

    tail(TailRequest(str(tmp_path), follow=True, limit=9), render)
    captured = capsys.readouterr()
    assert captured.out == "0 1 2 3 4 5 6 14 15 "
    assert captured.err.startswith("warning: reader segment missing: segment 1")


def test_a_queue_without_any_segment_left_is_an_error(tmp_path: Path) -> None:
    write_messages(tmp_path, 2 * RECORDS_PER_SEGMENT)

    def render(view: MessageView) -> str:
        for name in os.listdir(tmp_path):
            if name.endswith(".q"):
                (tmp_path / name).unlink()
        return ""

    with pytest.raises(SegmentMissing, match="no segment to seek in"):
        tail(TailRequest(str(tmp_path), follow=True), render)


def test_large_and_many_messages_come_in_batches_without_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 2 * BATCH_MAX + 3
    write_messages(tmp_path, count)
    tail(TailRequest(str(tmp_path), start=StartMode.EARLIEST), lambda view: f"{view.seq}\n")
    assert capsys.readouterr().out.split() == [str(seq) for seq in range(count)]
    tail(TailRequest(str(tmp_path), limit=5), lambda view: f"{view.seq}:{'x' * (1 << 20)}\n")
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == list("01234")
