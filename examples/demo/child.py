"""Becomes a program of the demonstration that ends when the demonstration does, however that ends.

    python -m examples.demo.child PARENT_PID PROGRAM [ARGUMENT ...]

Owns one promise: no process outlives the one that started it, even if that one is killed. The kernel
keeps it, also across the exec that follows, so the programs need not look after their parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def become(parent_pid: int, command: list[str]) -> None:
    """Replace this process by the command, tied to the life of its parent."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent_pid:
        sys.exit("the demonstration had ended before this process began; leaving")
    os.execv(command[0], command)


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
