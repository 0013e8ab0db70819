"""`everlog replay serve`: commands on standard input, signals, status lines."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from typer.testing import CliRunner

from everlog.cli import main
from tests.support.command_lines import command_line, run, started
from tests.support.import_runs import messages_of
from tests.support.market_queues import START_NS, write_market_queue

PATIENCE_S = 60


def test_a_queue_is_played_into_another_until_its_end(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "q"))
    done = run(
        "everlog",
        "replay",
        "serve",
        tmp_path / "q",
        "--speed",
        "max",
        "--into-queue",
        tmp_path / "l",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["state"], last["messages"]) == ("done", len(messages_of(tmp_path / "q")))
    assert [(one.timestamp_ns, one.payload) for one in messages_of(tmp_path / "l")] == [
        (one.timestamp_ns, one.payload) for one in messages_of(tmp_path / "q")
    ]


def test_commands_come_from_standard_input(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "q"))
    process = subprocess.Popen(
        command_line(
            "everlog", "replay", "serve", tmp_path / "q", "--into-queue", tmp_path / "l", "--paused", "--json"
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = process.communicate(f"seek {START_NS}\nbackwards\nspeed max\nresume\n".encode(), PATIENCE_S)
    assert process.returncode == 0, err
    states = [json.loads(line)["state"] for line in out.splitlines()]
    assert states[:3] == ["paused", "paused", "playing"] and states[-1] == "done"
    assert b"there are pause" in err
    assert min(one.timestamp_ns for one in messages_of(tmp_path / "l")) == START_NS


def test_a_signal_ends_it_cleanly(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "q"))
    with started("everlog", "replay", "serve", tmp_path / "q", "--ws", 0, "--speed", "0.001") as command:
        assert command.line().startswith("ws://127.0.0.1:")
        code, _, err = command.end(signal.SIGINT)
    assert (code, err) == (0, "")


def test_nowhere_to_publish_and_a_wrong_speed_are_refused(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "q"))
    for words, flags in (("nothing to publish", []), ("up to 1000", ["--ws", "0", "--speed", "2000"])):
        done = CliRunner().invoke(main.app, ["replay", "serve", str(tmp_path / "q"), *flags])
        assert done.exit_code == 1 and words in done.stderr
