"""The load of `wrk`, an HTTP client written in C: so many requests, one under way on each connection.

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
KEY_MARK = b"################"
"""In a body: replaced by a number that differs from request to request."""
_SECONDS_MAX = 30
_GRACE_S = 60.0

# wrk runs for a time, not for a number of requests: the script takes the time itself, and ends the load with
# the signal that a user would end it with. What is under way then is not answered. The body is read from a
# file: no quoting is needed.
_SCRIPT = """
local ffi = require("ffi")
ffi.cdef("typedef struct { long s; long ns; } everlog_time; int clock_gettime(int clock, everlog_time *out);")
ffi.cdef("int getpid(void); int kill(int pid, int signal);")
local MONOTONIC, SIGINT = 1, 2
local time = ffi.new("everlog_time")
local function now_us()
   ffi.C.clock_gettime(MONOTONIC, time)
   return tonumber(time.s) * 1e6 + tonumber(time.ns) / 1e3
end
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init()
   local file = assert(io.open("%(body)s", "rb"))
   local headers = {["Content-Type"] = "application/json"}
   if "%(key)s" ~= "" then headers["Authorization"] = "Bearer %(key)s" end
   text = wrk.format("POST", nil, headers, file:read("*a"))
   file:close()
   local first, last = text:find("%(mark)s", 1, true)
   if first then before, behind = text:sub(1, first - 1), text:sub(last + 1) end
   sent, begun_us, ended_us = 0, 0, 0
end
function request()
   if sent == 0 then begun_us = now_us() end
   if sent == %(requests)d then
      ended_us = now_us()
      ffi.C.kill(ffi.C.getpid(), SIGINT)
      wrk.thread:stop()
   end
   sent = sent + 1
   if before then return before .. string.format("%%0%(mark_bytes)dd", sent) .. behind end
   return text
end
function done(summary, latency)
   local e, duration_us = summary.errors, threads[1]:get("ended_us") - threads[1]:get("begun_us")
   io.write(string.format('\\n{"requests":%%d,"duration_us":%%d,"p50_us":%%d,"p99_us":%%d,"errors":%%d}\\n',
      summary.requests, duration_us, latency:percentile(50), latency:percentile(99),
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
    server: RunningServer, core: int, path: str, body: bytes, connections: int, requests: int, home: Path
) -> Summary:
    """Send a POST so many times from one core, each with a number of its own in place of `KEY_MARK`.

    `home` is a directory for its files.
    """
    home.mkdir()
    (home / "body").write_bytes(body)
    settings = {"body": home / "body", "requests": requests, "key": server.key}
    mark = {"mark": KEY_MARK.decode(), "mark_bytes": len(KEY_MARK)}
    (home / "post.lua").write_text(_SCRIPT % (settings | mark))
    host, port = server.address
    call = ["wrk", "-t1", f"-c{connections}", f"-d{_SECONDS_MAX}s", "-s", str(home / "post.lua")]
    call += [f"http://{host}:{port}{path}"]
    placed = [sys.executable, "-c", PLACE_AND_RUN, str(core), *call]
    ended = subprocess.run(
        placed, capture_output=True, text=True, timeout=_SECONDS_MAX + _GRACE_S, check=False
    )
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
