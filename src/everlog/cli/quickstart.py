"""The command `everlog quickstart`: a folder with a producer, a consumer, a worker and a page, all running.

Owns the copies of `quickstart_files` and the processes for as long as the command runs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from everlog.cli.output import print_fields, print_problem
from everlog.clock import StopEvent
from everlog.errors import InvalidConfig

SERVER_START_S: Final = 30.0
STOP_S: Final = 15.0
_LOOK_S: Final = 0.05
_PROGRAMS: Final = ("producer", "consumer", "worker")
_FILES: Final = {
    "README.md": "README.md",
    **{f"{name}.py": f"{name}.py" for name in _PROGRAMS},
    "index.html": "page/index.html",
}
"""Where each file goes."""

Folder = Annotated[Path, typer.Argument(help="The folder to make, or one that this command has made.")]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port of the server; 0: any free one.")]
Run = Annotated[bool, typer.Option("--run/--no-run", help="Run the programs, or only write them.")]
Open = Annotated[bool, typer.Option("--open", help="Open the console in the browser of this machine.")]
Seconds = Annotated[float | None, typer.Option(min=0, help="Stop after so long; without it, at Ctrl-C.")]


def quickstart_command(
    folder: Folder = Path("everlog-quickstart"),
    port: Port = 4000,
    run: Run = True,
    seconds: Seconds = None,
    is_opened: Open = False,
) -> None:
    """Make a folder with a producer, a consumer, a worker and a page, and run them.

    Files that are in the folder already stay as they are, so what you changed is run. Ctrl-C ends everything.
    """
    written = write_files(folder)
    print_fields([("folder", str(folder)), ("written", ", ".join(written) or "nothing; all files are there")])
    if run:
        raise typer.Exit(_run(folder, port, seconds, is_opened=is_opened))


def write_files(folder: Path) -> list[str]:
    """Write the files that are missing; raises InvalidConfig for a folder of something else."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not _is_ours(folder))):
        raise InvalidConfig(f"{folder} is there and is no quickstart folder; name a new one")
    written = []
    for name, target in _FILES.items():
        path = folder / target
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            text = files("everlog.cli").joinpath("quickstart_files", name).read_text(encoding="utf-8")
            path.write_text(text, encoding="utf-8")
            written.append(target)
    return written


def _is_ours(folder: Path) -> bool:
    return all((folder / f"{name}.py").is_file() for name in _PROGRAMS)


def _run(folder: Path, port: int, seconds: float | None, *, is_opened: bool) -> int:
    """Run the server and the programs; returns the exit code of the first that fails."""
    stopping = StopEvent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    with ExitStack() as running:
        origin = running.enter_context(_served(folder / "page"))
        address = folder / ".address"
        address.unlink(missing_ok=True)
        flags = ["--port", str(port), "--port-file", str(address), "--data-dir", str(folder / "data")]
        words = ["-m", "everlog", "serve", *flags, "--cors-origin", origin]
        processes = {"server": running.enter_context(_started("server", words))}
        if not _wait_for(address, processes["server"], stopping):
            return processes["server"].poll() or 1
        url = f"http://{address.read_text().strip()}"
        for name in _PROGRAMS:
            program = [str(folder / f"{name}.py"), url]
            processes[name] = running.enter_context(_started(name, program))
        print_fields([("console", f"{url}/"), ("page", f"{origin}/#{url}"), ("stop", "Ctrl-C")])
        if is_opened:
            webbrowser.open(f"{url}/")
        return _watch(processes, stopping, seconds)


def _watch(
    processes: dict[str, subprocess.Popen[str]], stopping: threading.Event, seconds: float | None
) -> int:
    """Wait for the end, or for a process that ends by itself."""
    end_s = None if seconds is None else time.monotonic() + seconds
    while not stopping.wait(_LOOK_S) and (end_s is None or time.monotonic() < end_s):
        for name, process in processes.items():
            code = process.poll()
            if code is not None:
                message = f"{name} ended with exit code {code}; its last lines are above"
                print_problem("error", "process_ended", message, as_json=False)
                return 1
    return 0


def _wait_for(address: Path, server: subprocess.Popen[str], stopping: threading.Event) -> bool:
    """Wait until the server has written its address; False if it ended or did not come up."""
    end_s = time.monotonic() + SERVER_START_S
    while not address.exists():
        if server.poll() is not None or time.monotonic() > end_s or stopping.wait(_LOOK_S):
            return False
    return True


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder on loopback; gives the origin."""
    handler = partial(_QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class _QuietHandler(SimpleHTTPRequestHandler):
    """Files without a line for each request."""

    def log_message(self, format: str, *_: object) -> None:
        """Say nothing."""


@contextmanager
def _started(name: str, words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run Python with these words; its lines are printed behind its name. It is asked to stop at the end."""
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C reaches this command alone, which then stops them in order
    )
    thread = threading.Thread(target=_print_lines, args=(name, process), daemon=True)
    thread.start()
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        thread.join(STOP_S)


def _print_lines(name: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{name:>8} | {line}", end="", flush=True)
