"""Servers as the benchmark starts them: each a process of its own, pinned to one core, on a free port.

Owns starting, looking at (processor time, memory) and ending them by their process id; sends no load.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.queue.stats import MIB
from benchmarks.server.load import Address

START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 15.0
POLL_S = 0.01


class ServerFailed(OSError):
    """A server did not start."""


@dataclass(frozen=True)
class RunningServer:
    """A server process that answers."""

    address: Address
    process_id: int
    key: str = ""
    """What requests have to carry; empty if the server asks for nothing."""

    def cpu_s(self) -> float:
        """Processor time it has used so far."""
        return cpu_s_of(self.process_id)

    def resident_mib(self) -> float:
        """Memory that it holds."""
        status = Path(f"/proc/{self.process_id}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024 / MIB


_SCHEDULER_CLOCK = 2


def cpu_s_of(process_id: int) -> float:
    """Processor time that a process has used so far, all of its threads together."""
    # The id that clock_getcpuclockid(3) gives; /proc/PID/stat counts in steps of 10 ms.
    return time.clock_gettime(~process_id << 3 | _SCHEDULER_CLOCK)


@contextmanager
def everlog(home: Path, core: int, key: str = "") -> Iterator[RunningServer]:
    """A topics server with its defaults, and with an API key if one is given."""
    home.mkdir(parents=True)
    port_file = home / "port"
    command = [sys.executable, "-m", "benchmarks.server.serve", str(home / "data"), str(port_file), key]
    with _process(command, home, core) as process:
        _until(process, home, port_file.exists)
        host, _, port = port_file.read_text().strip().rpartition(":")
        yield RunningServer((host, int(port)), process.pid, key)


@contextmanager
def redis(home: Path, core: int, fsync: str) -> Iterator[RunningServer]:
    """A redis-server that logs every write to a file, synced as `fsync` says (`everysec`, `always`)."""
    home.mkdir(parents=True)
    address = ("127.0.0.1", _free_port())
    command = ["redis-server", "--port", str(address[1]), "--bind", address[0], "--dir", str(home)]
    command += ["--save", "", "--appendonly", "yes", "--appendfsync", fsync, "--loglevel", "warning"]
    with _process(command, home, core) as process:
        _until(process, home, lambda: _answers(address))
        yield RunningServer(address, process.pid)


@contextmanager
def nats(home: Path, core: int) -> Iterator[RunningServer]:
    """A nats-server with JetStream in files; it syncs them every two minutes, and cannot do so more often."""
    home.mkdir(parents=True)
    address = ("127.0.0.1", _free_port())
    command = [nats_command(), "-a", address[0], "-p", str(address[1]), "-js", "-sd", str(home / "data")]
    with _process(command, home, core) as process:
        _until(process, home, lambda: _answers(address))
        yield RunningServer(address, process.pid)


def nats_command() -> str:
    """Where nats-server is; Debian installs it where ordinary users do not look."""
    return shutil.which("nats-server") or shutil.which("/usr/sbin/nats-server") or "nats-server"


# --- Details ---------------------------------------------------------------------------------------------


@contextmanager
def _process(command: Sequence[str], home: Path, core: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process on one core; it is ended by its id, and its log stays beside its data."""
    with (home / "log").open("wb") as log:
        # Threads that a server starts stay on the core of their process.
        placed = [sys.executable, "-c", PLACE_AND_RUN, str(core), *command]
        process = subprocess.Popen(placed, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


PLACE_AND_RUN = (
    "import os,sys; os.sched_setaffinity(0,{int(sys.argv[1])}); os.execvp(sys.argv[2],sys.argv[2:])"
)


def _until(process: subprocess.Popen[bytes], home: Path, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline_s:
            log = (home / "log").read_text(errors="replace").strip()
            raise ServerFailed(f"the server {home.name} did not start: {log or 'it printed nothing'}")
        time.sleep(POLL_S)


def _answers(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=1).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
