"""The server of the benchmark as a program: `everlog serve`, with the port file written when it is ready.

Owns no setting: it is told a data directory, a port file and API keys; everything else has its default.
"""

from __future__ import annotations

import sys

from everlog.fs import OsFs, replace_file
from everlog.server.auth import KeyRing
from everlog.server.serve import TopicsServer, run
from everlog.server.settings import ServerSettings


def main(data_dir: str, port_file: str, api_keys: str = "") -> None:
    """Serve until SIGTERM."""

    def started(server: TopicsServer) -> None:
        host, port = server.address
        replace_file(OsFs(), port_file, f"{host}:{port}".encode())

    # So many watchers are more than a server takes unless it is told to.
    settings = ServerSettings(
        port=0,
        data_dir=data_dir,
        api_keys=KeyRing.parse(api_keys),
        max_sse_connections=0,
        max_watch_sessions=0,
    )
    run(settings, started=started)


if __name__ == "__main__":
    main(*sys.argv[1:])
