"""`bench`: measures what it says, refuses foreign directories, leaves nothing behind however it ends."""

import json
import os
import signal
from pathlib import Path

import pytest

from everlog.cli.bench import BenchRequest, Rate, bench
from everlog.clock import NS_PER_S, SystemClock
from everlog.errors import Corrupt, PayloadTooLarge, Unsupported
from everlog.queue import Queue
from tests.support.command_lines import on_terminal, run, started
from tests.support.processes import eventually


def request(path: Path | None, **changes: object) -> BenchRequest:
    """A small benchmark."""
    settings: dict[str, object] = {
        "queue_path": str(path) if path else None,
        "messages": 1500,
        "payload_bytes": [16],
        "read": True,
        "keep": False,
    }
    return BenchRequest(**{**settings, **changes})  # type: ignore[arg-type]


def test_a_rate_is_messages_and_payload_per_second() -> None:
    rate = Rate(messages=2000, payload_bytes=500, elapsed_ns=NS_PER_S // 2)
    assert (rate.elapsed_ms, rate.messages_per_s, rate.megabytes_per_s) == (500.0, 4000.0, 2.0)


def test_every_payload_size_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "bench"
    result = bench(request(path, payload_bytes=[0, 16, 300], keep=True), SystemClock(), show_progress=False)
    assert [run.payload_bytes for run in result.runs] == [0, 16, 300]
    assert all(run.read is not None and run.read.elapsed_ns > 0 for run in result.runs)
    with Queue.open_subscriber(path, None) as reader:
        lengths = [len(message) for message in reader]
    assert lengths == [0] * 1500 + [16] * 1500 + [300] * 1500


def test_a_directory_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(Unsupported, match="is not empty"):
        bench(request(tmp_path), SystemClock(), show_progress=False)
    assert os.listdir(tmp_path) == ["precious"]


def test_an_empty_directory_stays_and_a_new_one_goes(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        bench(request(tmp_path / name), SystemClock(), show_progress=False)
    assert os.listdir(tmp_path) == ["empty"]
    assert os.listdir(tmp_path / "empty") == []


def test_an_error_cleans_up_too(tmp_path: Path) -> None:
    with pytest.raises(PayloadTooLarge):
        bench(request(tmp_path / "new", payload_bytes=[1 << 30]), SystemClock(), show_progress=False)
    assert os.listdir(tmp_path) == []


def test_messages_that_do_not_come_back_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.cli.bench._read", lambda *_: (_ for _ in ()).throw(Corrupt("lost")))
    with pytest.raises(Corrupt):
        bench(request(tmp_path / "new"), SystemClock(), show_progress=False)
    assert os.listdir(tmp_path) == []


def test_the_default_is_a_temporary_directory_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ended = run("everlog", "queue", "bench", "--json", "--messages", 10)
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["queue_path"].startswith(f"{tmp_path}/everlog-bench-")
    assert os.listdir(tmp_path) == []


def test_bench_as_json(tmp_path: Path) -> None:
    sizes = ["--payload-bytes", 8, "--payload-bytes", 16]
    ended = run(
        "everlog",
        "queue",
        "bench",
        "--json",
        "--read",
        "--messages",
        20,
        "--queue-path",
        tmp_path / "q",
        *sizes,
    )
    document = json.loads(ended.stdout)
    assert (document["queue_path"], document["cleanup"]) == (str(tmp_path / "q"), "removed")
    assert [run["payload_bytes"] for run in document["runs"]] == [8, 16]
    for measured in document["runs"]:
        assert measured["messages"] == 20
        for what in ("write", "read"):
            assert set(measured[what]) == {"elapsed_ms", "msg_per_sec", "mb_per_sec"}
            assert all(value >= 0 for value in measured[what].values())


def test_bench_as_text(tmp_path: Path) -> None:
    lines = run(
        "everlog", "queue", "bench", "--messages", 20, "--queue-path", tmp_path / "q"
    ).stdout.splitlines()
    assert lines[0] == f"queue at {tmp_path / 'q'}"
    assert lines[1].split() == ["what", "payload", "bytes", "messages", "elapsed", "ms", "messages/s", "MB/s"]
    assert lines[2].split()[:3] == ["write", "256", "20"]
    assert lines[3:] == ["removed again"]


def test_a_terminal_shows_progress_and_a_pipe_does_not(tmp_path: Path) -> None:
    arguments = ("queue", "bench", "--messages", 50_000, "--queue-path", tmp_path / "q")
    code, shown = on_terminal("everlog", *arguments)
    assert code == 0
    assert "100%" in shown
    ended = run("everlog", *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "%" not in ended.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_removes_the_queue(tmp_path: Path, number: signal.Signals, code: int) -> None:
    path = tmp_path / "q"
    with started("everlog", "queue", "bench", "--messages", 100_000_000, "--queue-path", path) as command:
        eventually("it writes", (path / "000000000.q").exists)
        assert command.end(number) == (code, "", "")
    assert not path.exists()
