"""What the bus tests share: a bus in a temporary directory, and processes that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everlog.bus import IpcLayout
from tests.support.command_lines import Holder

Spawn = Callable[..., Holder]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start processes; what a test has not ended is killed after it."""
    holders: list[Holder] = []

    def start(code: str, *arguments: object) -> Holder:
        holders.append(Holder(code, *map(str, arguments)))
        return holders[-1]

    yield start
    for holder in holders:
        holder.kill()
        for pipe in (holder.process.stdin, holder.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def layout(tmp_path: Path) -> IpcLayout:
    """A bus whose root exists and is empty."""
    root = tmp_path / "bus"
    root.mkdir()
    return IpcLayout(root)
