"""Keep Python workers of Spark from printing a traceback when their session, or a minute of rest, ends them.

Java closes the socket of a worker that rests. The worker then writes its last error to no one, which fails at
once on a Unix socket, and Spark's daemon prints that to the terminal, beside a job that has succeeded.
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace
from typing import Final

DAEMON: Final = "pyspark.daemon"


def end_quietly() -> None:
    """Let the daemon in whose fork this runs print all errors but those of closed sockets."""
    daemon = sys.modules.get("__main__")
    if getattr(getattr(daemon, "__spec__", None), "name", None) == DAEMON:
        names = {**vars(traceback), "print_exc": _print_exc}
        setattr(daemon, "traceback", SimpleNamespace(**names))  # noqa: B010 - a module has no such attribute


def _print_exc() -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        traceback.print_exc()
