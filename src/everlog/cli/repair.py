"""The commands `everlog repair` and `everlog status`: what is damaged, and going on without it.

Owns their output. What is saved and what is given up is decided by the recovery of the engine.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
import typer

from everlog.api_types import StorageHealth
from everlog.cli import output
from everlog.cli.options import AsJson
from everlog.cli.output import Table, printable, reporting
from everlog.cli.session import Key, Url
from everlog.cli.verify import FINDINGS_EXIT_CODE, ColdDir, DataDir
from everlog.client.retrying import ONCE
from everlog.client.sync_client import Client
from everlog.client.wire import DEFAULT_URL
from everlog.errors import Io
from everlog.topics import Engine, EngineSettings
from everlog.topics.storage.store import RecoveryReport

AcceptLoss = Annotated[
    bool,
    typer.Option("--accept-loss", help="Give up what cannot be read; readers get a tombstone for it."),
]


def repair_command(
    data_dir: DataDir, cold: ColdDir = None, accept_loss: AcceptLoss = False, as_json: AsJson = False
) -> None:
    """Repair a stopped topics data directory: rebuild indexes, and with --accept-loss give up lost records.

    A damaged log file is copied beside itself before it is changed. Exit code 1 if records would have to be
    given up and --accept-loss is missing; nothing is changed then. Check the result with `everlog verify`.
    """
    with reporting(as_json=as_json):
        if not os.path.isdir(data_dir):
            raise Io(f"there is no data directory {data_dir}; check the path")
        settings = EngineSettings(cold_dir=cold, on_damage="give_up" if accept_loss else "refuse")
        with Engine.open(data_dir, settings) as engine:
            report = engine.recovery
            assert report is not None
        if as_json:
            output.print_json({"directory": data_dir, **msgspec.to_builtins(report)})
        else:
            _print_report(data_dir, report)


def _print_report(data_dir: str, report: RecoveryReport) -> None:
    output.print_fields(
        [
            ("directory", printable(data_dir)),
            ("topics", str(report.topics)),
            ("damage", str(len(report.damage)) if report.damage else "none"),
            ("acknowledged records", "some may be lost" if report.may_lack_acked else "none is lost"),
        ]
    )
    if report.damage:
        rows = [
            (found.kind, printable(found.path), output.one_line(found.message)) for found in report.damage
        ]
        output.print_table(Table("damage", ("kind", "file", "what it is"), rows))


def status_command(url: Url = DEFAULT_URL, key: Key = None, as_json: AsJson = False) -> None:
    """Show how a running server is: its storage, what failed, and what the last start found damaged.

    Exit code 1 unless everything is fine.
    """
    with reporting(as_json=as_json), Client(url, key, retry=ONCE) as client:
        health = client.health()
        storage = health.storage or StorageHealth()
        if as_json:
            output.print_json({**msgspec.to_builtins(health), "storage": msgspec.to_builtins(storage)})
        else:
            output.print_fields(
                _status_fields(str(client.address), health.version, msgspec.to_builtins(storage))
            )
    if storage.status != "ok":
        raise typer.Exit(FINDINGS_EXIT_CODE)


def _status_fields(address: str, version: str, storage: dict[str, Any]) -> list[tuple[str, str]]:
    fields = [
        ("server", f"{printable(address)}, version {printable(version)}"),
        ("storage", storage["status"]),
    ]
    for name in ("closed_shards", "failing", "errors", "damage"):
        values = ", ".join(f"{printable(kind)} {value}" for kind, value in sorted(storage[name].items()))
        fields.append((name.replace("_", " "), values or "none"))
    lost = "some may be lost" if storage["may_lack_acked"] else "none is lost"
    return [*fields, ("damaged topics", str(storage["damaged_topics"])), ("acknowledged records", lost)]
