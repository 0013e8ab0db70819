"""`everlog key`: files of keys, and a server that follows them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everlog.cli import main
from everlog.client import ApiFailed, Client
from everlog.server.auth import Scope
from everlog.server.key_file import read_key_file
from tests.support.processes import eventually
from tests.support.server_processes import running_server


def key(*words: object) -> str:
    """What a command prints; it must succeed."""
    result = CliRunner().invoke(main.app, ["key", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(*words: object) -> str:
    result = CliRunner().invoke(main.app, ["key", *map(str, words)])
    assert result.exit_code != 0
    return result.output


def test_keys_are_made_listed_and_revoked_and_the_rest_of_the_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    secret = key("new", "till", "--scopes", "read+write", "--prefix", "till.", "--file", file).split()[0]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret not in file.read_text()
    file.write_text("# ours\n" + file.read_text() + "# the end of till\n")
    options = ("--expires", "2027-01-31T12:00:00Z", "--max-topics", 3, "--max-streams", 0, "--max-bytes", 9)
    key("new", "desk", *options, "--file", file)
    till, desk = read_key_file(str(file), 1).values()
    assert (till.name, till.scopes, till.prefixes) == ("till", Scope.READ | Scope.WRITE, (b"till.",))
    assert (desk.expires_s, desk.max_topics, desk.max_streams, desk.max_bytes) == (1801396800.0, 3, 0, 9)
    listed = key("ls", "--file", file)
    assert "till" in listed and "desk" in listed and "read+write " in listed and '""' not in listed
    key("revoke", "desk", "--file", file)
    assert [each.name for each in read_key_file(str(file), 1).values()] == ["till"]
    assert file.read_text().startswith("# ours\n") and "# the end of till" in file.read_text()


def test_what_cannot_be_done_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    key("new", "till", "--file", file)
    before = file.read_text()
    assert "'reed'" in refusal("new", "desk", "--scopes", "reed", "--file", file)
    assert "another one" in refusal("new", "till", "--file", file)
    assert "no key 'none'" in refusal("revoke", "none", "--file", file)
    assert "only key" in refusal("revoke", "till", "--file", file)
    refusal("new", "late", "--expires", "soon", "--file", file)
    assert file.read_text() == before
    file.write_text("[[key")
    for words in (("new", "x"), ("ls",), ("reload",), ("revoke", "till")):
        assert "not valid TOML" in refusal(*words, "--file", file)
    assert file.read_text() == "[[key"


def test_a_server_follows_the_file_and_ends_streams_of_revoked_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.toml"
    first = key("new", "first", "--file", file).split()[0]
    monkeypatch.setenv("TOPICS_API_KEYS_FILE", str(file))
    with running_server(tmp_path, key=first) as server, Client(server.url, first) as client:
        client.append("t", 1)
        second = key("new", "second", "--max-bytes", 7, "--file", file).split()[0]

        def is_known() -> bool:
            with Client(server.url, second) as other:
                return other.exchange("GET", "/v0/topics").status == 200

        eventually("the server has read the new key", is_known)
        with Client(server.url, second) as other:
            other.append("mine", "12345")
            with pytest.raises(ApiFailed) as refused:
                other.append("mine", "6")
            assert refused.value.detail == {"limit": "max_total_bytes_per_key", "max": 7}
            client.append("mine", "6")
            events = other.watch("t")
            next(events)
            key("revoke", "second", "--file", file)
            with pytest.raises(ApiFailed):
                for _ in events:
                    pass
        assert client.topic("t").count == 1
        key("reload", "--file", file)
