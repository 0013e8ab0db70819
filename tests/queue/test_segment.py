"""Files of segments: what an interrupted writer left is removed, whatever else happens to it."""

from __future__ import annotations

import os
from pathlib import Path

from everlog.fs import OsFs
from everlog.queue.segment import remove_leftovers


def test_a_leftover_that_is_renamed_while_leftovers_are_removed_is_no_error(tmp_path: Path) -> None:
    class RenamingFs(OsFs):
        def unlink(self, path: str) -> None:
            os.rename(path, path.removesuffix(".tmp"))
            super().unlink(path)

    (tmp_path / "000000001.q.tmp").touch()
    remove_leftovers(RenamingFs(), str(tmp_path))
    assert os.listdir(tmp_path) == ["000000001.q"]
