"""The pages as files: which ones there are, where they lie, and whether they are up to date.

Owns names; what is in them is made by the modules beside it.
"""

from __future__ import annotations

from pathlib import Path

from everlog.cli.reference.commands import commands_page
from everlog.cli.reference.metrics import metrics_page
from everlog.cli.reference.settings import settings_page


def pages() -> dict[str, str]:
    """Every page by its file name."""
    return {"cli.md": commands_page(), "settings.md": settings_page(), "metrics.md": metrics_page()}


def outdated(directory: Path) -> list[Path]:
    """The pages that are missing or say something else than the code."""
    return [
        directory / name
        for name, text in pages().items()
        if not (directory / name).exists() or (directory / name).read_text(encoding="utf-8") != text
    ]


def write_pages(directory: Path) -> list[Path]:
    """Write those that have changed; return them."""
    changed = outdated(directory)
    texts = pages()
    for path in changed:
        path.write_text(texts[path.name], encoding="utf-8")
    return changed
