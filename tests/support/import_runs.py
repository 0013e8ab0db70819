"""Importing in tests: run an importer or a whole import, and look at what came out."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import py7zr
import pytest
from numpy.typing import NDArray

from everlog.market.importing import FORMATS, ImportRequest, ImportResult, ImportRun
from everlog.market.packing import PackedRecords
from everlog.market.protocol import (
    BOOK_EVENT_HEADER,
    L2_DIFF,
    L2_SNAPSHOT,
    L3_RECORD,
    LEVEL,
    BookEventType,
    TypeId,
)
from everlog.market.venues.archives import open_members
from everlog.market.venues.interface import EventBlock, ImportContext, ImportOptions, Rejects, Tally
from everlog.queue import Message, Queue
from everlog.queue.config import WriterConfig

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL_SEGMENT = 1 << 20


def real_file(name: str) -> Path:
    """A file of real market data, or a skip that says where it was looked for."""
    folder = Path(os.environ.get("EVERLOG_TEST_DATA", ROOT / ".." / "shared" / "data"))
    path = folder / name
    if not path.exists():
        pytest.skip(f"no real market data: {path} is absent (set EVERLOG_TEST_DATA)")
    return path


class Outcome(NamedTuple):
    """What an importer yielded, and its tally."""

    blocks: list[EventBlock]
    tally: Tally


def run_importer(
    format_name: str,
    paths: Sequence[Path],
    options: ImportOptions | None = None,
    quarantine: Path | None = None,
) -> Outcome:
    """Run one importer over files without a queue."""
    tally = Tally()
    rejects = Rejects(str(quarantine) if quarantine else None, tally)
    context = ImportContext(options or ImportOptions(), tally, rejects)
    members, opened = [], []
    for path in paths:
        opened.append(open_members(str(path)))
        members += opened[-1].__enter__()
    try:
        blocks = list(FORMATS[format_name].events(members, context))
    finally:
        for manager in opened:
            manager.__exit__(None, None, None)
        rejects.close()
    for block in blocks:
        tally.count(block)
    return Outcome(blocks, tally)


def import_into(queue: Path, format_name: str, *paths: Path, **settings: Any) -> list[ImportResult]:
    """Run a whole import into a queue with small segments."""
    request = ImportRequest(
        format=format_name,
        paths=[str(path) for path in paths],
        queue=str(queue),
        segment_size=SMALL_SEGMENT,
        **settings,
    )
    return ImportRun(request).run()


def messages_of(queue: Path) -> list[Message]:
    """Every message of a queue."""
    with Queue.open_subscriber(queue, None, "earliest") as reader:
        return reader.drain_available(1 << 30)


def payloads_of(block: EventBlock) -> Iterator[bytes]:
    """The payloads of a block, one by one, in the order in which they are appended."""
    data = np.ascontiguousarray(block.payloads).view(np.uint8).tobytes()
    if block.ends is None:
        size = block.payloads.dtype.itemsize
        yield from (data[at : at + size] for at in range(0, len(data), size))
        return
    starts = block.starts if block.starts is not None else np.concatenate(([0], block.ends[:-1]))
    for start, end in zip(starts.tolist(), block.ends.tolist(), strict=True):
        yield data[int(start) : int(end)]


def packed(payloads: Sequence[bytes]) -> PackedRecords:
    """Payloads as the books take them."""
    lengths = np.array([len(payload) for payload in payloads], dtype=np.uint64)
    buffer = np.frombuffer(b"".join(payloads), dtype=np.uint8)
    return PackedRecords(buffer, np.cumsum(lengths) - lengths, lengths)


def l3_records_of(blocks: Sequence[EventBlock]) -> NDArray[np.void]:
    """All order-by-order payloads of the blocks."""
    payloads = [payload for block in blocks for payload in payloads_of(block)]
    return np.frombuffer(b"".join(payloads), dtype=L3_RECORD)


class L2Event(NamedTuple):
    """An L2 payload taken apart."""

    header: Any
    body: Any
    bids: list[tuple[int, int]]
    asks: list[tuple[int, int]]


def l2_event(payload: bytes) -> L2Event:
    """Take an L2 payload apart by the layouts alone."""
    header = np.frombuffer(payload, BOOK_EVENT_HEADER, 1)[0]
    layout = L2_SNAPSHOT if header["event_type"] == BookEventType.SNAPSHOT else L2_DIFF
    body = np.frombuffer(payload, layout, 1, 64)[0]
    levels = np.frombuffer(payload, LEVEL, -1, 64 + layout.itemsize).tolist()
    assert header["record_len"] == len(payload)
    assert len(levels) == int(body["bid_count"]) + int(body["ask_count"])
    return L2Event(header, body, levels[: int(body["bid_count"])], levels[int(body["bid_count"]) :])


def l2_events_of(blocks: Sequence[EventBlock]) -> list[L2Event]:
    """All L2 events of the blocks."""
    return [
        l2_event(payload)
        for block in blocks
        for payload in payloads_of(block)
        if isinstance(block.type_id, int) and block.type_id == TypeId.BOOK_EVENT
    ]


def small_archive() -> WriterConfig:
    """Settings of a writer with small segments."""
    return WriterConfig.archive().replace(segment_size=SMALL_SEGMENT)


def write_archive(path: Path, files: Sequence[Path]) -> None:
    """Pack files without their folders; the suffix says how."""
    if path.suffix == ".7z":
        with py7zr.SevenZipFile(path, "w") as archive:
            for file in files:
                archive.write(file, file.name)
        return
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive_of_zip:
        for file in files:
            archive_of_zip.write(file, file.name)
