"""`everlog archive`: what the commands do, print and refuse, their JSON and exit codes, signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everlog.cli.main import app
from everlog.queue import Queue
from tests.support.archives import FIRST_NS, known_messages, write_archive
from tests.support.command_lines import Started, started
from tests.support.files import flip_bit, tree
from tests.support.processes import eventually
from tests.support.queues import read_all

DIRECTORY = "v1/binance/btc-usdt/2023-11-14/book"


def archive(*arguments: object, code: int = 0) -> str:
    """Run `everlog archive ...` in this process and return its standard output."""
    result = CliRunner().invoke(app, ["archive", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout


def archive_json(*arguments: object, code: int = 0) -> Any:
    return json.loads(archive(*arguments, "--json", code=code))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_archive(tmp_path / DIRECTORY, known_messages(100))
    return tmp_path


def fill(path: Path, count: int) -> None:
    with Queue.open_publisher(path, segment_size=1024, retention=False) as writer:
        for number in range(count):
            writer.append(1, b"%d" % number, FIRST_NS + number)


def test_segments_go_through_all_tiers_and_back(root: Path) -> None:
    before = archive_json("cat", root, "--limit", 1)
    count = len(list((root / DIRECTORY).glob("*.q")))
    listed = archive_json("ls", root)["directories"][0]
    assert (listed["plain"], listed["compressed"], listed["symbol"]) == (count, 0, "btc-usdt")
    files = tree(root)
    assert len(archive_json("compress", root, "--dry-run")["would_compress"]) == count
    assert f"would compress {count} segments" in archive("compress", root, "--dry-run")
    assert tree(root) == files
    assert len(archive_json("compress", root)["compressed"]) == count
    assert archive("compress", root).startswith("compressed 0 segments")
    url = f"file://{root}/bucket"
    assert len(archive_json("move", root / "v1", "--to", url, "--dry-run")["would_move"]) == count
    assert archive("move", root / "v1", "--to", url).startswith(f"moved {count} segments")
    listed = archive_json("ls", root / "v1")["directories"][0]
    assert (listed["compressed"], listed["remote"], listed["local_bytes"]) == (0, count, 0)
    assert (root / "bucket" / DIRECTORY / "000000000.q.zst").exists()
    assert archive_json("cat", root / "v1", "--limit", 1, "--cache", root / "cache") == before
    assert archive_json("verify", root / "v1")["skipped"] == count
    checked = archive_json("verify", root / "v1", "--remote")
    assert (checked["segments"], checked["messages"], checked["failed"]) == (count, 100, {})
    assert len(archive_json("restore", root / "v1", "--plain")["restored"]) == count
    assert archive_json("ls", root / "v1")["directories"][0]["plain"] == count
    assert archive("verify", root / "v1") == f"checked {count} segments, 100 messages\n"


def test_verify_finds_damage_in_every_tier_and_goes_on(root: Path) -> None:
    archive("compress", root)
    flip_bit(root / DIRECTORY / "000000001.q.zst", 30)
    (root / DIRECTORY / "000000003.q.zst").unlink()
    result = archive_json("verify", root, code=1)
    assert [Path(path).name for path in result["failed"]] == ["000000001.q.zst", "000000004.q.zst"]
    assert "expected" in result["failed"][str(root / DIRECTORY / "000000004.q.zst")]["message"]
    assert result["segments"] > 0
    assert archive("verify", root, code=1).startswith("checked")


def test_what_fails_is_said_and_the_rest_is_done(root: Path) -> None:
    (root / DIRECTORY / "000000000.q").write_bytes(b"broken" * 100)
    result = archive_json("compress", root, code=1)
    assert len(result["failed"]) == 1 and len(result["compressed"]) > 2
    result = archive_json("move", root, "--to", "file:///proc/nowhere", code=1)
    assert len(result["failed"]) > 2 and not result["moved"]


def test_wrong_arguments_change_nothing(root: Path) -> None:
    files = tree(root)
    for arguments in (
        ("compress", root, "--policy", "soon"),
        ("move", root, "--to", "ftp://x/y"),
        ("ls", root / "nothing"),
        ("cat", root, "--dates", "yesterday"),
        ("verify", root / "nothing"),
        ("run", root / "nothing", root / "archive", "--venue", "x", "--once"),
    ):
        assert CliRunner().invoke(app, ["archive", *map(str, arguments)]).exit_code == 1
    assert {name: data for name, data in tree(root).items() if ".archive.lock" not in name} == files


def test_cat_starts_where_it_is_told_to(root: Path) -> None:
    messages = known_messages(100)
    lines = archive("cat", root, "--from-seq", 40, "--limit", 3, "--json").splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [40, 41, 42]
    first = archive("cat", root, "--from-time", messages[60].timestamp_ns, "--limit", 1, "--json")
    assert json.loads(first)["timestamp_ns"] == messages[60].timestamp_ns
    assert archive("cat", root, "--dates", "2023-11-14..2023-11-15", "--limit", 1).startswith("seq=0 ")
    assert archive("cat", root, "--dates", "2023-11-15") == ""


def test_tap_and_run_copy_once_or_until_a_signal(tmp_path: Path) -> None:
    fill(tmp_path / "live", 50)
    result = archive_json("tap", tmp_path / "live", tmp_path / "copy", "--once")
    assert result["messages"] == 50 and result["bytes"] > 50 * 64
    assert archive("run", tmp_path / "live", tmp_path, "--venue", "x", "--once").startswith(
        "archived 7 segments"
    )
    fill(tmp_path / "live", 20)
    with started("everlog", "archive", "tap", tmp_path / "live", tmp_path / "copy", "--json") as process:
        eventually("the tap has copied it", lambda: len(read_all(tmp_path / "copy")) == 70)
        stop(process)
    arguments = (tmp_path / "live", tmp_path, "--venue", "x", "--poll", 0.05, "--json")
    with started("everlog", "archive", "run", *arguments) as process:
        eventually("it is archived", lambda: len(list(tmp_path.glob("raw/v1/x/*/raw/*.q.zst"))) == 9)
        stop(process)
    numbers = [*range(50), *range(20)]
    assert [message.payload for message in read_all(tmp_path / "copy")] == [b"%d" % n for n in numbers]


def test_a_day_that_is_over_is_archived_to_its_last_message(tmp_path: Path) -> None:
    live, root = tmp_path / "live", tmp_path / "archive"
    fill(live, 50)
    with Queue.open_publisher(live, retention=False) as writer:
        assert "writer" in error_of("run", live, root, "--venue", "x", "--once", "--seal")
        writer.append(1, b"50", FIRST_NS + 50)
    archive("run", live, root, "--venue", "x", "--once", "--seal")
    assert "archived 0 segments" in archive("run", live, root, "--venue", "x", "--once", "--seal")
    messages = archive("cat", root, "--json").splitlines()
    assert [json.loads(line)["seq"] for line in messages] == list(range(51))
    fill(live, 3)
    assert archive_json("run", live, root, "--venue", "x", "--once", "--seal")["segments"] == 1
    assert len(archive("cat", root, "--json").splitlines()) == 54


def error_of(*arguments: object) -> str:
    """The message of a command that fails."""
    result = CliRunner().invoke(app, ["archive", *map(str, arguments)])
    assert result.exit_code == 1
    return result.stderr


def stop(process: Started) -> None:
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(60) == 0
