"""How long the loop's thread had something to do.

Owns that one number. It is processor time plus the time in which the thread was ready to run and others ran
instead: to those who wait for the server both are the same.
"""

from __future__ import annotations

import time
from typing import Final

SCHEDSTAT: Final = "/proc/thread-self/schedstat"


def busy_ns() -> int:
    """How long the calling thread has run, or could have run, since it was started."""
    try:
        with open(SCHEDSTAT, "rb") as file:
            ran, waited, _ = file.read().split()
        return int(ran) + int(waited)
    except (OSError, ValueError):
        return time.thread_time_ns()  # a kernel that does not tell how long a thread had to wait
