"""The page on settings: of the server, of topics, of a queue's writer, and what commands take from outside.

Owns the layout of the page and the words for settings that have none in the code. Names, variables, ranges,
flags and defaults are those of the code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

import msgspec
import typer

from everlog.cli import main
from everlog.queue.config import WriterConfig
from everlog.server.auth import KeyRing
from everlog.server.settings import RANGES, VARIABLES, ServerSettings
from everlog.topics.config import U64_MAX, TopicConfig
from tools.reference_pages.field_texts import COMMON, SPECIAL
from tools.reference_pages.markdown import MADE_BY, code, table

_OPENING: Final = f"""# Settings

{MADE_BY}

Everything that can be set, made from the code that reads it.

## Server

Each setting is a variable or a key of the TOML file that `everlog serve --config` names; those with a flag
are also a flag of [`everlog serve`](cli.md#everlog-serve). Flags win over variables, variables over the file,
the file over the defaults. A number in a variable that is none counts as not set; in the file or a flag it
is an error. Caps of 0 are off. The [guide](../guide/server.md#settings) shows a settings file.
"""
_TOPICS: Final = """## Topics

The fields of a topic's configuration, as `PUT /v0/topics/{topic}` and the `config` of an append take them.
[Append and read](../guide/durable-streams.md) and [job queues](../guide/job-queues.md) explain them.
"""
_QUEUES: Final = """## Queues

The fields of `WriterConfig`, which `Queue.open_publisher` takes as keywords or as one object. Times are in
seconds. The [guide](../guide/queue.md#settings-and-presets) has the presets.
"""
_COMMANDS: Final = "## Commands\n"

COMMAND_VARIABLES: Final[dict[str, str]] = {
    "EVERLOG_URL": "the server that `everlog topic`, `jobs`, `router` and `pipeline` talk to; "
    "`http://127.0.0.1:4000` without it",
    "EVERLOG_KEY": "the key they send; Spark jobs take it as well. Unlike `--key`, other users of the "
    "machine cannot see it",
    "JAVA_HOME": "the Java that Spark runs on; without it that on the path, then that of the extra `spark`",
    "EVERLOG_LAKE": "where the tables of Spark jobs are: a directory, or a URL such as `s3://bucket/prefix`",
    "SPARK_MASTER": "where Spark jobs run; `local[*]` without it",
}
SERVER_TEXTS: Final[dict[str, str]] = {
    "host": "address to listen on, or `host:port`",
    "port": "0: any free one",
    "port_file": "gets `host:port` once the server listens and has the data directory to itself",
    "api_keys": "see [keys](../guide/security.md#keys); text, or in TOML an array",
    "api_keys_file": "a file of [keys](../guide/security.md#keys-in-a-file), reread on SIGHUP",
    "allow_insecure_no_auth": "listen on a public address without keys",
    "probe_auth": "health and ready need a key as well",
    "cors_origins": "origins whose pages may call the server from a browser; `*` is any",
    "allowed_hosts": "names in `Host` that are answered besides loopback names and `host`; `*` is any",
    "data_dir": "log, snapshots, segments",
    "bus_root": "queues in and below this directory can be looked at",
    "lake": "tables of this lake, and the reports of its jobs, can be looked at",
    "cold_dir": "old segments are moved here, for example to a cheaper disk",
    "cold_url": "object store for sealed segments beyond the hot bound, instead of `cold_dir`",
    "backup_url": "object store to which the log is shipped",
    "backup_interval_ms": "time between two shipments",
    "ack": "`shipped`: a write is acknowledged when it is in the backup as well",
    "wal_shards": "parts of the log that are synced side by side; may change between starts",
    "segment_max_events": "records after which a segment is sealed",
    "segment_max_bytes": "bytes after which it is",
    "segment_max_age_ms": "age at which it is; 0: never",
    "hot_retain_segments": "sealed segments of a topic that stay in the data directory",
    "hot_retain_bytes": "their bytes; the stricter of the two counts",
    "on_damage": "`refuse` to start, or `serve`, if acknowledged `disk` or `fsync` records may be lost",
    "max_body_bytes": "a longer request is refused with 413; all bodies together may hold four times that, "
    "or 256 MiB if it is more",
    "access_log": "a line of JSON on standard error for each answer: method, path without the query, route, "
    "status, duration, name of the key",
    "gzip": "requests may have `Content-Encoding: gzip`, and answers of 1 KiB or more have it for clients "
    "that accept it",
    "max_topics": "topics that may be created",
    "max_routers": "routers that may be created",
    "max_consumers": "consumers that may be created, of all topics",
    "max_idempotency_keys": "idempotency keys remembered at once, of all topics; one more is refused",
    "max_schedules": "schedules that may be created",
    "max_watch_sessions": "watch sessions",
    "max_sse_connections": "open streams and sockets",
    "max_topics_per_key": "topics that one key has created since the server started",
    "max_routers_per_key": "routers that one key has created since the server started",
    "max_consumers_per_key": "consumers that one key has created since the server started",
    "max_schedules_per_key": "schedules that one key has created since the server started",
    "max_watch_sessions_per_key": "watch sessions of one key",
    "max_sse_connections_per_key": "streams of one key",
    "max_inflight_per_key": "requests of one key in progress, streams not counted",
    "max_total_bytes": "live bytes of all topics",
    "max_total_bytes_per_key": "live bytes of the topics that one key has created since the server started",
    "test_min_heartbeat_ms": "for tests: heartbeats this often may be asked for",
    "log_level": "`debug`, `info`, `warning`, `error` or `critical`",
    "log_format": "`text`, or `json`: one object a line",
}
WRITER_TEXTS: Final[dict[str, str]] = {
    "segment_size": "bytes per segment file, a multiple of 64; a message must fit in one",
    "index_stride": "messages per entry of the seek index",
    "index_flush_interval_s": "also write the index of the open segment this often",
    "index_flush_records": "also write it after so many messages",
    "retention": "delete segments that no reader needs",
    "retention_check_interval_s": "how often to look for it",
    "retention_check_bytes": "also look after so many bytes",
    "reader_ttl_s": "a reader silent for longer does not count",
    "max_reader_lag_bytes": "a reader further behind does not count",
    "max_segments": "capacity in segments",
    "max_bytes": "capacity in bytes",
    "backpressure": "at the limit: raise at once, or `block`",
    "block_timeout_s": "how long `block` waits",
    "defer_seal_sync": "sync full segments in a worker instead of inside the append that rolls",
    "require_prealloc": "a roll uses a prepared segment or raises `SegmentNotPrepared`",
    "prealloc_wait_s": "how long a roll waits for the prepared segment",
    "memlock": "lock segments in memory",
    "large_blocks": "prepare segments in blocks of 256 KiB: cheaper to write and to read, but a sync of "
    "anything in a block writes all of it",
    "clock_mode": "`wall`, or `anchored`: monotonic time, set to the wall clock when opened",
}
OF_THE_MACHINE: Final = {"wal_shards": "processors, at most 8"}
"""Defaults that depend on the machine, in words."""


def settings_page() -> str:
    """The whole page."""
    server = table(("Setting", "Variable", "Default", "Range", "Flag", "Means"), _server_rows())
    topics = table(("Field", "Default", "Means"), _topic_rows())
    queues = table(("Setting", "Default", "Means"), _writer_rows())
    commands = table(("Variable", "Means"), ((code(name), text) for name, text in COMMAND_VARIABLES.items()))
    return "\n".join([_OPENING, server, _TOPICS, topics, _QUEUES, queues, _COMMANDS, commands])


def _server_rows() -> Iterator[tuple[str, ...]]:
    command = typer.main.get_command(main.app).commands["serve"]  # type: ignore[attr-defined]
    flags = {parameter.name: parameter.opts[0] for parameter in command.params}
    for field in dataclasses.fields(ServerSettings):
        name = field.name
        yield (
            code(name),
            code(VARIABLES[name]),
            OF_THE_MACHINE.get(name) or _shown(field.default),
            _range(name),
            code(flags.get(name, "")),
            SERVER_TEXTS[name],
        )


def _range(name: str) -> str:
    if name not in RANGES:
        return ""
    least, most = RANGES[name]
    return f"at least {least}" if most == U64_MAX else f"{least} to {most}"


def _topic_rows() -> Iterator[tuple[str, ...]]:
    texts = {**COMMON, **SPECIAL.get(TopicConfig.__name__, {})}
    for field in msgspec.structs.fields(TopicConfig):
        yield code(field.name), _shown(field.default), texts[field.name]


def _writer_rows() -> Iterator[tuple[str, ...]]:
    for field in dataclasses.fields(WriterConfig):
        yield code(field.name), _shown(field.default), WRITER_TEXTS[field.name]


def _shown(default: Any) -> str:
    """A default as a settings file would have it."""
    if default is None:
        return "unset"
    if default == () or isinstance(default, KeyRing):
        return "none"
    if isinstance(default, bool):
        return code(str(default).lower())
    return code(default.value if isinstance(default, StrEnum) else default)
