"""As much of curl as the guide uses, so that its commands run where curl is not installed, or is old."""

from __future__ import annotations

import argparse
import http.client
import os
import stat
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit


def install(directory: Path) -> None:
    """Put a program named `curl` into a directory for the PATH."""
    directory.mkdir(exist_ok=True)
    program = directory / "curl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def main() -> int:
    """Send one request and print the body of its answer, as it comes."""
    parser = argparse.ArgumentParser(prog="curl")
    parser.add_argument("-s", "--silent", action="store_true")
    parser.add_argument("-N", "--no-buffer", action="store_true")
    parser.add_argument("-X", "--request")
    parser.add_argument("-H", "--header", action="append", default=[])
    parser.add_argument("--json")
    parser.add_argument("--max-time", type=float, default=30.0)
    parser.add_argument("url")
    options = parser.parse_args()
    url = urlsplit(options.url)
    deadline_s = time.monotonic() + options.max_time
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=options.max_time)
    headers = {
        name.strip(): value.strip() for name, _, value in (each.partition(":") for each in options.header)
    }
    if options.json is not None:
        headers = {"Content-Type": "application/json", "Accept": "application/json", **headers}
    method = options.request or ("GET" if options.json is None else "POST")
    target = url.path + (f"?{url.query}" if url.query else "")
    connection.request(method, target, None if options.json is None else options.json.encode(), headers)
    response = connection.getresponse()
    try:
        while time.monotonic() < deadline_s and (piece := response.read1(65536)):
            os.write(sys.stdout.fileno(), piece)
    except TimeoutError:
        return 28  # what curl says when --max-time is over
    finally:
        connection.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
