"""The command `everlog verify`: every checksum of a stopped topics data directory.

Owns what it prints and the shape of its JSON; the looking itself is done by `everlog.topics.storage.verify`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress as ProgressBar

from everlog.cli import output
from everlog.cli.options import AsJson
from everlog.cli.output import Table, human_bytes, printable, reporting
from everlog.fs import OsFs
from everlog.topics.storage.verify import Finding, Progress, Verification, verify

FINDINGS_EXIT_CODE = 1

DataDir = Annotated[
    str,
    typer.Argument(metavar="DIR", help="Data directory of the stopped topics engine.", show_default=False),
]
ColdDir = Annotated[
    str | None,
    typer.Option("--cold", metavar="DIR", help="Cold directory that belongs to it, if it has one."),
]


def verify_command(data_dir: DataDir, cold: ColdDir = None, as_json: AsJson = False) -> None:
    """Check every record, index entry and snapshot of a topics data directory. Changes nothing.

    Exit code 1 if anything is wrong. Notes (torn tails, leftovers) are what a crash leaves and the next
    start repairs; they do not count as wrong.
    """
    with reporting(as_json=as_json):
        with _shown_progress(as_json=as_json) as show:
            result = verify(data_dir, OsFs(), cold, show)
        if as_json:
            output.print_json(_document(data_dir, cold, result))
        else:
            _print_result(data_dir, result)
    if result.errors:
        raise typer.Exit(FINDINGS_EXIT_CODE)


@contextmanager
def _shown_progress(*, as_json: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A bar on standard error while a person looks; it is gone when the result is printed."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    with ProgressBar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("checking", total=None)

        def show(progress: Progress) -> None:
            bar.update(task, total=progress.files_total, completed=progress.files_done)

        yield show


def _print_result(data_dir: str, result: Verification) -> None:
    errors = len(result.errors)
    output.print_fields(
        [
            ("directory", printable(data_dir)),
            ("files", f"{result.files} with {human_bytes(result.bytes)}"),
            ("log frames", str(result.log_frames)),
            ("stored records", str(result.records)),
            ("errors", str(errors) if errors else "none"),
            ("notes", str(len(result.findings) - errors)),
        ]
    )
    if result.findings:
        columns = ("severity", "kind", "file", "offset>", "what it is and what to do")
        output.print_table(Table("findings", columns, [_row(finding) for finding in result.findings]))


def _severity(finding: Finding) -> str:
    return "info" if finding.is_note else "error"


def _row(finding: Finding) -> tuple[str, ...]:
    return (
        _severity(finding),
        finding.kind,
        printable(finding.path),
        str(finding.offset),
        output.one_line(finding.message),
    )


def _document(data_dir: str, cold: str | None, result: Verification) -> dict[str, Any]:
    return {
        "directory": data_dir,
        "cold_directory": cold,
        "files": result.files,
        "bytes": result.bytes,
        "log_frames": result.log_frames,
        "records": result.records,
        "errors": len(result.errors),
        "findings": [
            {
                "severity": _severity(finding),
                "kind": finding.kind,
                "path": finding.path,
                "offset": finding.offset,
                "message": finding.message,
            }
            for finding in result.findings
        ],
    }
