"""The commands of `everlog archive`: fill an archive from live queues, keep it small, check it, read it.

Owns what they print, their JSON and what signals do; the work is done by `everlog.archive`.

    exit 0  done, or stopped by a signal
    exit 1  an error, or something failed or is damaged (verify, compress, move, restore)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any, Final

import typer
from rich.progress import DownloadColumn, TransferSpeedColumn

from everlog.archive import layout, policies
from everlog.archive.metadata import load_meta
from everlog.archive.policies import Immediate, Never, as_everlog_error, compress_due, due_segments
from everlog.archive.raw_archiver import POLL_S, RawArchiver
from everlog.archive.raw_archiver import READER as RAW_READER
from everlog.archive.reader import archive_segments, open_archive
from everlog.archive.remote import RemoteTier, is_url, remote_name
from everlog.archive.tap import READER as TAP_READER
from everlog.archive.tap import ArchiveTap
from everlog.archive.tiers import (
    ArchivedSegment,
    Tier,
    changing,
    decompress_segment,
    find_directories,
    list_segments,
)
from everlog.archive.verification import verify_segments
from everlog.archive.zstd_blocks import BLOCK_BYTES, LEVEL
from everlog.cli import output
from everlog.cli.options import AsJson, DryRun, Limit
from everlog.cli.output import (
    Table,
    counted,
    group,
    human_bytes,
    printable,
    reporting,
    stopped_by_signals,
)
from everlog.cli.queue import render_hex, render_json
from everlog.clock import SystemClock
from everlog.errors import EverlogError, InvalidConfig
from everlog.fs import OsFs
from everlog.objects import open_store
from everlog.queue import Queue
from everlog.queue.faults import io_errors

app = group(
    "Keep the history of queues: fill, compress, move, check and read an archive.",
    "everlog archive ls ./archive",
)

WAIT_S: Final = 0.2

Root = Annotated[
    str,
    typer.Argument(
        metavar="ROOT",
        help="Root of the archive, or a directory in it. ls, verify and cat take s3://... as well.",
        show_default=False,
    ),
]
Live = Annotated[str, typer.Argument(metavar="LIVE", help="Directory of the live queue.", show_default=False)]
Once = Annotated[bool, typer.Option("--once", help="Stop at the end of what is there now.")]
PolicyText = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="POLICY",
        help="never, immediate, age:DAYS, idle:DAYS (since the last recorded read) or size:BYTES (64m).",
    ),
]
Block = Annotated[int, typer.Option("--block-size", min=4096, help="Bytes of a segment in one zstd frame.")]
Level = Annotated[int, typer.Option("--level", min=1, max=19, help="Level of zstd.")]
Cache = Annotated[
    str | None,
    typer.Option(
        "--cache", metavar="DIR", help="Where to keep up to 1 GiB of what is fetched from an object store."
    ),
]
Venue = Annotated[str | None, typer.Option("--venue", help="Only this venue.")]
Symbol = Annotated[str | None, typer.Option("--symbol", help="Only this symbol, as it is in the path.")]
Stream = Annotated[str | None, typer.Option("--stream", help="Only this stream, such as book or trades.")]
Dates = Annotated[
    str | None,
    typer.Option("--dates", metavar="DAY|FIRST..LAST", help="Only these days; FIRST and LAST are included."),
]


def _progress(
    what: str, total: int | None, *, as_json: bool
) -> AbstractContextManager[Callable[[int], None]]:
    """Return a bar of bytes."""
    return output.progress(what, total, DownloadColumn(True), TransferSpeedColumn(), as_json=as_json)


def _directories(root: str, remote: RemoteTier | None = None) -> list[str]:
    fs = OsFs()
    if is_url(root):
        if remote is None:
            raise InvalidConfig(
                f"{root} is in an object store; change the archive with the stubs that name it"
            )
        return remote.directories(root)
    if not fs.exists(root):
        raise InvalidConfig(f"there is no archive at {root}; check the path")
    with io_errors(f"look into {root}"):
        return find_directories(fs, root)


def _print_failures(failed: dict[str, EverlogError], *, as_json: bool) -> None:
    for path, error in failed.items():
        output.print_problem("error", error.code, f"{path}: {error}", as_json=as_json)


# -- tap and run ------------------------------------------------------------------------------


@app.command(
    "tap", epilog="Example: everlog archive tap /dev/shm/bus/streams/raw/binance/queue ./archive/binance"
)
def tap_command(
    live: Live,
    archive: Annotated[
        str, typer.Argument(metavar="QUEUE", help="Directory of the archive queue.", show_default=False)
    ],
    once: Once = False,
    reader: Annotated[str, typer.Option("--reader", help="Name on the live queue.")] = TAP_READER,
    as_json: AsJson = False,
) -> None:
    """Copy a live queue to an archive queue, every message once and in order, until stopped.

    Killed anywhere and started again, it goes on with the next message.
    """
    with (
        reporting(as_json=as_json),
        stopped_by_signals() as stopped,
        ArchiveTap(live, archive, reader=reader) as tap,
    ):
        with _progress("copying", None, as_json=as_json) as advance:
            while not stopped.is_set():
                before = tap.bytes_copied
                if tap.run_once():
                    advance(tap.bytes_copied - before)
                elif once:
                    break
                else:
                    tap.reader.wait(WAIT_S)
        tap.close()
        document = {"live": live, "archive": archive, "messages": tap.copied, "bytes": tap.bytes_copied}
        text = f"copied {counted(tap.copied, 'message')} to {printable(archive)}"
        output.print_result(document, text, as_json=as_json)


@app.command(
    "run",
    epilog="Example: everlog archive run /dev/shm/bus/streams/raw/binance/queue ./archive --venue binance",
)
def run_command(
    live: Live,
    root: Annotated[str, typer.Argument(metavar="ROOT", help="Root of the archive.", show_default=False)],
    venue: Annotated[str, typer.Option("--venue", help="Name of the venue in the archive's paths.")],
    once: Once = False,
    compress: Annotated[
        bool, typer.Option("--compress/--plain", help="Compress each segment at once.")
    ] = True,
    seal: Annotated[
        bool, typer.Option("--seal", help="Seal the last segment first, of a queue without a writer.")
    ] = False,
    reader: Annotated[str, typer.Option("--reader", help="Name on the live queue.")] = RAW_READER,
    poll_s: Annotated[float, typer.Option("--poll", min=0.01, help="Seconds between two looks.")] = POLL_S,
    as_json: AsJson = False,
) -> None:
    """Archive the sealed segments of a live queue until stopped; its retention waits for this reader."""
    policy = Immediate() if compress else Never()
    archived = 0
    with (
        reporting(as_json=as_json),
        stopped_by_signals() as stopped,
        RawArchiver(live, root, venue, reader=reader, policy=policy) as archiver,
    ):
        if seal:
            with Queue.open_publisher(live, retention=False) as writer:
                writer.roll()
        with _progress("archiving", None, as_json=as_json) as advance:
            while not stopped.is_set():
                archived += len(archiver.run_once(advance))
                if once or stopped.wait(poll_s):
                    break
        document = {"live": live, "root": root, "venue": venue, "segments": archived}
        text = f"archived {counted(archived, 'segment')} of {printable(live)}"
        output.print_result(document, text, as_json=as_json)


# -- ls -----------------------------------------------------------------------------------------


@app.command("ls", epilog="Example: everlog archive ls ./archive")
def ls_command(root: Root, as_json: AsJson = False) -> None:
    """List the directories of an archive: segments in each tier, bytes here and in object stores, times."""
    with reporting(as_json=as_json):
        remote = RemoteTier(OsFs())
        rows = [_listed(directory, remote) for directory in _directories(root, remote)]
        if as_json:
            output.print_json({"root": root, "directories": rows})
        elif rows:
            columns = ("directory", "plain>", "compressed>", "remote>", "here>", "in stores>", "last message")
            cells = [_row(root, row) for row in rows]
            output.print_table(Table(f"archive {printable(root)}", columns, cells))
        else:
            print(f"no segments under {printable(root)}")


def _listed(directory: str, remote: RemoteTier) -> dict[str, Any]:
    fs = OsFs()
    segments = archive_segments(fs, directory, remote)
    key = layout.parse_directory(directory)
    meta = None if is_url(directory) else load_meta(fs, directory)
    return {
        "directory": directory,
        "venue": key.venue if key else None,
        "symbol": key.symbol if key else None,
        "date": key.date if key else None,
        "stream": key.stream if key else None,
        **{str(tier): sum(segment.tier is tier for segment in segments) for tier in Tier},
        "local_bytes": sum(_size(segment) for segment in segments if segment.tier is not Tier.REMOTE),
        "remote_bytes": sum(remote.size(segment) for segment in segments if segment.tier is Tier.REMOTE),
        "event_time_range": meta.event_time_range if meta else None,
        "completeness": meta.completeness if meta else None,
    }


def _row(root: str, row: dict[str, Any]) -> tuple[str, ...]:
    times = row["event_time_range"]
    return (
        printable(row["directory"].removeprefix(root.rstrip("/")).strip("/") or "."),
        *(str(row[str(tier)] or "") for tier in Tier),
        human_bytes(row["local_bytes"]),
        human_bytes(row["remote_bytes"]) if row["remote_bytes"] else "",
        layout.day_of(times[1]) if times else "",
    )


def _size(segment: ArchivedSegment, remote: RemoteTier | None = None) -> int:
    if segment.tier is Tier.REMOTE:
        return (remote or RemoteTier(OsFs())).size(segment)
    return os.stat(segment.path).st_size


# -- compress, move, restore --------------------------------------------------------------------


@app.command("compress", epilog="Example: everlog archive compress ./archive --policy age:1")
def compress_command(
    root: Root,
    policy: PolicyText = "immediate",
    block_size: Block = BLOCK_BYTES,
    level: Level = LEVEL,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Compress the plain segments that a policy names; each is checked whole before its source is removed."""
    failed: dict[str, EverlogError] = {}
    with reporting(as_json=as_json):
        chosen, fs, now_ns = policies.parse_policy(policy), OsFs(), SystemClock().wall_ns()
        directories = _directories(root)
        due = [one for directory in directories for one in due_segments(fs, directory, chosen, now_ns)]
        total = sum(_size(segment) for segment in due)
        if dry_run:
            _print_plan("compress", due, as_json=as_json)
            return
        with _progress("compressing", total, as_json=as_json) as advance:
            report = compress_due(
                fs, directories, chosen, now_ns, block_size=block_size, level=level, advance=advance
            )
        failed = report.failed
        document = {
            "compressed": [segment.path for segment in report.done],
            "bytes_before": report.bytes_before,
            "bytes_after": report.bytes_after,
            "failed": {path: error.code for path, error in failed.items()},
        }
        sizes = f"{human_bytes(report.bytes_before)} to {human_bytes(report.bytes_after)}"
        text = f"compressed {counted(len(report.done), 'segment')}: {sizes}"
        output.print_result(document, text, as_json=as_json)
        _print_failures(failed, as_json=as_json)
    if failed:
        raise typer.Exit(1)


def _print_plan(verb: str, segments: list[ArchivedSegment], *, as_json: bool) -> None:
    if as_json:
        output.print_json({f"would_{verb}": [segment.path for segment in segments]})
        return
    for segment in segments:
        print(f"would {verb} {printable(segment.path)} ({human_bytes(_size(segment))})")
    print(f"would {verb} {counted(len(segments), 'segment')}; nothing was changed")


@app.command(
    "move", epilog="Example: everlog archive move ./archive --to s3://bucket/history --policy age:30"
)
def move_command(
    root: Root,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="s3://, gs://, az:// or file:///directory.")],
    policy: PolicyText = "immediate",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Move segments to an object store and leave stubs; plain ones are compressed first.

    The local files go when both objects are there with their full size and the stub is on disk.
    """
    fs = OsFs()
    with reporting(as_json=as_json):
        chosen, now_ns = policies.parse_policy(policy), SystemClock().wall_ns()
        open_store(to)  # a wrong address is refused before anything is compressed
        due = [
            one
            for directory in _directories(root)
            for one in due_segments(fs, directory, chosen, now_ns, (Tier.PLAIN, Tier.COMPRESSED))
        ]
        if dry_run:
            _print_plan("move", due, as_json=as_json)
            return
        tier = RemoteTier(fs)

        def move(segment: ArchivedSegment) -> int:
            name = remote_name(root, segment.directory)
            return tier.move(segment.directory, segment.segment_id, to, name).size_bytes

        failed = _each("move", due, move, as_json=as_json)
    if failed:
        raise typer.Exit(1)


@app.command(
    "restore", epilog="Example: everlog archive restore ./archive/v1/binance/btc-usdt/2026-11-18/book --plain"
)
def restore_command(
    root: Root,
    plain: Annotated[bool, typer.Option("--plain", help="Decompress as well.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Bring remote segments back, checked against their stubs; the objects stay."""
    fs = OsFs()
    wanted = (Tier.REMOTE, Tier.COMPRESSED) if plain else (Tier.REMOTE,)
    with reporting(as_json=as_json):
        due = [
            one
            for directory in _directories(root)
            for one in list_segments(fs, directory)
            if one.tier in wanted
        ]
        if dry_run:
            _print_plan("restore", due, as_json=as_json)
            return
        tier = RemoteTier(fs)

        def restore(segment: ArchivedSegment) -> int:
            size = 0
            if segment.tier is Tier.REMOTE:
                size = tier.restore(segment.directory, segment.segment_id)
            return decompress_segment(fs, segment.directory, segment.segment_id) if plain else size

        failed = _each("restore", due, restore, as_json=as_json)
    if failed:
        raise typer.Exit(1)


def _each(
    verb: str, segments: list[ArchivedSegment], change: Callable[[ArchivedSegment], int], *, as_json: bool
) -> dict[str, EverlogError]:
    """Change segments one by one, go on behind a failure, print what was done; return the failures."""
    failed: dict[str, EverlogError] = {}
    done, size = [], 0
    with _progress(f"{verb}", sum(_size(one) for one in segments), as_json=as_json) as advance:
        for segment in segments:
            before = _size(segment)
            try:
                with changing(OsFs(), segment.directory):
                    size += change(segment)
                done.append(segment)
            except (EverlogError, OSError) as error:
                failed[segment.path] = as_everlog_error(error, f"{verb} {segment.path}")
            advance(before)
    past = {"move": "moved", "restore": "restored"}[verb]
    codes = {path: error.code for path, error in failed.items()}
    document = {past: [segment.path for segment in done], "bytes": size, "failed": codes}
    text = f"{past} {counted(len(done), 'segment')}, {human_bytes(size)}"
    output.print_result(document, text, as_json=as_json)
    _print_failures(failed, as_json=as_json)
    return failed


# -- verify and cat -----------------------------------------------------------------------------


@app.command("verify", epilog="Example: everlog archive verify ./archive")
def verify_command(
    root: Root,
    remote: Annotated[bool, typer.Option("--remote", help="Read segments in object stores as well.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read everything: every block, record and seq, with --remote also the SHA-256 of every object.

    Exit code 1 if anything is wrong. Changes nothing.
    """
    fs = OsFs()
    with reporting(as_json=as_json):
        tier = RemoteTier(fs)
        directories = _directories(root, tier)
        segments = [one for directory in directories for one in archive_segments(fs, directory, tier)]
        reads_stores = remote or is_url(root)
        with _progress("checking", sum(_size(one, tier) for one in segments), as_json=as_json) as advance:
            result = verify_segments(
                fs, segments, tier if reads_stores else None, lambda segment: advance(_size(segment, tier))
            )
        if as_json:
            problems = {
                path: {"code": error.code, "message": str(error)} for path, error in result.failed.items()
            }
            counts = {"segments": result.segments, "messages": result.messages, "skipped": result.skipped}
            output.print_json({"root": root, **counts, "failed": problems})
        else:
            notes = f", {result.skipped} in object stores not read (--remote)" if result.skipped else ""
            seen = f"{counted(result.segments, 'segment')}, {counted(result.messages, 'message')}"
            print(f"checked {seen}{notes}")
            _print_failures(result.failed, as_json=False)
    if result.failed:
        raise typer.Exit(1)


@app.command(
    "cat", epilog="Example: everlog archive cat ./archive --symbol btc-usdt --stream trades --limit 10"
)
def cat_command(
    root: Root,
    venue: Venue = None,
    symbol: Symbol = None,
    stream: Stream = None,
    dates: Dates = None,
    from_seq: Annotated[
        int | None, typer.Option("--from-seq", min=0, help="Start at this seq, included.")
    ] = None,
    from_time: Annotated[
        int | None, typer.Option("--from-time", min=0, metavar="NS", help="Start at this time, included.")
    ] = None,
    limit: Limit = None,
    cache: Cache = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Print archived messages of one stream, whatever tier they are in, as `everlog queue tail` does."""
    render = render_json if as_json else render_hex
    first_date, between, last_date = (dates or "").partition("..")
    with reporting(as_json=as_json):
        reader = open_archive(
            root,
            venue=venue,
            symbol=symbol,
            stream=stream,
            first_date=first_date or None,
            last_date=(last_date if between else first_date) or None,
            tracks_access=True,
            remote=RemoteTier(OsFs(), cache_directory=cache),
        )
        with reader, stopped_by_signals() as stopped:
            if from_seq is not None:
                reader.seek_seq(from_seq)
            elif from_time is not None:
                reader.seek_time(from_time)
            left = limit
            while not stopped.is_set() and left != 0 and (view := reader.next()) is not None:
                if not output.write_patiently(render(view), stopped.is_set):
                    break
                left = None if left is None else left - 1


def _alias(*words: str) -> None:
    """Run one of these commands under a name of its own."""
    sys.argv[1:1] = ["archive", *words]
    from everlog.cli.main import main

    main()


def tap_main() -> None:
    """Run `archive-tap`."""
    _alias("tap")


def run_main() -> None:
    """Run `chronicle-raw-archiver`."""
    _alias("run")


def tier_main() -> None:
    """Run `chronicle-storage-tier`: compress, move or restore."""
    _alias()
