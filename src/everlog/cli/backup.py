"""The commands `backup`, `restore`, `standby` and `promote`: a data directory in an object store, and back.

Owns options and what is printed; shipping and restoring are done by `everlog.topics.storage`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from everlog.cli import output
from everlog.cli.options import AsJson
from everlog.cli.output import human_bytes, printable, reporting
from everlog.cli.serve import Host, Port, PortFile
from everlog.clock import SystemClock
from everlog.errors import InvalidRequest, Io, ObjectStoreFailed
from everlog.fs import OsFs
from everlog.objects import open_store
from everlog.topics.storage.restoring import Restored, Restorer
from everlog.topics.storage.shipping import Shipper, ShipReport, fence, note_owners, read_manifest, take_epoch
from everlog.topics.storage.verify import verify

DataDir = Annotated[str, typer.Argument(metavar="DIR", help="Topics data directory.", show_default=False)]
NewDir = Annotated[
    str,
    typer.Argument(metavar="DIR", help="Directory to fill; it must be empty or absent.", show_default=False),
]
To = Annotated[
    str, typer.Option("--to", metavar="URL", help="Where to: s3://bucket/prefix, gs:, az: or file:.")
]
From = Annotated[str, typer.Option("--from", metavar="URL", help="Where the backup is.")]
Cold = Annotated[str | None, typer.Option("--cold", metavar="DIR", help="Cold directory that belongs to it.")]
Interval = Annotated[float, typer.Option(min=0.05, help="Seconds between two rounds.")]


def backup_command(
    data_dir: DataDir,
    to: To,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C; ship what is new.")] = False,
    interval: Interval = 1.0,
    rate: Annotated[int, typer.Option(min=0, metavar="MIB", help="MiB per second at most; 0: any.")] = 0,
    cold: Cold = None,
    as_json: AsJson = False,
) -> None:
    """Copy a topics data directory to an object store, while the server runs or not. Reads it only.

    Only what is not there yet is stored. With --follow the log is shipped every second, so that a restore
    loses at most that; a server with TOPICS_BACKUP_URL does the same by itself.
    """
    with reporting(as_json=as_json):
        if not os.path.isdir(data_dir):
            raise Io(f"there is no data directory {data_dir}; check the path")
        store = open_store(to)
        _check_free(store)
        shipper = Shipper(data_dir, store, OsFs(), SystemClock(), cold_dir=cold, rate_bytes_s=rate << 20)
        report = shipper.round()
        _print_round(report, as_json)
        if not follow:
            return
        with output.stopped_by_signals() as stopped:
            while not stopped.wait(interval):
                try:
                    report = shipper.round()
                except ObjectStoreFailed as error:
                    output.print_warning("object_store_failed", str(error), as_json=as_json)
                    continue
                if report != ShipReport():
                    _print_round(report, as_json)


def _check_free(store: Any) -> None:
    """Refuse to take a chain from a running server: it would stop taking writes."""
    found = read_manifest(store)
    if found is not None and found[0].is_primary:
        raise InvalidRequest(
            f"{store.url} is the backup of the server at {found[0].address or found[0].owner}, which ships "
            "to it by itself; use another URL"
        )


def _print_round(report: ShipReport, as_json: bool) -> None:
    if as_json:
        output.print_json(report._asdict())
        return
    output.print_fields(
        [
            ("shipments", f"{report.shipments} with {human_bytes(report.log_bytes)} of log"),
            ("objects", f"{report.objects} with {human_bytes(report.object_bytes)}"),
            ("base", "new" if report.has_base else "as before"),
        ]
    )


def restore_command(
    data_dir: NewDir,
    source: From,
    at: Annotated[
        str | None, typer.Option(metavar="TIME|N", help="A time such as 2026-01-31T12:00:00Z, or a shipment.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fill an empty directory from a backup and verify it; then `everlog serve` can be started on it.

    Without --at everything that was shipped is restored. Exit code 1 if verification finds anything wrong.
    """
    with reporting(as_json=as_json):
        at_ms, at_shipment = _moment(at)
        restorer = Restorer(open_store(source), data_dir, OsFs())
        restored = restorer.restore(at_ms=at_ms, at_shipment=at_shipment)
        errors = _verified(data_dir)
        _print_restored(data_dir, restored, errors, as_json)
    if errors:
        raise typer.Exit(1)


def _verified(data_dir: str) -> list[str]:
    return [f"{item.path}: {item.message}" for item in verify(data_dir, OsFs()).errors]


def _moment(text: str | None) -> tuple[int | None, int | None]:
    """A time in milliseconds or the number of a shipment."""
    if text is None:
        return None, None
    if text.isdecimal():
        return None, int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"--at is {text!r}; it must be a time such as 2026-01-31T12:00:00Z or the number of a shipment"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000), None


def _print_restored(data_dir: str, restored: Restored, errors: list[str], as_json: bool) -> None:
    if as_json:
        output.print_json({"directory": data_dir, **restored._asdict(), "errors": errors})
        return
    moment = datetime.fromtimestamp(restored.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    output.print_fields(
        [
            ("directory", printable(data_dir)),
            ("shipped until", moment),
            ("base, shipment", f"{restored.base}, {restored.shipment}"),
            ("segments", str(restored.segments)),
            ("log", human_bytes(restored.log_bytes)),
            ("errors", "; ".join(errors[:3]) if errors else "none"),
        ]
    )


def standby_command(
    data_dir: NewDir,
    source: From,
    interval: Interval = 1.0,
    host: Host = None,
    port: Port = None,
    port_file: PortFile = None,
    as_json: AsJson = False,
) -> None:
    """Follow a server that ships its log, and answer reads and watches from a copy, until Ctrl-C.

    Writes are refused with 503 and the address of the primary. Everything else is set as for `everlog serve`.
    To take over, stop it, run `everlog promote` on the directory, then `everlog serve`.
    """
    # Imported here: the other commands need not wait for the server to be loaded.
    from everlog.server.serve import TopicsServer, run
    from everlog.server.settings import ServerSettings

    def show(server: TopicsServer) -> None:
        if server.replica is not None:
            _print_restored(data_dir, server.replica.restored, [], as_json)
            print(end="", flush=True)  # it may run for months

    with reporting(as_json=as_json):
        flags = {"data_dir": data_dir, "host": host, "port": port, "port_file": port_file}
        settings = ServerSettings.from_sources(os.environ, None, flags)
        try:
            run(settings, source=source, follow_interval_s=interval, started=show)
        except OSError as error:
            raise Io(f"cannot go on: {error}", error.errno) from error


def promote_command(
    data_dir: NewDir,
    source: From,
    address: Annotated[str, typer.Option(help="Where clients will find the new primary.")] = "",
    as_json: AsJson = False,
) -> None:
    """Take over from a primary: fence it off, and fill the directory with all that it has shipped.

    A primary with TOPICS_ACK=shipped has acknowledged nothing that is not restored here. Of any other one
    the last records may be missing: readers get a tombstone in their place. Stop the standby first;
    afterwards start `everlog serve` on the directory.
    """
    with reporting(as_json=as_json):
        store = open_store(source)
        found = read_manifest(store)
        acks_shipped = found is not None and found[0].acks_shipped
        restorer = Restorer(store, data_dir, OsFs())
        restorer.check()  # before the primary is fenced off
        mine = take_epoch(store, address, acks_shipped=acks_shipped)
        fence(store, mine, SystemClock())
        restored = restorer.restore(has_losses=not acks_shipped)
        note_owners(OsFs(), data_dir, [mine.owner])
        errors = _verified(data_dir)
        _print_restored(data_dir, restored, errors, as_json)
    if errors:
        raise typer.Exit(1)
