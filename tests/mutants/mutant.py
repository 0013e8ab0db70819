"""One planted fault: a text of the source that is replaced in a copy of the package.

Owns the copy and the replacement. The text must be there exactly once, so that a source that has changed
fails by the name of the mutant instead of planting nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, NamedTuple

SOURCE: Final = Path(__file__).resolve().parents[2] / "src"


class Mutant(NamedTuple):
    """A fault: `old` becomes `new` in `file` (below src/everlog); `check` is the one expected to notice."""

    name: str
    file: str
    old: str
    new: str
    breaks: str
    check: str


class DriftedMutant(AssertionError):
    """The source has changed, so that a mutant cannot be planted any more."""


def mutated(mutant: Mutant, source: Path = SOURCE) -> str:
    """The text of the file with the fault in it; raises `DriftedMutant` or `SyntaxError`."""
    path = source / "everlog" / mutant.file
    text = path.read_text(encoding="utf-8")
    found = text.count(mutant.old)
    if found != 1:
        raise DriftedMutant(
            f"mutant {mutant.name!r}: its text is {found} times in {path}, not once; change the mutant so "
            f"that it plants the same fault in the source of today:\n{mutant.old}"
        )
    changed = text.replace(mutant.old, mutant.new)
    compile(changed, str(path), "exec")
    return changed


def plant(mutant: Mutant | None, folder: Path) -> Path:
    """Copy the package with its built extensions, plant the fault, return what PYTHONPATH has to name."""
    package = folder / "src"
    # Bytecode is copied too: it stays valid for all files but the one that is written anew.
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("*.c", "*.h", "*.egg-info"))
    if mutant is not None:
        (package / "everlog" / mutant.file).write_text(mutated(mutant), encoding="utf-8")
    return package
