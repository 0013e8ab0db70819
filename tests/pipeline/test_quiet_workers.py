"""What a Python worker of Spark prints when Java has closed its socket."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

WORKER = """
import os, socket, sys
import pyspark.daemon as daemon

sys.modules["__main__"] = daemon  # as it is in a worker, which is a fork of it
sys.argv = ["daemon", "pyspark.worker"]
{imported}
java, python = socket.socketpair(socket.AF_UNIX)
java.close()
try:
    daemon.worker(python, True)
except BaseException as error:
    daemon.traceback.print_exc()
    os.write(1, type(error).__name__.encode())
    os._exit(1)
"""


@pytest.mark.parametrize(("imported", "is_quiet"), [("", False), ("import everlog.pipeline", True)])
def test_a_worker_whose_socket_java_has_closed_prints_nothing(imported: str, is_quiet: bool) -> None:
    """Without everlog it does; when Spark no longer does so, `quiet_workers` can go."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER.format(imported=imported)],
        env={**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "BrokenPipeError"
    assert (done.stderr == "") is is_quiet, done.stderr
