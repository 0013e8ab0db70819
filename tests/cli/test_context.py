"""`everlog context` and `everlog config`: named servers, whose key goes where, and what is never shown."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everlog.cli import context_file
from everlog.cli.main import app
from everlog.errors import EverlogError, InvalidConfig
from tests.support.server_processes import running_server
from tests.support.tcp_peers import ScriptedServer, http_answer

KEY = "sesame-open"


@pytest.fixture(autouse=True)
def config_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A configuration directory of its own, and no variables from outside."""
    for name in ("EVERLOG_URL", "EVERLOG_KEY", "EVERLOG_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield tmp_path / "config"


def everlog(*words: object, code: int = 0, text: str = "") -> str:
    """Run a command; what it printed, errors included."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=text, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def shown(*words: object, code: int = 0) -> Any:
    """The JSON that a command prints."""
    return json.loads(everlog(*words, "--json", code=code))


def test_contexts_are_added_listed_selected_and_removed() -> None:
    assert everlog("context", "ls").startswith("no contexts")
    everlog("context", "add", "one", "--url", "127.0.0.1:4001")
    everlog("context", "add", "two", "--url", "https://two.example", "--key", KEY)
    listed = shown("context", "ls")["contexts"]
    assert listed == [
        {"context": "one", "url": "http://127.0.0.1:4001", "has_key": False, "selected": True},
        {"context": "two", "url": "https://two.example:443", "has_key": True, "selected": False},
    ]
    everlog("context", "use", "two")
    assert shown("config")["command"]["url_from"] == "context two"
    everlog("context", "rm", "two")
    assert shown("config")["command"]["url_from"] == "default"


def test_a_key_is_read_from_the_input_stored_for_the_user_alone_and_never_printed(config_home: Path) -> None:
    printed = everlog("context", "add", "a", "--url", "127.0.0.1:1", "--key", "-", text=f"{KEY}\n")
    printed += everlog("context", "ls") + everlog("config") + everlog("config", "--json")
    path = config_home / "everlog" / context_file.FILE_NAME
    assert KEY not in printed
    assert KEY in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == [path.name]


def test_a_file_that_others_can_read_is_refused(config_home: Path) -> None:
    everlog("context", "add", "a", "--url", "127.0.0.1:1", "--key", KEY)
    path = config_home / "everlog" / context_file.FILE_NAME
    path.chmod(0o640)
    assert f"chmod 600 {path}" in everlog("topic", "ls", code=1)
    path.chmod(0o600)
    path.write_text("{")
    assert shown("context", "ls", code=1)["error"]["code"] == "corrupt_metadata"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("context", "use", "absent"), "invalid_config"),
        (("context", "rm", "absent"), "invalid_config"),
        (("context", "add", "../a", "--url", "127.0.0.1:1"), "invalid_name"),
        (("context", "add", "a", "--url", "ftp://x"), "invalid_config"),
        (("topic", "ls", "--context", "absent"), "invalid_config"),
        (("topic", "ls", "--context", "absent", "--url", "127.0.0.1:1"), "invalid_config"),
    ],
)
def test_what_cannot_be_is_an_error(words: tuple[str, ...], code: str) -> None:
    assert shown(*words, code=1)["error"]["code"] == code


def test_a_name_is_not_taken_twice_by_accident() -> None:
    everlog("context", "add", "a", "--url", "127.0.0.1:1")
    assert "--replace" in everlog("context", "add", "a", "--url", "127.0.0.1:2", code=1)
    everlog("context", "add", "a", "--url", "127.0.0.1:2", "--replace")
    assert shown("context", "ls")["contexts"][0]["url"] == "http://127.0.0.1:2"


def test_commands_talk_to_the_selected_server_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_API_KEYS", KEY)
    with running_server(tmp_path, "--memory") as server:
        everlog("context", "add", "mine", "--url", server.url, "--key", KEY)
        everlog("topic", "create", "t")
        assert [each["topic"] for each in shown("topic", "ls")["topics"]] == ["t"]
        assert shown("status")["metrics"]["topics"] == 1
        monkeypatch.setenv("EVERLOG_KEY", "another")
        assert shown("topic", "ls", code=1)["error"]["code"] == "unauthorized"


def test_the_key_of_a_context_never_goes_to_another_url() -> None:
    everlog("context", "add", "mine", "--url", "127.0.0.1:9", "--key", KEY)
    with ScriptedServer([http_answer(200, b'{"topics": []}')]) as other:
        everlog("topic", "ls", "--url", other.url)
        assert KEY.encode() not in other.requests[0]
    assert context_file.target("http://elsewhere", None, None).key is None
    with pytest.raises(InvalidConfig):
        context_file.target("http://elsewhere", None, "mine")


def test_a_failed_write_leaves_the_old_file(config_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everlog("context", "add", "a", "--url", "127.0.0.1:1")
    path = config_home / "everlog" / context_file.FILE_NAME
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    assert "No space left" in everlog("context", "add", "b", "--url", "127.0.0.1:2", code=1)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_config_shows_each_setting_of_the_server_and_where_it_is_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOPICS_PORT", "4321")
    monkeypatch.setenv("TOPICS_API_KEYS", KEY)
    serve = shown("config")["serve"]
    assert serve["port"] == {"value": 4321, "default": False, "variable": "TOPICS_PORT"}
    assert serve["host"]["default"] is True
    assert serve["api_keys"]["value"] == "1 key"
    table = everlog("config")
    assert KEY not in table
    # No words of Python: what is not set, switches, lists.
    assert [word for word in ("None", "False", "True", "()", "[]") if word in table] == []


def test_a_bound_holds_the_number_of_contexts() -> None:
    many = {f"c{number}": context_file.Context("http://x") for number in range(context_file.CONTEXTS_MAX + 1)}
    with pytest.raises(EverlogError, match="at most"):
        context_file.save(context_file.Contexts(many))
