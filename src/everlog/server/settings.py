"""The settings of a topics server, their defaults, and the sources they come from.

Owns names, ranges and precedence: command-line flags win over the environment, the environment over a TOML
file, the file over the defaults. Reads the TOML file and nothing else; opens, binds and logs nothing.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, Literal, NamedTuple, get_args
from urllib.parse import urlsplit

from everlog.errors import InvalidConfig
from everlog.server.auth import NO_KEYS, KeyRing
from everlog.topics.config import MIB, U64_MAX, Ack, EngineSettings, OnDamage

WAL_SHARDS_MAX: Final = 256
"""Each shard costs a thread and a preallocated log file; more is a slip of the finger."""

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """All settings of a server. Caps of 0 mean unlimited."""

    host: str = "127.0.0.1"
    port: int = 4000
    """0 takes any free port."""
    port_file: str | None = None
    """Gets `host:port` after binding."""

    api_keys: KeyRing = NO_KEYS
    api_keys_file: str | None = None
    """Keys in TOML, reread on SIGHUP."""
    allow_insecure_no_auth: bool = False
    probe_auth: bool = False
    """Whether health and readiness need a token as well."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call the server from a browser; `*` stands for any."""
    allowed_hosts: tuple[str, ...] = ()
    """Names of the server besides those of loopback and `host`; `*` stands for any."""

    data_dir: str = "./topics-data"
    bus_root: str | None = None
    """The queues in and below this directory can be looked at."""
    lake: str | None = None
    """The tables of this lake, and the reports of its jobs, can be looked at."""
    cold_dir: str | None = None
    cold_url: str | None = None
    """Object store for older segments: s3://bucket/prefix, gs:, az: or file:."""
    backup_url: str | None = None
    """Object store to which the log is shipped."""
    backup_interval_ms: int = EngineSettings.backup_interval_ms
    ack: Ack = EngineSettings.ack
    """Whether a write waits until it is shipped."""
    wal_shards: int = EngineSettings.shards
    segment_max_events: int = EngineSettings.segment_max_events
    segment_max_bytes: int = EngineSettings.segment_max_bytes
    segment_max_age_ms: int = EngineSettings.segment_max_age_ms
    hot_retain_segments: int = EngineSettings.hot_retain_segments
    hot_retain_bytes: int = EngineSettings.hot_retain_bytes
    on_damage: OnDamage = EngineSettings.on_damage
    """Whether to start if acknowledged records of `disk` or `fsync` topics may be lost."""

    max_body_bytes: int = 64 * MIB
    access_log: bool = False
    gzip: bool = False
    """Whether requests may come and answers may go compressed."""
    max_topics: int = EngineSettings.max_topics
    max_routers: int = 10_000
    max_consumers: int = EngineSettings.max_consumers
    max_idempotency_keys: int = EngineSettings.max_idempotency_keys
    max_schedules: int = EngineSettings.max_schedules
    max_watch_sessions: int = 10_000
    max_sse_connections: int = 10_000
    max_topics_per_key: int = 10_000
    max_routers_per_key: int = 1000
    max_consumers_per_key: int = 10_000
    max_schedules_per_key: int = 1000
    max_watch_sessions_per_key: int = 1000
    max_sse_connections_per_key: int = 1000
    max_inflight_per_key: int = 1000
    max_total_bytes: int = EngineSettings.max_total_bytes
    max_total_bytes_per_key: int = 0

    test_min_heartbeat_ms: int | None = None
    """For tests: heartbeats may be asked for this often, instead of the usual least interval."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work, naming the setting and the value."""
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise InvalidConfig(f"{name} is {value!r}; it must be from {least} to {most}")

    @classmethod
    def from_sources(
        cls, environment: Mapping[str, str], toml_path: str | None, flags: Mapping[str, object]
    ) -> ServerSettings:
        """Put the settings together: flags win over the environment, that over the TOML file.

        Flags and TOML keys have the names of the fields; a flag of None was not given. A number in the
        environment that is none counts as not set. A port inside `host` wins over the `port` of its source.
        """
        settings: dict[str, Any] = {}
        for source in (_toml_values(toml_path), _environment_values(environment), _flag_values(flags)):
            settings.update(_read(source))
        return cls(**settings)

    def engine_settings(self) -> EngineSettings:
        """Return the part of the settings that the engine needs."""
        shared = {item.name for item in fields(EngineSettings)}.intersection(_NAMES)
        return EngineSettings(shards=self.wal_shards, **{name: getattr(self, name) for name in shared})


# --- Names and ranges ------------------------------------------------------------------------------------

_NAMES: Final = tuple(item.name for item in fields(ServerSettings))

VARIABLES: Final[dict[str, str]] = {name: f"TOPICS_{name.upper()}" for name in _NAMES} | {
    "log_level": "TOPICS_LOG"
}
"""The environment variable of each setting."""

RANGES: Final[dict[str, tuple[int, int]]] = {
    "port": (0, 65_535),
    "max_body_bytes": (1, U64_MAX),
    "wal_shards": (1, WAL_SHARDS_MAX),
    "backup_interval_ms": (1, U64_MAX),
    "segment_max_events": (1, U64_MAX),
    "segment_max_bytes": (1, U64_MAX),
    "segment_max_age_ms": (0, U64_MAX),
    "hot_retain_segments": (0, U64_MAX),
    "hot_retain_bytes": (0, U64_MAX),
    **{name: (0, U64_MAX) for name in _NAMES if name.startswith("max_") and name != "max_body_bytes"},
    "test_min_heartbeat_ms": (1, 1000),
}
"""The least and the largest value of each number."""

# Environment numbers outside the range of these are moved into it, as their description promises.
_CLAMPED: Final = frozenset({"segment_max_events", "test_min_heartbeat_ms"})

_LOG_LEVELS: Final = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "critical": "critical",
}

# 20 digits hold every 64-bit number; the bound keeps endless digits away from `int`.
_DECIMAL: Final = re.compile(r"\+?[0-9]{1,20}")


# --- Sources ---------------------------------------------------------------------------------------------


class _Given(NamedTuple):
    """One value that a source gives for one setting."""

    name: str
    where: str
    """How an error message calls it."""
    value: object
    from_environment: bool = False

    def refusal(self, rule: str) -> InvalidConfig:
        """Return the error that says what the value must be. Not for keys: it repeats the value."""
        return InvalidConfig(f"{self.where} is {self.value!r}; it must be {rule}")


def _environment_values(environment: Mapping[str, str]) -> Iterator[_Given]:
    """Yield what the environment sets; an empty variable counts as not set."""
    for name, variable in VARIABLES.items():
        text = environment.get(variable, "")
        if text.strip():
            yield _Given(name, variable, text, from_environment=True)


def _flag_values(flags: Mapping[str, object]) -> Iterator[_Given]:
    """Yield the flags that were given."""
    for name, value in flags.items():
        _check_name(name, "the flags")
        if value is not None:
            yield _Given(name, "--" + name.replace("_", "-"), value)


def _toml_values(path: str | None) -> Iterator[_Given]:
    """Yield what the TOML file sets; a key that is no setting is refused."""
    if path is None:
        return
    for name, value in _load_toml(path).items():
        _check_name(name, path)
        yield _Given(name, f"{name} in {path}", value)


def _load_toml(path: str) -> dict[str, Any]:
    """Read the file; errors name it, and do not carry its text, which may hold secrets."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        reason = f"cannot be read ({error.strerror}); check the path and its permissions"
    except tomllib.TOMLDecodeError as error:
        reason = f"is not valid TOML: {error}"
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text at byte {error.start}"
    raise InvalidConfig(f"the settings file {path} {reason}")


def _check_name(name: str, where: str) -> None:
    """Refuse a name that is no setting, and say which one may have been meant."""
    if name in _NAMES:
        return
    wanted = name.lower().replace("-", "_").removeprefix("topics_")
    close = get_close_matches(wanted, _NAMES, n=1)
    hint = f"did you mean {close[0]}?" if close else f"settings are {', '.join(_NAMES)}"
    raise InvalidConfig(f"{name!r} in {where} is not a setting; {hint}")


# --- Values ----------------------------------------------------------------------------------------------


def _read(source: Iterator[_Given]) -> dict[str, Any]:
    """Turn the values of one source into settings; what counts as not set is left out."""
    settings: dict[str, Any] = {}
    port_of_host: int | None = None
    for given in source:
        if given.name == "host":
            settings["host"], port_of_host = _host(given)
            continue
        value = _number(given) if given.name in RANGES else _READERS[given.name](given)
        if value is not None:
            settings[given.name] = value
    if port_of_host is not None:
        settings["port"] = port_of_host
    return settings


def _number(given: _Given) -> int | None:
    """Return a number in its range; None if the environment holds none."""
    least, most = RANGES[given.name]
    value = _integer(given.value)
    if value == 0 and given.name == "wal_shards":
        return EngineSettings.shards
    if value is not None and least <= value <= most:
        return value
    if not given.from_environment:
        raise given.refusal(f"a whole number from {least} to {most}")
    if value is not None and given.name in _CLAMPED and value <= U64_MAX:
        return min(max(value, least), most)
    return None


def _integer(value: object) -> int | None:
    """Return a whole number that was written as such or as decimal text."""
    if isinstance(value, str):
        text = value.strip()
        return int(text) if _DECIMAL.fullmatch(text) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _switch(given: _Given) -> bool:
    """Return a truth value; in the environment everything but `1` and `true` is false."""
    if isinstance(given.value, bool):
        return given.value
    if given.from_environment:
        return str(given.value).strip().lower() in ("1", "true")
    raise given.refusal("true or false")


def _path(given: _Given) -> str:
    """Return a path as text."""
    value = given.value
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path or "\0" in path:
        raise given.refusal("a path")
    return path


def _host(given: _Given) -> tuple[str, int | None]:
    """Split `host`, `host:port`, `[v6]` or `[v6]:port`; an IPv6 address without brackets has no port."""
    text = given.value.strip() if isinstance(given.value, str) else ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        fits = bool(bracket) and _is_ipv6(host) and rest[:1] in ("", ":")
        colon, port = rest[:1], rest[1:]
    elif _is_ipv6(text):
        host, colon, port, fits = text, "", "", True
    else:
        host, colon, port = text.partition(":")
        fits = host.strip() == host
    number = _integer(port) if colon else None
    if not fits or not host or (colon and (number is None or number > 65_535)):
        raise given.refusal("a host, or host:port with a port from 0 to 65535 (an IPv6 host in brackets)")
    return host, number


def _is_ipv6(text: str) -> bool:
    """Whether the text is a numeric IPv6 address."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _api_keys(given: _Given) -> KeyRing | None:
    """Return the keys; a list that holds none counts as not set, so that it cannot switch others off."""
    entries = given.value if isinstance(given.value, list | tuple) else [given.value]
    texts = [entry for entry in entries if isinstance(entry, str)]
    if len(texts) != len(entries):
        # The value is not repeated: part of it may be a secret.
        raise InvalidConfig(f"{given.where} is not text; it must be a key list or an array of its entries")
    try:
        ring = KeyRing.parse(",".join(texts))
    except InvalidConfig as error:
        raise InvalidConfig(f"{given.where}: {error}") from None
    return ring if ring.enabled else None


def _choice(given: _Given, choices: Mapping[str, str]) -> str:
    """Return what one of several words stands for, in any case."""
    word = given.value.strip().lower() if isinstance(given.value, str) else ""
    if word not in choices:
        raise given.refusal(f"one of {', '.join(choices)}")
    return choices[word]


def _words(kind: Any) -> Callable[[_Given], str]:
    """Return the reader of a setting whose type is a `Literal` of words."""
    return partial(_choice, choices={word: word for word in get_args(kind)})


def _texts(given: _Given, noun: str) -> tuple[str, ...]:
    """Return the texts of a comma separated list or an array, without empty ones."""
    value = given.value.split(",") if isinstance(given.value, str) else given.value
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise given.refusal(f"a comma separated list or an array of {noun}")
    return tuple(text.strip() for text in value if text.strip())


def _cors_origins(given: _Given) -> tuple[str, ...] | None:
    """Return the origins of a comma separated list or an array; a list without any counts as not set."""
    origins = _texts(given, "origins")
    for origin in origins:
        if origin != "*" and not _is_origin(origin):
            raise given.refusal("made of origins like https://example.org:8080, without a path, or be *")
    return origins or None


def _allowed_hosts(given: _Given) -> tuple[str, ...] | None:
    """Return the names of a comma separated list or an array; a list without any counts as not set."""
    hosts = tuple(host.strip("[]") for host in _texts(given, "host names"))
    if any(set("/@ ") & set(host) or (":" in host and not _is_ipv6(host)) for host in hosts):
        raise given.refusal("made of host names or addresses without scheme and port, or be *")
    return hosts or None


def _is_origin(text: str) -> bool:
    """Whether a browser could send this text as an origin: scheme, host and maybe a port, nothing more."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return bool(parts.scheme and parts.netloc) and text == f"{parts.scheme}://{parts.netloc}"


_READERS: Final[dict[str, Callable[[_Given], object]]] = {
    "port_file": _path,
    "api_keys": _api_keys,
    "api_keys_file": _path,
    "allow_insecure_no_auth": _switch,
    "probe_auth": _switch,
    "gzip": _switch,
    "access_log": _switch,
    "cors_origins": _cors_origins,
    "allowed_hosts": _allowed_hosts,
    "data_dir": _path,
    "bus_root": _path,
    "lake": _path,
    "cold_dir": _path,
    "cold_url": _path,
    "backup_url": _path,
    "ack": _words(Ack),
    "on_damage": partial(_choice, choices={"refuse": "refuse", "serve": "serve"}),
    "log_level": partial(_choice, choices=_LOG_LEVELS),
    "log_format": _words(LogFormat),
}
