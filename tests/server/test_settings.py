"""The settings of a server: defaults, the three sources, what wins, and what is refused."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidConfig
from everlog.server.auth import ALL_SCOPES, Key, KeyRing, Scope
from everlog.server.settings import VARIABLES, ServerSettings
from everlog.topics import EngineSettings

SECRET = "Tr0ub4dor"
DEFAULT_SHARDS = min(os.cpu_count() or 1, 8)

DEFAULTS: dict[str, tuple[str, object]] = {
    "TOPICS_HOST": ("host", "127.0.0.1"),
    "TOPICS_PORT": ("port", 4000),
    "TOPICS_PORT_FILE": ("port_file", None),
    "TOPICS_ALLOW_INSECURE_NO_AUTH": ("allow_insecure_no_auth", False),
    "TOPICS_PROBE_AUTH": ("probe_auth", False),
    "TOPICS_MAX_BODY_BYTES": ("max_body_bytes", 67108864),
    "TOPICS_GZIP": ("gzip", False),
    "TOPICS_ACCESS_LOG": ("access_log", False),
    "TOPICS_DATA_DIR": ("data_dir", "./topics-data"),
    "TOPICS_BUS_ROOT": ("bus_root", None),
    "TOPICS_LAKE": ("lake", None),
    "TOPICS_COLD_DIR": ("cold_dir", None),
    "TOPICS_COLD_URL": ("cold_url", None),
    "TOPICS_BACKUP_URL": ("backup_url", None),
    "TOPICS_BACKUP_INTERVAL_MS": ("backup_interval_ms", 1000),
    "TOPICS_ACK": ("ack", "local"),
    "TOPICS_WAL_SHARDS": ("wal_shards", DEFAULT_SHARDS),
    "TOPICS_SEGMENT_MAX_EVENTS": ("segment_max_events", 10000),
    "TOPICS_SEGMENT_MAX_BYTES": ("segment_max_bytes", 67108864),
    "TOPICS_SEGMENT_MAX_AGE_MS": ("segment_max_age_ms", 3600000),
    "TOPICS_HOT_RETAIN_SEGMENTS": ("hot_retain_segments", 4),
    "TOPICS_HOT_RETAIN_BYTES": ("hot_retain_bytes", 0),
    "TOPICS_ON_DAMAGE": ("on_damage", "refuse"),
    "TOPICS_MAX_TOPICS": ("max_topics", 100000),
    "TOPICS_MAX_ROUTERS": ("max_routers", 10000),
    "TOPICS_MAX_CONSUMERS": ("max_consumers", 100000),
    "TOPICS_MAX_IDEMPOTENCY_KEYS": ("max_idempotency_keys", 2000000),
    "TOPICS_MAX_SCHEDULES": ("max_schedules", 10000),
    "TOPICS_MAX_WATCH_SESSIONS": ("max_watch_sessions", 10000),
    "TOPICS_MAX_SSE_CONNECTIONS": ("max_sse_connections", 10000),
    "TOPICS_MAX_TOPICS_PER_KEY": ("max_topics_per_key", 10000),
    "TOPICS_MAX_ROUTERS_PER_KEY": ("max_routers_per_key", 1000),
    "TOPICS_MAX_CONSUMERS_PER_KEY": ("max_consumers_per_key", 10000),
    "TOPICS_MAX_SCHEDULES_PER_KEY": ("max_schedules_per_key", 1000),
    "TOPICS_MAX_WATCH_SESSIONS_PER_KEY": ("max_watch_sessions_per_key", 1000),
    "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": ("max_sse_connections_per_key", 1000),
    "TOPICS_MAX_INFLIGHT_PER_KEY": ("max_inflight_per_key", 1000),
    "TOPICS_MAX_TOTAL_BYTES": ("max_total_bytes", 0),
    "TOPICS_MAX_TOTAL_BYTES_PER_KEY": ("max_total_bytes_per_key", 0),
    "TOPICS_TEST_MIN_HEARTBEAT_MS": ("test_min_heartbeat_ms", None),
    "TOPICS_LOG": ("log_level", "info"),
    "TOPICS_LOG_FORMAT": ("log_format", "text"),
    "TOPICS_CORS_ORIGINS": ("cors_origins", ()),
    "TOPICS_ALLOWED_HOSTS": ("allowed_hosts", ()),
    "TOPICS_API_KEYS_FILE": ("api_keys_file", None),
}
NUMBERS = {variable: name for variable, (name, value) in DEFAULTS.items() if type(value) is int} | {
    "TOPICS_TEST_MIN_HEARTBEAT_MS": "test_min_heartbeat_ms"
}
CAPS = [variable for variable in NUMBERS if variable.startswith("TOPICS_MAX_") and "BODY" not in variable]
SWITCHES = {variable: name for variable, (name, value) in DEFAULTS.items() if value is False}


def of_environment(**variables: str) -> ServerSettings:
    return ServerSettings.from_sources(variables, None, {})


def of_flags(**flags: object) -> ServerSettings:
    return ServerSettings.from_sources({}, None, flags)


def toml_file(directory: Path, text: str) -> str:
    path = directory / "server.toml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return str(path)


def of_toml(directory: Path, text: str) -> ServerSettings:
    return ServerSettings.from_sources({}, toml_file(directory, text), {})


# --- Defaults --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variable", "expected"), DEFAULTS.items())
def test_the_defaults_are_those_of_the_contract(variable: str, expected: tuple[str, object]) -> None:
    name, value = expected
    assert getattr(ServerSettings(), name) == value
    assert getattr(of_environment(), name) == value
    assert VARIABLES[name] == variable


def test_every_setting_has_a_pinned_default_and_a_variable() -> None:
    names = {item.name for item in fields(ServerSettings)}
    assert names == {name for name, _ in DEFAULTS.values()} | {"api_keys"}
    assert set(VARIABLES) == names
    assert VARIABLES["api_keys"] == "TOPICS_API_KEYS"
    assert not ServerSettings().api_keys.enabled


def test_equal_sources_give_equal_settings_that_cannot_be_changed() -> None:
    assert of_environment() == ServerSettings()
    with pytest.raises(FrozenInstanceError):
        ServerSettings().port = 1  # type: ignore[misc]


def test_the_engine_is_told_what_concerns_it() -> None:
    settings = ServerSettings(
        wal_shards=3,
        segment_max_events=5,
        segment_max_bytes=7,
        segment_max_age_ms=11,
        hot_retain_segments=13,
        hot_retain_bytes=17,
        cold_dir="cold",
        max_topics=19,
        max_total_bytes=23,
    )
    assert settings.engine_settings() == EngineSettings(
        shards=3,
        segment_max_events=5,
        segment_max_bytes=7,
        segment_max_age_ms=11,
        hot_retain_segments=13,
        hot_retain_bytes=17,
        cold_dir="cold",
        max_topics=19,
        max_total_bytes=23,
    )
    assert ServerSettings().engine_settings() == EngineSettings()


# --- The environment -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variable", "name"), NUMBERS.items())
@pytest.mark.parametrize("text", ["7", " 7\t", "+7", "007"])
def test_a_number_is_read_from_its_variable(variable: str, name: str, text: str) -> None:
    assert of_environment(**{variable: text}) == ServerSettings(**{name: 7})  # type: ignore[arg-type]


@pytest.mark.parametrize("variable", NUMBERS)
@pytest.mark.parametrize(
    "text", ["", " ", "many", "-1", "1.5", "1e3", "0x10", "1_000", "٣", "7 7", "9" * 5000]
)
def test_what_is_not_a_number_counts_as_not_set(variable: str, text: str) -> None:
    assert of_environment(**{variable: text}) == ServerSettings()


@pytest.mark.parametrize(
    ("variable", "name", "text", "value"),
    [
        ("TOPICS_PORT", "port", "0", 0),
        ("TOPICS_PORT", "port", "65535", 65535),
        ("TOPICS_PORT", "port", "65536", 4000),
        ("TOPICS_WAL_SHARDS", "wal_shards", "0", DEFAULT_SHARDS),
        ("TOPICS_WAL_SHARDS", "wal_shards", "eight", DEFAULT_SHARDS),
        ("TOPICS_WAL_SHARDS", "wal_shards", "100000", DEFAULT_SHARDS),
        ("TOPICS_WAL_SHARDS", "wal_shards", "1", 1),
        ("TOPICS_WAL_SHARDS", "wal_shards", "256", 256),
        ("TOPICS_SEGMENT_MAX_EVENTS", "segment_max_events", "0", 1),
        ("TOPICS_SEGMENT_MAX_EVENTS", "segment_max_events", str(2**64), 10000),
        ("TOPICS_SEGMENT_MAX_BYTES", "segment_max_bytes", "0", 67108864),
        ("TOPICS_SEGMENT_MAX_AGE_MS", "segment_max_age_ms", "0", 0),
        ("TOPICS_MAX_BODY_BYTES", "max_body_bytes", "0", 67108864),
        ("TOPICS_TEST_MIN_HEARTBEAT_MS", "test_min_heartbeat_ms", "0", 1),
        ("TOPICS_TEST_MIN_HEARTBEAT_MS", "test_min_heartbeat_ms", "1000", 1000),
        ("TOPICS_TEST_MIN_HEARTBEAT_MS", "test_min_heartbeat_ms", "1001", 1000),
        ("TOPICS_TEST_MIN_HEARTBEAT_MS", "test_min_heartbeat_ms", str(2**64), None),
    ],
)
def test_numbers_at_the_borders_of_their_range(
    variable: str, name: str, text: str, value: int | None
) -> None:
    assert getattr(of_environment(**{variable: text}), name) == value


@pytest.mark.parametrize("variable", CAPS)
def test_a_cap_of_zero_is_kept_since_it_means_unlimited(variable: str) -> None:
    assert getattr(of_environment(**{variable: "0"}), NUMBERS[variable]) == 0
    assert getattr(of_environment(**{variable: str(2**64 - 1)}), NUMBERS[variable]) == 2**64 - 1


@pytest.mark.parametrize(("variable", "name"), SWITCHES.items())
@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(text, True) for text in ("1", "true", "TRUE", "True", " 1 ")],
        *[(text, False) for text in ("", "0", "false", "yes", "on", "2", "01", "t", "truely")],
    ],
)
def test_only_1_and_true_switch_something_on(variable: str, name: str, text: str, value: bool) -> None:
    assert getattr(of_environment(**{variable: text}), name) is value


@pytest.mark.parametrize(
    ("variable", "name", "text", "value"),
    [
        ("TOPICS_PORT_FILE", "port_file", "run/port", "run/port"),
        ("TOPICS_DATA_DIR", "data_dir", "some where", "some where"),
        ("TOPICS_DATA_DIR", "data_dir", "", "./topics-data"),
        ("TOPICS_COLD_DIR", "cold_dir", "cold", "cold"),
        ("TOPICS_COLD_DIR", "cold_dir", "", None),
        ("TOPICS_LOG", "log_level", "WARN", "warning"),
        ("TOPICS_LOG", "log_level", "trace", "debug"),
        ("TOPICS_LOG", "log_level", " error", "error"),
        ("TOPICS_LOG_FORMAT", "log_format", "JSON", "json"),
        ("TOPICS_CORS_ORIGINS", "cors_origins", "*", ("*",)),
        ("TOPICS_CORS_ORIGINS", "cors_origins", "https://a.b:8, ,http://c", ("https://a.b:8", "http://c")),
        ("TOPICS_CORS_ORIGINS", "cors_origins", " , ", ()),
        ("TOPICS_ALLOWED_HOSTS", "allowed_hosts", "a.example, [::2],", ("a.example", "::2")),
        ("TOPICS_ALLOWED_HOSTS", "allowed_hosts", " ,", ()),
    ],
)
def test_text_is_read_from_its_variable(variable: str, name: str, text: str, value: object) -> None:
    assert getattr(of_environment(**{variable: text}), name) == value


def test_other_variables_are_ignored() -> None:
    assert (
        of_environment(PORT="1", TOPICS_NO_SUCH="1", topics_port="1", TOPICS_LOG_LEVEL="x")
        == ServerSettings()
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TOPICS_LOG", "loud"),
        ("TOPICS_LOG_FORMAT", "xml"),
        ("TOPICS_CORS_ORIGINS", "example.org"),
        ("TOPICS_CORS_ORIGINS", "https://a/"),
        ("TOPICS_CORS_ORIGINS", "https://a/path"),
        ("TOPICS_CORS_ORIGINS", "*,https://[a"),
        ("TOPICS_HOST", "localhost:http"),
        ("TOPICS_DATA_DIR", "a\0b"),
    ],
)
def test_words_that_cannot_work_are_refused_with_variable_and_value(variable: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(f"{variable} is {value!r}; it must be ")):
        of_environment(**{variable: value})


# --- Host and port ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1", "10.0.0.1", None),
        ("10.0.0.1:80", "10.0.0.1", 80),
        (" localhost:0 ", "localhost", 0),
        ("0.0.0.0:65535", "0.0.0.0", 65535),
        ("::", "::", None),
        ("::1", "::1", None),
        ("::1:4000", "::1:4000", None),
        ("[::1]", "::1", None),
        ("[::1]:80", "::1", 80),
        ("[::]:0", "::", 0),
        ("fe80::1%eth0", "fe80::1%eth0", None),
    ],
)
def test_a_host_may_carry_a_port_that_wins_over_the_port_beside_it(
    tmp_path: Path, text: str, host: str, port: int | None
) -> None:
    expected = ServerSettings(host=host, port=5 if port is None else port)
    assert of_environment(TOPICS_HOST=text, TOPICS_PORT="5") == expected
    assert of_flags(host=text, port=5) == expected
    assert of_flags(port=5, host=text) == expected
    assert of_toml(tmp_path, f'port = 5\nhost = "{text}"') == expected


@pytest.mark.parametrize(
    "text",
    [
        *["h:", ":80", ":", "h:-1", "h:65536", "h:1:2", "h:8 0", "h :80", "http://h", "http://h:80"],
        *["[::1", "[]", "[h]:80", "[::1]80", "[::1]:", "[::1]:x", "[127.0.0.1]:80", "1::2::3"],
    ],
)
def test_a_host_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        InvalidConfig, match=re.escape(f"TOPICS_HOST is {text!r}; it must be a host, or host:port")
    ):
        of_environment(TOPICS_HOST=text)
    with pytest.raises(InvalidConfig, match="--host is "):
        of_flags(host=text)
    with pytest.raises(InvalidConfig, match=r"host in .* is "):
        of_toml(tmp_path, f'host = "{text}"')


@pytest.mark.parametrize(
    ("environment", "flags", "host", "port"),
    [
        ({"TOPICS_HOST": "a:1"}, {"port": 2}, "a", 2),
        ({"TOPICS_HOST": "a:1", "TOPICS_PORT": "9"}, {"host": "b"}, "b", 1),
        ({"TOPICS_PORT": "9"}, {"host": "b:2"}, "b", 2),
        ({"TOPICS_HOST": ""}, {}, "127.0.0.1", 4000),
        ({"TOPICS_HOST": "a", "TOPICS_PORT": "x"}, {}, "a", 4000),
    ],
)
def test_a_port_inside_the_host_is_a_port_of_the_same_source(
    environment: Mapping[str, str], flags: Mapping[str, object], host: str, port: int
) -> None:
    assert ServerSettings.from_sources(environment, None, flags) == ServerSettings(host=host, port=port)


# --- The TOML file ---------------------------------------------------------------------------------------

TOML = """
host = "0.0.0.0"
port = 1
port_file = "p"
api_keys = ["k:r", "l"]
allow_insecure_no_auth = true
probe_auth = true
max_body_bytes = 2
gzip = true
access_log = true
data_dir = "d"
bus_root = "b"
lake = "l"
cold_dir = "c"
cold_url = "file:///c"
backup_url = "file:///b"
backup_interval_ms = 22
ack = "shipped"
wal_shards = 3
segment_max_events = 4
segment_max_bytes = 5
segment_max_age_ms = 6
hot_retain_segments = 7
hot_retain_bytes = 8
on_damage = "serve"
max_topics = 9
max_routers = 10
max_consumers = 20
max_idempotency_keys = 22
max_schedules = 22
max_watch_sessions = 11
max_sse_connections = 12
max_sse_connections_per_key = 13
max_topics_per_key = 17
max_routers_per_key = 18
max_consumers_per_key = 21
max_schedules_per_key = 23
max_watch_sessions_per_key = 19
max_inflight_per_key = 14
max_total_bytes = 15
max_total_bytes_per_key = 24
test_min_heartbeat_ms = 16
log_level = "error"
log_format = "json"
cors_origins = ["http://a", "*"]
allowed_hosts = ["a"]
api_keys_file = "k"
"""


def test_every_setting_can_come_from_the_file(tmp_path: Path) -> None:
    settings = of_toml(tmp_path, TOML)
    assert [item.name for item in fields(settings) if getattr(settings, item.name) == item.default] == []
    assert (settings.host, settings.port, settings.port_file) == ("0.0.0.0", 1, "p")
    assert settings.api_keys.find(b"k") == Key(1, Scope.READ, ())
    assert settings.api_keys.find(b"l") == Key(2, ALL_SCOPES, ())
    assert settings.allow_insecure_no_auth is settings.probe_auth is True
    assert (settings.wal_shards, settings.max_total_bytes, settings.test_min_heartbeat_ms) == (3, 15, 16)
    assert (settings.log_level, settings.log_format) == ("error", "json")
    assert settings.cors_origins == ("http://a", "*")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("port", value) for value in ('"http"', "65536", "-1", "1.0", "true", "[1]", '""')],
        *[("wal_shards", value) for value in ("-1", "257", '"x"')],
        *[("segment_max_events", value) for value in ("0", "18446744073709551616")],
        *[("test_min_heartbeat_ms", value) for value in ("0", "1001")],
        *[("probe_auth", value) for value in ("1", '"true"', "[]")],
        *[("data_dir", value) for value in ('""', "1", "[]")],
        *[("host", value) for value in ('""', "1")],
        *[("log_level", value) for value in ('""', "1", '"loud"')],
        *[("allowed_hosts", value) for value in ("1", "[1]", '"a:1"', '["http://a"]')],
        *[("cors_origins", value) for value in ("1", "[1]", '"x"', '["x"]')],
    ],
)
def test_a_bad_value_in_the_file_is_refused_with_key_file_and_value(
    tmp_path: Path, key: str, value: str
) -> None:
    shown = value.replace('"', "'").replace("true", "True") if value != '"true"' else "'true'"
    complaint = re.escape(f"{key} in {tmp_path / 'server.toml'} is {shown}; it must be ")
    with pytest.raises(InvalidConfig, match=complaint):
        of_toml(tmp_path, f"{key} = {value}")


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("max_topic", "did you mean max_topics?"),
        ("TOPICS_MAX_ROUTERS", "did you mean max_routers?"),
        ("TOPICS_PORT", "did you mean port?"),
        ("data-dir", "did you mean data_dir?"),
        ("loglevel", "did you mean log_level?"),
        ("zzz", "settings are host, port, "),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(tmp_path: Path, key: str, hint: str) -> None:
    complaint = re.escape(f"{key!r} in {tmp_path / 'server.toml'} is not a setting; {hint}")
    with pytest.raises(InvalidConfig, match=complaint):
        of_toml(tmp_path, f"{key} = 1")
    with pytest.raises(InvalidConfig, match=re.escape(f"{key!r} in the flags is not a setting; {hint}")):
        of_flags(**{key: 1})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f'api_keys = "{SECRET}', "is not valid TOML: .*end of document"),
        (f"api_keys = {SECRET}", "is not valid TOML: .*line 1"),
        (f'api_keys = "{SECRET}\udcff"', "is not UTF-8 text at byte 21"),
    ],
)
def test_a_file_that_is_not_toml_is_refused_without_showing_its_text(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(InvalidConfig, match=complaint) as caught:
        of_toml(tmp_path, text)
    assert str(tmp_path / "server.toml") in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None, "an inner error may carry the text of the file"


def test_a_file_that_cannot_be_read_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(f"{tmp_path / 'absent'} cannot be read (No such file")):
        ServerSettings.from_sources({}, str(tmp_path / "absent"), {})
    with pytest.raises(InvalidConfig, match="Is a directory"):
        ServerSettings.from_sources({}, str(tmp_path), {})


# --- Flags and precedence --------------------------------------------------------------------------------


def test_flags_are_typed_values_or_text_and_none_is_not_given(tmp_path: Path) -> None:
    settings = of_flags(
        port="5", max_topics=6, data_dir=tmp_path, probe_auth=True, cold_dir=None, wal_shards=0
    )
    assert settings == ServerSettings(port=5, max_topics=6, data_dir=str(tmp_path), probe_auth=True)


@pytest.mark.parametrize(
    ("flag", "value", "shown"),
    [
        ("port", "x", "--port is 'x'"),
        ("max_sse_connections_per_key", -1, "--max-sse-connections-per-key is -1"),
        ("max_topics", True, "--max-topics is True"),
        ("probe_auth", 1, "--probe-auth is 1"),
        ("log_level", "loud", "--log-level is 'loud'"),
    ],
)
def test_a_bad_flag_is_refused_with_its_value(flag: str, value: object, shown: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(f"{shown}; it must be ")):
        of_flags(**{flag: value})


@pytest.fixture(scope="module")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings")


@given(
    st.dictionaries(
        st.sampled_from(sorted(set(NUMBERS.values()))),
        st.tuples(*[st.none() | st.integers(1, 256)] * 3, st.booleans()),
        max_size=6,
    )
)
def test_flags_win_over_the_environment_and_that_over_the_file(
    shared_directory: Path, given_values: dict[str, tuple[Any, Any, Any, bool]]
) -> None:
    expected: dict[str, Any] = {}
    environment: dict[str, str] = {}
    lines = []
    flags: dict[str, object] = {}
    for name, (in_file, in_environment, as_flag, is_broken) in given_values.items():
        if in_file is not None:
            lines.append(f"{name} = {in_file}")
        if in_environment is not None:
            environment[VARIABLES[name]] = f"{in_environment}x" if is_broken else str(in_environment)
        flags[name] = as_flag
        usable = [as_flag, None if is_broken else in_environment, in_file]
        expected |= {name: next((value for value in usable if value is not None), None)}
    path = toml_file(shared_directory, "\n".join(lines))
    settings = ServerSettings.from_sources(environment, path, flags)
    assert settings == ServerSettings(
        **{name: value for name, value in expected.items() if value is not None}
    )


@pytest.mark.parametrize(
    ("environment", "flags", "is_on"),
    [
        ({}, {}, True),
        ({"TOPICS_PROBE_AUTH": ""}, {}, True),
        ({"TOPICS_PROBE_AUTH": "0"}, {}, False),
        ({"TOPICS_PROBE_AUTH": "0"}, {"probe_auth": True}, True),
        ({"TOPICS_PROBE_AUTH": "1"}, {"probe_auth": False}, False),
    ],
)
def test_a_switch_can_be_turned_off_by_a_stronger_source(
    tmp_path: Path, environment: Mapping[str, str], flags: Mapping[str, object], is_on: bool
) -> None:
    path = toml_file(tmp_path, "probe_auth = true")
    assert ServerSettings.from_sources(environment, path, flags).probe_auth is is_on


def test_a_flag_that_lists_no_origin_leaves_those_of_the_file(tmp_path: Path) -> None:
    path = toml_file(tmp_path, 'cors_origins = ["http://a"]')
    nothing: tuple[object, ...] = ([], (), "", None)
    for value in nothing:
        assert ServerSettings.from_sources({}, path, {"cors_origins": value}).cors_origins == ("http://a",)


def test_no_shards_means_the_default_even_over_a_weaker_source(tmp_path: Path) -> None:
    path = toml_file(tmp_path, "wal_shards = 200")
    for environment, flags in (({"TOPICS_WAL_SHARDS": "0"}, {}), ({}, {"wal_shards": 0})):
        assert ServerSettings.from_sources(environment, path, flags).wal_shards == DEFAULT_SHARDS
    assert ServerSettings.from_sources({"TOPICS_WAL_SHARDS": "x"}, path, {}).wal_shards == 200


# --- Keys ------------------------------------------------------------------------------------------------


def test_keys_are_parsed_and_their_text_is_not_kept(tmp_path: Path) -> None:
    path = toml_file(tmp_path, 'api_keys = "of-file"')
    settings = ServerSettings.from_sources({"TOPICS_API_KEYS": f"{SECRET}:r:a:b"}, path, {})
    assert settings.api_keys.find(SECRET.encode()) == Key(1, Scope.READ, (b"a:b",))
    assert settings.api_keys.find(b"of-file") is None, "the environment replaces the keys of the file"
    assert SECRET not in repr(settings)
    by_flag = ServerSettings.from_sources({"TOPICS_API_KEYS": SECRET}, path, {"api_keys": "of-flag"})
    assert by_flag.api_keys.find(b"of-flag") is not None
    assert by_flag.api_keys.find(SECRET.encode()) is None


@pytest.mark.parametrize("text", ["", " ", ",", " , ,"])
def test_a_list_without_keys_never_switches_the_keys_of_another_source_off(tmp_path: Path, text: str) -> None:
    path = toml_file(tmp_path, 'api_keys = "k"')
    assert ServerSettings.from_sources({"TOPICS_API_KEYS": text}, path, {}).api_keys.enabled
    assert ServerSettings.from_sources({}, path, {"api_keys": text}).api_keys.enabled
    assert ServerSettings.from_sources({"TOPICS_API_KEYS": text}, None, {}) == ServerSettings()


def test_a_bad_key_list_is_refused_by_its_source_and_never_shown(tmp_path: Path) -> None:
    bad = f"read:{SECRET}"
    for variables, text, flags, where in (
        ({"TOPICS_API_KEYS": bad}, "", {}, "TOPICS_API_KEYS: scope 1 in entry 1"),
        ({}, f'api_keys = ["x", "{bad}"]', {}, "api_keys in .*: scope 1 in entry 2"),
        ({}, f'api_keys = [1, "{bad}"]', {}, "api_keys in .* is not text"),
        ({}, "", {"api_keys": bad}, "--api-keys: scope 1 in entry 1"),
        ({}, "", {"api_keys": bad.encode()}, "--api-keys is not text"),
    ):
        with pytest.raises(InvalidConfig, match=where) as caught:
            ServerSettings.from_sources(variables, toml_file(tmp_path, text), flags)
        assert SECRET not in str(caught.value)


# --- Made directly ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("wal_shards", 0),
        ("segment_max_bytes", 0),
        ("test_min_heartbeat_ms", 0),
    ],
)
def test_numbers_out_of_range_are_refused_in_code_as_well(name: str, value: int) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} is {value}; it must be from"):
        ServerSettings(**{name: value})  # type: ignore[arg-type]


def test_the_keys_of_equal_settings_are_the_same_ring() -> None:
    ring = KeyRing.parse("k")
    assert ServerSettings(api_keys=ring) == ServerSettings(api_keys=ring)
    assert ServerSettings(api_keys=ring) != ServerSettings()
