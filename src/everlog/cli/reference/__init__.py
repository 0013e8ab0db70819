"""Reference pages that are made from the code: commands, settings and metrics.

`python -m everlog.cli.reference` writes them; a test compares what is committed with what the code says.
"""

from __future__ import annotations


def pages() -> dict[str, str]:
    """Every page by its file name."""
    from everlog.cli.reference.commands import commands_page
    from everlog.cli.reference.metrics import metrics_page
    from everlog.cli.reference.settings import settings_page

    return {"cli.md": commands_page(), "settings.md": settings_page(), "metrics.md": metrics_page()}
