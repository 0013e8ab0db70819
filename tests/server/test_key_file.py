"""Keys in a file: what may stand in it, rotation while the server runs, and streams of keys that end."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from everlog.client import ApiFailed, Client
from everlog.errors import InvalidConfig
from everlog.server.auth import ALL_SCOPES, Key, KeyRing, Scope
from everlog.server.key_file import read_key_file
from everlog.server.serve import TopicsServer
from everlog.server.settings import ServerSettings
from tests.support.http_cases import HttpClient, assert_error, running, taken
from tests.support.server_processes import running_server

READER = '[[key]]\nname = "reader"\nkey = "r"\nscopes = ["read"]\nprefixes = ["a", "b:"]\n'
ADMIN = f'[[key]]\nname = "admin"\nsha256 = "{hashlib.sha256(b"secret-a").hexdigest()}"\n'


def written(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "keys.toml"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_file_gives_names_digests_scopes_prefixes_and_caps(tmp_path: Path) -> None:
    more = '[[key]]\nname = "l"\nkey = "l"\nexpires = 2027-01-31T12:00:00Z\nmax_topics = 3\nmax_streams = 0\n'
    keys = read_key_file(written(tmp_path, ADMIN + READER + more), 5)
    assert list(keys.values()) == [
        Key(5, ALL_SCOPES, (), name="admin"),
        Key(6, Scope.READ, (b"a", b"b:"), name="reader"),
        Key(7, ALL_SCOPES, (), name="l", expires_s=1801396800.0, max_topics=3, max_streams=0),
    ]
    assert list(keys)[:2] == [hashlib.sha256(secret).digest() for secret in (b"secret-a", b"r")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at least one"),
        ("key = 1", "tables"),
        ("[[key]", "not valid TOML"),
        ('[[key]]\nname = "n"\n', "either key or sha256"),
        ('[[key]]\nname = "n"\nkey = "secret"\nsha256 = "x"\n', "either key or sha256"),
        ('[[key]]\nkey = "secret"\n', "name"),
        ('[[key]]\nname = "n"\nsha256 = "secret"\n', "64 hexadecimal digits"),
        ('[[key]]\nname = "n"\nkey = "secret"\nscope = ["read"]\n', "did you mean scopes"),
        ('[[key]]\nname = "n"\nkey = "secret"\nscopes = ["reed"]\n', "'reed'"),
        ('[[key]]\nname = "n"\nkey = "secret"\nscopes = []\n', "is empty"),
        ('[[key]]\nname = "n"\nkey = "secret"\nmax_topics = -1\n', "whole number"),
        ('[[key]]\nname = "n"\nkey = "secret"\nexpires = "soon"\n', "date and time"),
        (READER + READER, "another one"),
    ],
)
def test_a_bad_file_is_refused_without_repeating_a_secret(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words) as refused:
        read_key_file(written(tmp_path, text), 1)
    assert "secret" not in str(refused.value).replace("has the name or the secret", "")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path, ADMIN, mode)
    with pytest.raises(InvalidConfig, match="0600"):
        TopicsServer(ServerSettings(api_keys_file=path), memory=True)


def test_keys_are_rotated_without_a_restart(tmp_path: Path) -> None:
    path = written(tmp_path, ADMIN + READER)
    with running(keys="listed", api_keys_file=path) as server:
        api = server.api("secret-a")
        taken(api.append("t"), 201)
        assert_error(server.api("r").append("a"), 403, "forbidden")
        written(tmp_path, ADMIN + '[[key]]\nname = "new"\nkey = "n"\n')
        server.call(server.server.reload_keys)
        assert_error(server.api("r").state("a"), 401, "unauthorized")
        for token in ("n", "secret-a", "listed"):
            taken(server.api(token).append("t"))
        written(tmp_path, "nonsense")
        server.call(server.server.reload_keys)
        taken(api.append("t"))


def test_an_expired_key_works_no_more(tmp_path: Path) -> None:
    soon = time.time() + 1.0
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(soon)) + f".{int(soon % 1 * 1000):03}Z"
    path = written(tmp_path, ADMIN + f'[[key]]\nname = "s"\nkey = "s"\nexpires = {stamp}\n')
    with running(api_keys_file=path) as server:
        api = server.api("s")
        taken(api.append("t"), 201)
        time.sleep(max(0.0, soon - time.time()) + 0.01)
        assert_error(api.append("t"), 401, "unauthorized")


def test_a_key_may_have_caps_of_its_own(tmp_path: Path) -> None:
    path = written(tmp_path, ADMIN + '[[key]]\nname = "s"\nkey = "s"\nmax_topics = 1\n')
    with running(api_keys_file=path) as server:
        taken(server.api("s").append("t1"), 201)
        assert_error(server.api("s").append("t2"), 429, "throttled", limit="max_topics_per_key", max=1)
        taken(server.api("secret-a").append("t2"), 201)


def test_the_topics_of_a_key_hold_no_more_bytes_than_its_cap(tmp_path: Path) -> None:
    path = written(tmp_path, ADMIN + '[[key]]\nname = "s"\nkey = "s"\nmax_bytes = 10\n')
    full = {"limit": "max_total_bytes_per_key", "max": 10}
    with running(api_keys_file=path) as server:
        own, admin = server.api("s"), server.api("secret-a")
        assert_error(own.append("t", [{"data": "123456789"}]), 429, "throttled", **full)
        taken(own.append("t", [{"data": "1234"}]), 201)
        taken(own.append("u", [{"data": "12"}], idempotency_key="k"), 201)  # exactly the cap
        assert_error(own.append("t", [{"data": 1}]), 429, "throttled", **full)
        assert taken(own.append("u", [{"data": "12"}], idempotency_key="k"))["deduped"], "nothing is added"
        taken(admin.append("t", [{"data": 1}]), 200)
        taken(admin.append("others", [{"data": 1}]), 201)
        taken(own.append("others", [{"data": "12345678"}]), 200)
        taken(own.request("POST", "/v0/topics/t/delete", {"before_seq": 9}))
        taken(own.append("t", [{"data": 1}]), 200)


def test_keys_have_caps_on_bytes_and_schedules_from_the_settings() -> None:
    with running(keys="a,b", max_total_bytes_per_key=3, max_schedules_per_key=1) as server:
        api, other = server.api("a"), server.api("b")
        taken(api.append("t", [{"data": 12}]), 201)
        assert_error(
            api.append("t", [{"data": 34}]), 429, "throttled", limit="max_total_bytes_per_key", max=3
        )
        fields = {"topic": "t", "cron": "0 0 1 1 *", "record": {"data": 1}}
        taken(api.request("PUT", "/v0/schedules/one", fields), 201)
        taken(api.request("PUT", "/v0/schedules/one", fields), 200)
        refused = api.request("PUT", "/v0/schedules/two", fields)
        assert_error(refused, 429, "throttled", limit="max_schedules_per_key", max=1)
        taken(other.request("PUT", "/v0/schedules/two", fields), 201)
        taken(api.request("DELETE", "/v0/schedules/one"))
        taken(api.request("PUT", "/v0/schedules/three", fields), 201)


def test_the_streams_of_a_removed_key_end(tmp_path: Path) -> None:
    path = written(tmp_path, ADMIN + READER)
    with running(api_keys_file=path) as server:
        server.api("secret-a").put("a")
        session = taken(server.api("r").request("POST", "/v0/watch", {"topics": {"a": {}}}))
        stream = server.background(server.api("r"), lambda api: api.request("GET", session["stream_url"]))
        server.until(lambda: server.server._watch is not None and bool(server.server._watch.streams))
        written(tmp_path, ADMIN)
        server.call(server.server.reload_keys)
        assert '"code":"unauthorized"' in stream.result(10).text


def test_every_kind_of_stream_ends_when_its_key_is_removed(tmp_path: Path) -> None:
    path = written(tmp_path, ADMIN + '[[key]]\nname = "s"\nkey = "s"\n')
    with running(api_keys_file=path) as server:
        api = server.api("s")
        taken(api.put("q", type="queue"), 201)
        session = taken(api.request("POST", "/v0/watch", {"topics": {"q": {}}}))
        streams = [
            server.background(server.api("s"), lambda api, path=path: api.request("GET", path))  # type: ignore[misc]
            for path in (session["stream_url"], "/v0/topics/q/work?node=w")
        ]
        host, port = server.server.address
        with Client(f"http://{host}:{port}", key="s") as client, client.socket() as socket:
            server.until(
                lambda: server.server._connections().items() >= {"sse": 1, "ws": 1, "work": 1}.items()
            )
            written(tmp_path, ADMIN)
            server.call(server.server.reload_keys)
            for stream in streams:
                assert '"code":"unauthorized"' in stream.result(10).text
            with pytest.raises(ApiFailed, match="removed or has expired"):
                list(socket)


def test_an_expired_key_is_not_valid_for_its_streams() -> None:
    key = Key(1, ALL_SCOPES, (), name="s", expires_s=time.time() + 60)
    expired = replace(key, number=2, expires_s=time.time() - 1)
    ring = KeyRing({b"1" * 32: key, b"2" * 32: expired})
    assert ring.is_valid(key)
    assert not ring.is_valid(expired)


def test_metrics_name_keys_by_their_names_and_a_bound_key_sees_its_own(tmp_path: Path) -> None:
    path = written(tmp_path, ADMIN + READER)
    with running(keys="listed-secret", api_keys_file=path) as server:
        admin, reader = server.api("secret-a"), server.api("r")
        taken(admin.append("t"), 201)
        text = admin.request("GET", "/v0/metrics").text
        assert 'topics_key_requests_total{key="admin"} 2.0' in text
        assert 'topics_key_topics{key="admin"} 1.0' in text
        assert 'topics_key_streams{key="reader"} 0.0' in text
        assert 'topics_key_requests_total{key="key 1"} 0.0' in text
        assert not re.search("secret|listed", text)
        own = reader.request("GET", "/v0/metrics").text
        assert 'key="reader"' in own
        assert 'key="admin"' not in own


def test_a_hangup_rereads_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_API_KEYS_FILE", written(tmp_path, ADMIN))
    with running_server(tmp_path, "--memory", key="secret-a") as server:
        address = ("127.0.0.1", server.port)
        assert HttpClient(address, "r").request("GET", "/v0/topics").status == 401
        written(tmp_path, ADMIN + READER)
        os.kill(server.command.process.pid, signal.SIGHUP)
        deadline = time.monotonic() + 10
        while HttpClient(address, "r").request("GET", "/v0/topics").status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert server.stop()[0] == 0


def test_a_file_that_is_no_small_regular_one_is_refused_at_once(tmp_path: Path) -> None:
    """A server reads the file on its loop: a pipe without a writer would hold it for ever."""
    path = tmp_path / "keys.toml"
    os.mkfifo(path, 0o600)
    with pytest.raises(InvalidConfig, match="no regular file of at most 1048576 bytes"):
        read_key_file(str(path), 1)
    path.unlink()
    with pytest.raises(InvalidConfig, match="no regular file of at most 1048576 bytes"):
        read_key_file(written(tmp_path, READER + "#" * (1 << 20)), 1)
