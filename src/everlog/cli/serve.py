"""The command `everlog serve`: a topics server in the foreground.

Owns the flags, the banner, and the exit codes of a server that cannot start. Serving itself is done by
`everlog.server.serve`.

    exit 1  an error not listed here
    exit 2  the settings are wrong: a flag, a variable, the TOML file, or a public address without keys
    exit 5  the address cannot be listened on, for example because the port is in use
    exit 6  another process uses the data directory
    exit 7  the data is damaged; nothing was changed
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

import everlog
from everlog import tracing
from everlog.cli.output import counted, is_terminal, print_error, print_fields, print_warning
from everlog.errors import Corrupt, DataDirInUse, EverlogError, InvalidConfig, Io, UnsupportedVersion

if TYPE_CHECKING:
    from everlog.server.serve import TopicsServer
    from everlog.server.settings import ServerSettings

SETTINGS_EXIT_CODE: Final = 2
ADDRESS_EXIT_CODE: Final = 5
DATA_DIR_EXIT_CODE: Final = 6
CORRUPT_EXIT_CODE: Final = 7

_EXIT_CODES: Final[dict[type[EverlogError], int]] = {
    InvalidConfig: SETTINGS_EXIT_CODE,
    DataDirInUse: DATA_DIR_EXIT_CODE,
    Corrupt: CORRUPT_EXIT_CODE,
    UnsupportedVersion: CORRUPT_EXIT_CODE,
}

_ADDRESS_ERRNOS: Final = {
    errno.EADDRINUSE: "another process listens there; stop it, or choose another --port (0: any free one)",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose another --host",
    errno.EACCES: "not allowed; ports below 1024 need a privilege, choose another --port",
}

Host = Annotated[
    str | None, typer.Option(metavar="HOST", help="Listen here; or host:port. Default: 127.0.0.1.")
]
Port = Annotated[int | None, typer.Option(min=0, max=65_535, help="Port; 0: any free one. Default: 4000.")]
DataDir = Annotated[str | None, typer.Option(metavar="DIR", help="Where data lies. Default: ./topics-data.")]
ColdDir = Annotated[str | None, typer.Option(metavar="DIR", help="Old segments are moved here.")]
BusRoot = Annotated[
    str | None,
    typer.Option("--bus", metavar="DIR", help="Queues in and below this directory are shown in the console."),
]
LakeRoot = Annotated[
    str | None,
    typer.Option("--lake", metavar="DIR", help="The pipeline's tables here are shown in the console."),
]
SettingsFile = Annotated[
    str | None,
    typer.Option(metavar="FILE.toml", help="Settings file; variables win over it, flags over both."),
]
PortFile = Annotated[str | None, typer.Option(metavar="FILE", help="Gets host:port once the server listens.")]
Shards = Annotated[
    int | None, typer.Option("--shards", "--wal-shards", min=1, help="Parts of the log, synced side by side.")
]
LogLevel = Annotated[
    str | None, typer.Option(metavar="LEVEL", help="debug, info, warning, error or critical. Default: info.")
]
LogFormat = Annotated[
    Literal["text", "json"] | None, typer.Option(help="How log lines and errors are written. Default: text.")
]
CorsOrigins = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin",
        "--cors-origins",
        metavar="ORIGIN",
        help="Pages from here may call the server in a browser; may be repeated, * is any.",
    ),
]


def serve_command(  # noqa: PLR0913, PLR0917
    context: typer.Context,
    memory: Annotated[bool, typer.Option("--memory", help="Keep all in memory; gone at the end.")] = False,
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    cold_dir: ColdDir = None,
    bus_root: BusRoot = None,
    lake: LakeRoot = None,
    config: SettingsFile = None,
    port_file: PortFile = None,
    wal_shards: Shards = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    cors_origins: CorsOrigins = None,
) -> None:
    """Run a topics server until Ctrl-C or SIGTERM.

    Everything else is set by TOPICS_* variables or the settings file: keys (TOPICS_API_KEYS), caps, segments.
    """
    if memory and (data_dir is not None or cold_dir is not None):
        raise typer.BadParameter("--memory keeps nothing on disk; leave --data-dir and --cold-dir out")
    flags = {**context.params, "cors_origins": cors_origins or None}
    del flags["memory"], flags["config"]
    as_json = log_format == "json"
    address = "the address"
    try:
        settings = _settings(config, flags)
        as_json = settings.log_format == "json"
        for problem in _ignored_variables(os.environ):
            print_warning("variable_passed_over", problem, as_json=as_json)
        address = f"{settings.host} port {settings.port}"
        tracing.export_as_told(os.environ, "everlog")
        _serve(settings, memory)
    except (EverlogError, OSError) as error:
        shown, code = _start_failure(error, address)
        print_error(shown, as_json=as_json)
        raise typer.Exit(code) from None


def _settings(config: str | None, flags: dict[str, Any]) -> ServerSettings:
    # Imported here: the commands that look at queues need not wait for the server to be loaded.
    from everlog.server.settings import ServerSettings

    return ServerSettings.from_sources(os.environ, config, flags)


def _ignored_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Variables without effect: a misspelt TOPICS_API_KEYS would leave the server open."""
    from everlog.server.settings import RANGES, VARIABLES

    known = set(VARIABLES.values())
    for variable in sorted(environment):
        if variable.startswith("TOPICS_") and variable not in known:
            near = get_close_matches(variable, known, 1, cutoff=0.8)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield f"{variable} is not a setting of the server and is ignored{hint}"
    for name, (least, most) in RANGES.items():
        text = environment.get(VARIABLES[name], "").strip()
        if text and not text.isdecimal():
            wanted = f"a whole number from {least} to {most}"
            yield f"{VARIABLES[name]} is {text!r} and counts as not set; it must be {wanted}"


def _serve(settings: ServerSettings, memory: bool) -> None:
    from everlog.server.serve import run

    run(settings, memory=memory, started=_show_banner if is_terminal() else None)


def _show_banner(server: TopicsServer) -> None:
    """Print what a person needs who has just started a server."""
    settings = server.settings
    host, port = server.address
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    keys = (
        f"on, {counted(len(settings.api_keys), 'key')}"
        if settings.api_keys.enabled
        else "OFF, every client may do everything"
    )
    data = "in memory only, gone when it stops" if server.is_memory else os.path.abspath(settings.data_dir)
    fields = [("console", f"{url}/"), ("listens on", f"{url}/v0"), ("data", data)]
    if settings.cold_dir is not None:
        fields.append(("old segments", os.path.abspath(settings.cold_dir)))
    fields += [("auth", keys), ("try", f"curl {url}/v0/health"), ("stop", "Ctrl-C")]
    print(f"everlog {everlog.__version__} is ready")
    print_fields(fields)
    sys.stdout.flush()


def _start_failure(error: EverlogError | OSError, address: str) -> tuple[EverlogError, int]:
    """The error that is shown for a failed start, and the exit code."""
    if isinstance(error, EverlogError):
        for kinds, code in _EXIT_CODES.items():
            if isinstance(error, kinds):
                return error, code
        return error, 1
    if isinstance(error, socket.gaierror):
        reason = f"cannot listen on {address}: the name cannot be resolved ({error.strerror})"
        return Io(reason, error.errno), ADDRESS_EXIT_CODE
    if error.errno in _ADDRESS_ERRNOS and error.filename is None:
        reason = f"cannot listen on {address}: {_ADDRESS_ERRNOS[error.errno]}"
        return Io(reason, error.errno), ADDRESS_EXIT_CODE
    return Io(f"cannot go on: {error}", error.errno), 1
