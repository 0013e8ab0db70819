"""Check an installed everlog from outside its source tree: every plane but Spark does one real thing.

Run by `make wheel` in a new virtual environment and by cibuildwheel for every wheel it builds. It needs the
package and its dependencies, no test framework.
"""

import importlib
import pkgutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import everlog
from everlog import Client, native
from everlog.queue import Queue
from everlog.testing import server


def import_native_modules() -> int:
    """Import every module of the native package and return how many there are."""
    names = [found.name for found in pkgutil.walk_packages(native.__path__, "everlog.native.")]
    for name in names:
        importlib.import_module(name)
    return len(names)


def pass_a_message(directory: Path) -> None:
    """Append one message to a queue and read it back."""
    with Queue.open_publisher(directory) as writer:
        seq = writer.append(1, b"smoke")
    with Queue.open_subscriber(directory, "smoke", start="earliest") as reader:
        message = reader.next()
        assert (message.seq, bytes(message)) == (seq, b"smoke"), message


def pass_a_record() -> None:
    """Append one record to a topic of a server and read it back through the client."""
    with server() as url, Client(url) as client:
        client.append("smoke", {"n": 1})
        record = next(iter(client.read("smoke")))
        assert (record.seq, record.data) == (1, {"n": 1}), record
        see_the_console(url)


def see_the_console(url: str) -> None:
    """Get the page of the console, a file that it loads, and a document of the API."""
    for path, mark in (
        ("/", b"<everlog-console>"),
        ("/console/app.js", b"import"),
        ("/openapi.json", b"3.1.0"),
    ):
        request = urllib.request.Request(url + path, headers={"Accept": "text/html"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert mark in answer.read(), path


def main() -> None:
    """Run all checks; the first failure is the exit code."""
    source_tree = Path(__file__).resolve().parents[2] / "src"
    assert source_tree not in Path(everlog.__file__).resolve().parents, "everlog is imported from its source"
    count = import_native_modules()
    with tempfile.TemporaryDirectory() as directory:
        pass_a_message(Path(directory) / "queue")
    pass_a_record()
    command = Path(sys.executable).with_name("everlog")
    shown = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["everlog", everlog.__version__], shown.stdout
    print(f"everlog {everlog.__version__}: {count} native modules, queue, topics and command line work")


if __name__ == "__main__":
    main()
