"""What the tests of the topics storage share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.topics.storage.wal_samples import LogBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[LogBench]:
    """A log shard on small files that can fail."""
    bench = LogBench(tmp_path)
    yield bench
    bench.shard.abandon()
