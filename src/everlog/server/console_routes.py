"""The console: the files of a web page, served as they are, and the documents of the API.

Owns `GET /`, everything below `/console/`, and the headers that keep a page from doing anything but showing
what the public API gives it. The files are in `console` beside this module; no step builds them.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from functools import partial
from importlib import resources
from importlib.metadata import version
from typing import Final

import msgspec

from everlog.server.answers import ServerIndex
from everlog.server.app import App, Call, Route
from everlog.server.auth import Scope
from everlog.server.compression import takes_gzip
from everlog.server.http_exchange import JSON_TYPE, Exchange, Headers

INDEX: Final = "index.html"
FILES: Final = "/console/"
DOCUMENTS: Final = ("openapi.json", "asyncapi.json")
_TYPES: Final = {
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "svg": b"image/svg+xml",
    "json": JSON_TYPE,
}
POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)
"""No inline code or style, nothing from elsewhere, no frame around it, and no text becomes markup."""
_GUARDS: Final[Headers] = (
    (b"Content-Security-Policy", POLICY),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
    # A new version of the server has new files under the same names.
    (b"Cache-Control", b"no-cache"),
    (b"Vary", b"Accept, Accept-Encoding"),
)
_json = msgspec.json.Encoder()


class StaticFile:
    """One file of the package, in both of the ways in which it is sent."""

    __slots__ = ("_packed", "content", "content_type", "tag")

    def __init__(self, name: str, content: bytes) -> None:
        self.content = content
        self.content_type = _TYPES[name.rpartition(".")[2]]
        self.tag = b'"%b"' % hashlib.sha256(content).hexdigest()[:32].encode()
        self._packed: bytes | None = None

    @property
    def packed(self) -> bytes:
        """The content in gzip, made when it is first asked for."""
        if self._packed is None:
            self._packed = gzip.compress(self.content, 9, mtime=0)
        return self._packed

    def send(self, exchange: Exchange) -> None:
        """Answer a request with this file, or that the browser has it already."""
        request = exchange.request
        headers: Headers = (*_GUARDS, (b"ETag", self.tag))
        if request.header(b"if-none-match") == self.tag:
            exchange.respond(304, b"", headers=headers)
        elif takes_gzip(request.header(b"accept-encoding")):
            exchange.respond(200, self.packed, self.content_type, (*headers, (b"Content-Encoding", b"gzip")))
        else:
            exchange.respond(200, self.content, self.content_type, headers)


def console_files() -> dict[str, StaticFile]:
    """The files of the console by their path below `/console/`."""
    folder = resources.files("everlog.server") / "console"
    return {
        entry.name: StaticFile(entry.name, entry.read_bytes())
        for entry in folder.iterdir()
        if entry.name.rpartition(".")[2] in _TYPES
    }


def wants_page(accept: bytes | None) -> bool:
    """Whether a client asks for a page rather than for JSON."""
    return accept is not None and b"text/html" in accept


class ConsoleRoutes:
    """Handlers of `/`, the files of the console, and the documents of the API. None of them needs a key."""

    def __init__(self, app: App) -> None:
        self._app = app
        files = console_files()
        self._page = files[INDEX]
        documents = resources.files("everlog.server") / "documents"
        app.add("GET", "/", _open_route(self.index))
        for name in DOCUMENTS:
            file = StaticFile(name, (documents / name).read_bytes())
            app.add("GET", f"/{name}", _open_route(partial(_send, file)))
        app.files.update({f"{FILES}{name}": file.send for name, file in files.items()})
        app.files["/favicon.ico"] = files["icon.svg"].send

    def index(self, call: Call) -> None:
        """GET /: the console for a browser, a small JSON object for everything else."""
        if wants_page(call.request.header(b"accept")):
            self._page.send(call.exchange)
            return
        links = {
            "api": "/v0",
            "health": "/v0/health",
            "ready": "/v0/ready",
            "metrics": "/v0/metrics",
            "openapi": "/openapi.json",
            "asyncapi": "/asyncapi.json",
        }
        self._app.answer(call, _json.encode(ServerIndex("everlog", version("everlog"), links)))


def _send(file: StaticFile, call: Call) -> None:
    file.send(call.exchange)


def _open_route(handler: Callable[[Call], None]) -> Route:
    # Served without a key and during recovery: the page holds no data, and asks for the key.
    return Route(Scope(0), handler, is_probe=True, checks_key=True, needs_poll=False)
