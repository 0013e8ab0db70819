"""Damaged queue directories: readers, the writer and the doctor go on or refuse with an error of ours."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from everlog.clock import SystemClock
from everlog.errors import EverlogError
from everlog.queue.doctor import examine
from tests.support.files import UnsyncedFs
from tests.support.fuzzing import fuzz, mutated
from tests.support.queues import open_reader, open_writer

SEGMENT_SIZES = (1024, 16384)  # below and above a page
MESSAGES = 60
STARTS = ("earliest", "latest", "resume-strict", "resume-snapshot", "resume-latest")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Queues of several segments with a reader in the middle; one writer was closed, one was not."""
    folders = [tmp_path_factory.mktemp("samples") / str(size) for size in SEGMENT_SIZES]
    for folder, segment_size in zip(folders, SEGMENT_SIZES, strict=True):
        with open_writer(folder, segment_size=segment_size, retention=False) as writer:
            for number in range(MESSAGES):
                writer.append(1 + number % 3, b"m" * (number * 7 % 200), 1_000 + number)
            writer.append_array(4, np.arange(10, dtype="<u8"), np.arange(10, dtype="<u8") + 2_000)
            if segment_size == SEGMENT_SIZES[0]:
                # A segment that is being prepared may get its name meanwhile.
                shutil.copytree(folder, folder.with_suffix(".open"), ignore=shutil.ignore_patterns("*.tmp"))
        with open_reader(folder, "alpha", "earliest") as reader:
            reader.drain_available(MESSAGES // 2)
            reader.commit()
    return [*folders, folders[0].with_suffix(".open")]


def read_somehow(path: Path, rng: random.Random) -> None:
    """Read with one of the ways in which messages are read, past damaged ones."""
    name = rng.choice(("alpha", None))
    with open_reader(path, name, rng.choice(STARTS) if name else "earliest") as reader:
        for _ in range(3):
            try:
                way = rng.randrange(4)
                if way == 0:
                    reader.drain_available(1000)
                elif way == 1:
                    batch = reader.read_batch(100, verify=rng.random() < 0.5)
                    b"".join(bytes(view) for view in batch.payloads)
                elif way == 2:
                    reader.seek_seq(rng.choice((0, 5, MESSAGES, 2**63)))
                else:
                    reader.seek_timestamp(rng.choice((0, 1_005, 2**63)))
            except EverlogError:
                with suppress(EverlogError):
                    reader.skip_corrupt()
        if name:
            reader.commit()


def test_a_damaged_queue_is_read_or_refused(samples: list[Path], tmp_path: Path) -> None:
    for number in range(20):
        shutil.copytree(samples[0], tmp_path / str(number))
        read_somehow(tmp_path / str(number), random.Random(number))

    def check(rng: random.Random) -> None:
        path = tmp_path / "queue"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(rng.choice(samples), path)
        files = sorted(file for file in path.rglob("*") if file.is_file())
        for _ in range(rng.choice((1, 1, 2))):
            file = rng.choice(files)
            content = mutated(rng, [file.read_bytes()])
            # A writer never changes the length of a segment, so most damage does not either.
            length = file.stat().st_size
            file.write_bytes(content[:length].ljust(length, b"\0") if rng.random() < 0.7 else content)
        for _ in range(2):
            with suppress(EverlogError):
                read_somehow(path, rng)
        with suppress(EverlogError):
            examine(UnsyncedFs(), SystemClock(), str(path))
        with suppress(EverlogError), open_writer(path, retention=False) as writer:
            writer.append(1, b"after the damage", 3_000)
            read_somehow(path, rng)

    fuzz(check)
