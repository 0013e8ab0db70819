"""Lets a process of the demonstration notice that nobody is waiting for it any more."""

from __future__ import annotations

import os
import sys


class Parent:
    """The process that started this one."""

    def __init__(self) -> None:
        self._pid = os.getppid()

    def check(self) -> None:
        """End this process if its parent has ended: nobody would end it otherwise."""
        if os.getppid() != self._pid:
            sys.exit("the demonstration has ended without this process; leaving")
