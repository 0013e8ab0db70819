"""The load of `wrk`, an HTTP client written in C: one request under way on each connection, for some seconds.

Owns how it is called and how its summary is read. It is to this server what redis-benchmark is to Redis.
Where it is not installed, bare sockets in Python take its place.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from benchmarks.queue.processes import ChildFailed
from benchmarks.server.servers import PLACE_AND_RUN, RunningServer

INSTALL_COMMAND = "apt-get install wrk"
_GRACE_S = 60.0

# The body is read from a file: no quoting is needed, whatever is in it.
_SCRIPT = """
local file = assert(io.open("%s", "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["Content-Type"] = "application/json"
file:close()
function done(summary, latency, requests)
   local e = summary.errors
   io.write(string.format('\\n{"requests":%%d,"duration_us":%%d,"p50_us":%%d,"p99_us":%%d,"errors":%%d}\\n',
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
      e.connect + e.read + e.write + e.status + e.timeout))
end
"""


class Summary(msgspec.Struct, frozen=True):
    """What a run gave; the waiting times are those of requests."""

    requests: int
    duration_us: int
    p50_us: int
    p99_us: int
    errors: int


def is_installed() -> bool:
    """Whether there is a wrk to be run."""
    return shutil.which("wrk") is not None


def post(
    server: RunningServer, core: int, path: str, body: bytes, connections: int, seconds: int, home: Path
) -> Summary:
    """Send the same POST again and again from one core; `home` is a directory for its files."""
    home.mkdir()
    (home / "body").write_bytes(body)
    (home / "post.lua").write_text(_SCRIPT % (home / "body"))
    host, port = server.address
    call = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(home / "post.lua")]
    call += [f"http://{host}:{port}{path}"]
    placed = [sys.executable, "-c", PLACE_AND_RUN, str(core), *call]
    ended = subprocess.run(placed, capture_output=True, text=True, timeout=seconds + _GRACE_S, check=False)
    return read_summary(ended.stdout, ended.stderr)


def read_summary(output: str, complaints: str = "") -> Summary:
    """The line that the script ends with; ChildFailed if there is none, or if anything went wrong."""
    try:
        summary = msgspec.json.decode(output.strip().rpartition("\n")[2], type=Summary)
    except msgspec.MsgspecError:
        raise ChildFailed(f"wrk failed: {output[-500:]}{complaints[-500:]}") from None
    if summary.errors or not summary.requests:
        raise ChildFailed(f"wrk had {summary.errors} failed requests of {summary.requests}: {output[-500:]}")
    return summary
