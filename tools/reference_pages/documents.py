"""The documents as files: which ones there are, where they lie, and whether they are up to date.

Owns names and formatting. The routes are those of a server that was built and never started.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric

from everlog.server.serve import TopicsServer
from everlog.server.settings import ServerSettings
from tools.reference_pages.asyncapi import asyncapi
from tools.reference_pages.commands import commands_page
from tools.reference_pages.http_page import reference_page
from tools.reference_pages.lake_tables import lake_tables_page
from tools.reference_pages.metrics import metrics_page
from tools.reference_pages.openapi import openapi
from tools.reference_pages.settings import settings_page


def registered_routes() -> set[tuple[str, str]]:
    """Method and path of everything that a server answers."""
    loop = asyncio.new_event_loop()
    try:
        return set(TopicsServer(ServerSettings(), memory=True).build_app(loop).routes)
    finally:
        loop.close()


def registered_metrics() -> list[Metric]:
    """Everything that a server counts."""
    loop = asyncio.new_event_loop()
    try:
        server = TopicsServer(ServerSettings(), memory=True)
        server.build_app(loop)
        return server.probes.families()
    finally:
        loop.close()


def documents() -> dict[str, str]:
    """Every document by its file name."""
    routes = registered_routes()
    return {
        "openapi.json": _pretty(openapi(routes)),
        "asyncapi.json": _pretty(asyncapi(routes)),
        "http.md": reference_page(routes),
        "cli.md": commands_page(),
        "settings.md": settings_page(),
        "lake-tables.md": lake_tables_page(),
        "metrics.md": metrics_page(registered_metrics()),
    }


def _pretty(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


DOCUMENTS_OF_SERVER = ("openapi.json", "asyncapi.json")
"""What the server itself serves; these have a copy in its package."""


def write_changed(directory: Path, texts: dict[str, str]) -> list[Path]:
    """Write the files of a directory that are missing or have another text; return them."""
    changed = outdated(directory, texts)
    for path in changed:
        path.write_text(texts[path.name], encoding="utf-8")
    return changed


def outdated(directory: Path, texts: dict[str, str]) -> list[Path]:
    """The files of a directory that are missing or have another text than the code says."""
    return [
        directory / name
        for name, text in texts.items()
        if not (directory / name).exists() or (directory / name).read_text(encoding="utf-8") != text
    ]
