"""Fuzzing with seeds: damaged copies of valid samples, one after the other, for a bounded time.

A case follows from FUZZ_SEED and its number alone, and a failure names both. FUZZ_SECONDS is the time for
each test, FUZZ_CASE runs a single case. A process that ends inside native code cannot name its case; FUZZ_LOG
is a folder with a file for each test that holds the case it is at.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_intdigest

from everlog.topics.storage import layout
from tests.support.counted import FUZZ_CASES, counts

SECONDS: Final = float(os.environ.get("FUZZ_SECONDS", "1"))
SEED: Final = int(os.environ.get("FUZZ_SEED", "7"))
CASE: Final = os.environ.get("FUZZ_CASE")
LOG: Final = os.environ.get("FUZZ_LOG")
INSERTED_REPEATS_MAX: Final = 2_000
# A frame with a seq far above its neighbours stands for millions of holes, each with an entry in memory.
SEALED_SEQ_MAX: Final = 4_000
BOUNDARIES: Final = (0, 1, 2, 3, 4, 7, 8, 15, 16, 63, 64, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31)
LARGEST: Final = (2**32 - 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)


def fuzz(check: Callable[[random.Random], None]) -> None:
    """Call `check` with the random numbers of one case after the other until the time is over."""
    end_s = time.monotonic() + SECONDS
    for number in itertools.count(int(CASE or 0)):
        if LOG is not None:
            Path(LOG, check.__module__).write_text(
                f"{check.__qualname__} FUZZ_SEED={SEED} FUZZ_CASE={number}\n"
            )
        try:
            check(random.Random(f"{SEED} {number}"))
        except BaseException as error:
            error.add_note(f"reproduce with FUZZ_SEED={SEED} FUZZ_CASE={number}")
            raise
        counts[FUZZ_CASES] += 1
        if CASE is not None or time.monotonic() >= end_s:
            break


def mutated(
    rng: random.Random, samples: Sequence[bytes], pieces: Sequence[bytes] = (b"\0", b"\xff")
) -> bytes:
    """A sample with damage in one or more places: cut, flipped, spliced, repeated, another number."""
    data = bytearray(rng.choice(samples))
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(data) + 1)
        kind = rng.randrange(8)
        if kind == 0:
            del data[place:]
        elif kind == 1 and place < len(data):
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data[place:place] = rng.choice(pieces)
        elif kind == 3:
            del data[place : place + rng.randrange(1, 40)]
        elif kind == 4:
            other = rng.choice(samples)
            data[place:] = other[rng.randrange(len(other) + 1) :]
        elif kind == 5:
            data[place:place] = rng.randbytes(rng.randrange(1, 40))
        elif kind == 6:
            data[place:place] = rng.choice(pieces) * rng.randrange(1, INSERTED_REPEATS_MAX)
        else:
            width = rng.choice((1, 2, 4, 8))
            value = rng.choice((*BOUNDARIES, *LARGEST, len(data), len(data) - place))
            data[place : place + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
    return bytes(data)


def resealed_log(content: bytes, start: int = 0) -> bytes:
    """Log frames with checksums that match again, up to the first one whose length cannot be."""
    return _resealed(content, start, layout.LOG_HEADER_SIZE, layout.LOG_TRAILER_SIZE, layout.LOG_SEQ)


def resealed_segment(content: bytes) -> bytes:
    """Segment frames with checksums that match again, up to the first one whose length cannot be."""
    sizes = layout.SEGMENT_HEADER_SIZE, layout.SEGMENT_TRAILER_SIZE, layout.SEGMENT_SEQ
    return _resealed(content, 0, *sizes)


def _resealed(content: bytes, start: int, header_size: int, trailer_size: int, seq_at: int) -> bytes:
    data = bytearray(content)
    at = start
    while at + header_size + trailer_size <= len(data):
        size = int.from_bytes(data[at : at + 4], "little") + 4
        if not header_size + trailer_size <= size <= len(data) - at:
            break
        end = at + size - trailer_size
        if int.from_bytes(data[at + seq_at : at + seq_at + 8], "little") <= SEALED_SEQ_MAX:
            data[end : end + 8] = layout.CHECKSUM.pack(xxh3_64_intdigest(bytes(data[at + 4 : end])))
        at += size
    return bytes(data)
