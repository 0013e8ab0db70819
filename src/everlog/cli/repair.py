"""The command `everlog repair`: what is damaged, and going on without it.

Owns its output. What is saved and what is given up is decided by the recovery of the engine.
"""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
import typer

from everlog.cli import output
from everlog.cli.options import AsJson
from everlog.cli.output import Table, printable, reporting
from everlog.cli.verify import ColdDir, DataDir
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
        is_url = cold is not None and "://" in cold
        settings = EngineSettings(
            cold_dir=None if is_url else cold,
            cold_url=cold if is_url else None,
            on_damage="give_up" if accept_loss else "refuse",
        )
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
