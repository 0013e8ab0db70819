"""Log lines of the server: as text for people, or one JSON object a line for programs.

Owns their form. Nothing here or elsewhere logs a token.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TextIO

import msgspec


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure_logging(level: str, form: str, stream: TextIO) -> None:
    """Let the loggers of everlog write to `stream`."""
    handler = logging.StreamHandler(stream)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    logger = logging.getLogger("everlog")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    # Lines of the access log are JSON already, whatever the form of the others.
    lines = logging.StreamHandler(stream)
    lines.setFormatter(logging.Formatter("%(message)s"))
    access = logging.getLogger("everlog.access")
    access.handlers = [lines]
    access.setLevel(logging.INFO)
    access.propagate = False
