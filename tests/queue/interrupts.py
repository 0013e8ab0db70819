"""Ctrl-C at every point of a call: raises KeyboardInterrupt where the interpreter would run a signal handler.

That is when a function begins and when one has returned. Points inside the standard library and inside
native code are left out.
"""

import gc
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import everlog.queue

_COUNTED = os.path.dirname(everlog.queue.__file__) + os.sep


def interrupt_at(point: int, call: Callable[[], object]) -> str | None:
    """Run `call` and interrupt it at its `point`-th point (from 0); tell where, None if it has fewer.

    Only code of `everlog.queue` that runs in this thread is counted.
    """
    remaining = point
    where: str | None = None

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal remaining, where
        # Not before a native call: that may be the release of a lock, which no signal can prevent.
        if event in ("call", "return", "c_return") and frame.f_code.co_filename.startswith(_COUNTED):
            remaining -= 1
            if remaining < 0:
                where = f"{event} in {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
                raise KeyboardInterrupt

    previous = sys.getprofile()
    collects = gc.isenabled()
    gc.disable()  # what the collector runs is not part of the call, and swallows what is raised
    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        if where is None:
            raise
    finally:
        sys.setprofile(previous)
        if collects:
            gc.enable()
    return where
