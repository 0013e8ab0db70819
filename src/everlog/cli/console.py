"""The command `everlog console`: the console in the browser, for a server that runs elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import webbrowser
from typing import Annotated

import typer

from everlog.cli.context_file import target
from everlog.cli.output import print_fields, reporting
from everlog.cli.session import ContextName, Url

HOST = "127.0.0.1"


def console_command(
    url: Url = None,
    context: ContextName = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port on this machine; 0: any free one.")] = 0,
    is_opened: Annotated[
        bool, typer.Option("--open", help="Open the console in the browser of this machine.")
    ] = False,
) -> None:
    """Serve the console for a server that runs elsewhere, until Ctrl-C.

    A server has the console itself; this is for one that a browser does not reach. Keys are asked for in the
    browser and go to that server only.
    """
    with reporting(as_json=False):
        chosen = target(url, None, context)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(chosen.url, port, is_opened))


async def _serve(url: str, port: int, is_opened: bool) -> None:
    # Imported here: other commands need not wait for the server to be loaded.
    from everlog.cli.console_proxy import ConsoleProxy
    from everlog.server.http import HttpServer

    proxy = ConsoleProxy(url, HOST)
    server = HttpServer(proxy)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    try:
        host, bound = await server.start(HOST, port)
        address = f"http://{host}:{bound}/"
        print_fields([("console", address), ("server", url), ("stop", "Ctrl-C")])
        print(end="", flush=True)
        if is_opened:
            webbrowser.open(address)
        await stopping.wait()
    finally:
        await server.drain(0)
        proxy.close()
