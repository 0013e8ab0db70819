"""`everlog serve` as a process: how it starts, what it says, and the exit codes when it cannot start."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from everlog.cli.main import app
from everlog.queue import Queue
from tests.support.command_lines import Terminal, TopicCommands, run
from tests.support.engines import stopped_directory
from tests.support.files import tree
from tests.support.http_api import HttpApi
from tests.support.server_processes import running_server


def refused(*arguments: object, code: int) -> str:
    """Start a server that cannot start; return the one line that it says."""
    ended = run("everlog", "serve", *arguments)
    assert (ended.returncode, ended.stdout) == (code, ""), ended
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


def refused_here(*arguments: object) -> str:
    """The same in this process, for settings that are refused before anything starts; exit code 2."""
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


class Life(NamedTuple):
    """What is known of a server that ran without a terminal and was stopped."""

    url: str
    code: int
    printed: str
    logged: str
    files: list[str]
    answers: dict[str, bytes]


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """A server in memory that got a record and two requests from pages, and was stopped by SIGTERM."""
    folder = tmp_path_factory.mktemp("server")
    origins = ("--cors-origin", "https://a.example", "--cors-origin", "https://b.example")
    with running_server(folder, "--memory", "--log-format", "json", *origins) as server:
        TopicCommands(server.url)("append", "orders", "--data", "1")
        pages = ("https://b.example", "https://c.example")
        answers = {origin: answer_to_page(server.port, origin) for origin in pages}
        files = os.listdir(folder)
        return Life(server.url, *server.stop(), files, answers)


def answer_to_page(port: int, origin: str) -> bytes:
    """What a page of this origin gets when it asks for the topics."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET /v0/topics HTTP/1.0\r\nOrigin: {origin}\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_in_memory_nothing_is_left(life: Life) -> None:
    assert (life.code, life.files) == (0, ["port"])
    usage = CliRunner().invoke(app, ["serve", "--memory", "--data-dir", "x"])
    assert usage.exit_code == 2
    assert "--memory keeps nothing" in usage.stderr


def test_without_a_terminal_there_is_no_banner(life: Life) -> None:
    assert life.printed == ""


def test_log_lines_can_be_json(life: Life) -> None:
    lines = [json.loads(line) for line in life.logged.splitlines()]
    assert any(life.url in line["message"] for line in lines)


def test_pages_of_an_allowed_origin_may_call_it(life: Life) -> None:
    allowed = {
        origin: f"Access-Control-Allow-Origin: {origin}".encode() in answer
        for origin, answer in life.answers.items()
    }
    assert allowed == {"https://b.example": True, "https://c.example": False}


def test_a_server_runs_until_a_signal_and_keeps_what_it_was_given(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        TopicCommands(server.url)("append", "orders", "--data", "1")
        assert server.command.end(signal.SIGTERM)[0] == 0
    with running_server(tmp_path, "--shards", 3) as server:
        assert TopicCommands(server.url)("read", "orders", "--format", "raw") == "1\n"
        assert len(list((tmp_path / "data" / "wal").glob("shard-*"))) == 3
        assert server.command.end(signal.SIGINT)[0] == 0


def test_flags_win_over_variables_and_those_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "server.toml"
    config.write_text(f'data_dir = "{tmp_path / "file"}"\nmax_topics = 1\nlog_level = "loud"\n')
    monkeypatch.setenv("TOPICS_DATA_DIR", str(tmp_path / "variable"))
    assert "log_level" in refused_here("--config", config)
    config.write_text(config.read_text().replace("loud", "debug"))
    monkeypatch.setenv("TOPICS_LOG", "error")
    with running_server(tmp_path, "--config", config) as server:  # with the flag --data-dir
        topic = TopicCommands(server.url)
        topic("create", "one")
        assert topic.error("create", "two")["detail"] == {"limit": "max_topics", "max": 1}
        assert server.stop() == (0, "", "")
    assert sorted(os.listdir(tmp_path)) == ["data", "port", "server.toml"]


def test_on_a_terminal_a_banner_says_where_it_listens_where_data_lies_and_whether_auth_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    words = ("serve", "--port", 0, "--data-dir", data, "--cold-dir", cold, "--log-level", "error")
    with Terminal("everlog", *words) as terminal:
        shown = terminal.until("stop +Ctrl-C")
        assert "is ready" in shown
        for pattern in (
            r"listens on +http://127\.0\.0\.1:[1-9]\d*/v0",
            rf"data +{data}",
            rf"old segments +{cold}",
        ):
            terminal.until(pattern)
        terminal.until("auth +OFF")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait() == 0
    monkeypatch.setenv("TOPICS_API_KEYS", "sesame-open,another")
    with Terminal("everlog", "serve", "--port", 0, "--memory") as terminal:
        terminal.until("auth +on, 2 keys")
        terminal.until("in memory only")
        assert "sesame" not in terminal.shown


# --- Servers that cannot start -----------------------------------------------------------------------------


def test_a_port_in_use_is_exit_code_5(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused("--port", port, "--data-dir", tmp_path / "data", code=5)
    assert told.startswith(f"error: cannot listen on 127.0.0.1 port {port}: another process listens there")
    assert not (tmp_path / "data").exists()


def test_an_address_of_another_machine_is_exit_code_5(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_API_KEYS", "sesame")
    told = refused("--memory", "--host", "192.0.2.1", "--port", 0, code=5)
    assert "this machine has no such address" in told


def test_a_data_directory_in_use_is_exit_code_6(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        told = refused("--port", 0, "--data-dir", tmp_path / "data", code=6)
        assert f"process {server.command.process.pid} has" in told
        with HttpApi(server.url) as api:
            assert api.get("/ready", dict[str, Any])["status"] == "ready"


def test_damaged_data_is_exit_code_7_and_stays_as_it_is(tmp_path: Path) -> None:
    data = stopped_directory(tmp_path)
    for path in (*(data / "meta").iterdir(), *data.glob("*.copy")):
        path.unlink()
    before = tree(data)
    words = ("--port", 0, "--data-dir", data, "--cold-dir", tmp_path / "cold", "--log-format", "json")
    error = json.loads(refused(*words, code=7))["error"]
    assert error["code"] in ("corrupt", "corrupt_metadata")
    assert tree(data) == before


def test_variables_that_say_something_in_vain_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOPICS_API_KEY", "sesame-open")
    monkeypatch.setenv("TOPICS_MAX_TOPICS", "many")
    monkeypatch.setenv("TOPICS_WHATEVER", "1")
    with running_server(tmp_path, "--memory", "--log-level", "error") as server:
        told = server.stop()[2].splitlines()
    assert told == [
        "warning: TOPICS_API_KEY is not a setting of the server and is ignored; "
        "did you mean TOPICS_API_KEYS?",
        "warning: TOPICS_WHATEVER is not a setting of the server and is ignored",
        "warning: TOPICS_MAX_TOPICS is 'many' and counts as not set; "
        f"it must be a whole number from 0 to {2**64 - 1}",
    ]


def test_a_public_address_without_keys_is_refused(tmp_path: Path) -> None:
    told = refused("--host", "0.0.0.0", "--port", 0, "--data-dir", tmp_path / "data", code=2)
    assert "TOPICS_API_KEYS" in told
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read"),
        ("port = ", "is not valid TOML"),
        ("prot = 1", "did you mean port?"),
        ('port = "many"', "port in"),
        ('api_keys = "sesame:everything"', "entry 1"),
    ],
)
def test_a_settings_file_that_is_wrong_is_exit_code_2(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "server.toml"
    if content is not None:
        path.write_text(content)
    line = refused_here("--memory", "--config", path)
    assert told in line
    assert str(path) in line
    assert "sesame" not in line


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--host", "a:b:c"), "--host is 'a:b:c'"),
        (("--log-level", "loud"), "--log-level is 'loud'"),
        (("--cors-origin", "example.org/page"), "--cors-origins is"),
        (("--shards", 100_000), "--wal-shards is 100000"),
    ],
)
def test_a_flag_that_cannot_work_is_exit_code_2(flags: tuple[str, ...], told: str) -> None:
    assert told in refused_here("--memory", *flags)


def test_a_port_file_that_cannot_be_written_is_an_error_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "no" / "port"
    assert str(path) in refused("--memory", "--port", 0, "--port-file", path, code=1)


def test_a_file_or_a_queue_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file; name a directory" in refused("--port", 0, "--data-dir", tmp_path / "file", code=2)
    with Queue.open_publisher(tmp_path / "queue"):
        pass
    before = sorted(path.name for path in (tmp_path / "queue").iterdir())
    assert "holds a queue" in refused("--port", 0, "--data-dir", tmp_path / "queue", code=2)
    assert sorted(path.name for path in (tmp_path / "queue").iterdir()) == before
