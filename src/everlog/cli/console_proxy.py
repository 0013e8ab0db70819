"""The console for another server: its files from here, every call of the API passed on to that server.

Owns the way of a request to the other server and back. It keeps no key: the browser has it and sends it with
each call. Streams are not passed on; the console does not use them.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from everlog.errors import InvalidConfig
from everlog.server.console_routes import FILES, INDEX, console_files, wants_page
from everlog.server.errors import ApiError
from everlog.server.http import EarlyAnswer, Exchange, Request, error_body
from everlog.server.http_exchange import JSON_TYPE
from everlog.server.origins import OriginGuard

CALLS_MAX: Final = 32
"""Calls that are under way at once; a browser has six connections to one server."""
TIMEOUT_S: Final = 45.0
"""Longer than the longest poll, which is 30 s."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
PASSED_ON: Final = (b"accept", b"authorization", b"content-type", b"idempotency-key", b"traceparent")
DOCUMENTS: Final = (b"/openapi.json", b"/asyncapi.json")


class Passed(NamedTuple):
    """What the other server answered."""

    status: int
    body: bytes
    content_type: bytes = JSON_TYPE


class ConsoleProxy:
    """An application for `HttpServer`: the console, and the API of the server at `url`."""

    def __init__(self, url: str, host: str) -> None:
        self._server = _checked(url)
        self._guard = OriginGuard(host, (), ())
        self._files = console_files()
        self._pool = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="everlog-console")

    def check_head(self, request: Request) -> EarlyAnswer | None:
        """No request is refused by its head."""
        return None

    def handle(self, exchange: Exchange) -> None:
        """Answer with a file, or pass the call on."""
        request = exchange.request
        try:
            self._guard.check(request.headers)
        except ApiError as error:
            exchange.respond(error.status, error.body())
            return
        path = request.path.decode("latin-1")
        is_page = path == "/" and wants_page(request.header(b"accept"))
        name = INDEX if is_page else path.removeprefix(FILES) if path.startswith(FILES) else ""
        if name in self._files and request.method in ("GET", "HEAD"):
            self._files[name].send(exchange)
        elif not _is_call(request.path):
            exchange.respond(404, error_body("not_found", f"{path[:100]} is not passed on to the server"))
        else:
            loop = asyncio.get_running_loop()
            calling = loop.run_in_executor(self._pool, self._pass_on, request)
            calling.add_done_callback(partial(_answer, exchange))

    def _pass_on(self, request: Request) -> Passed:
        server = self._server
        headers = {
            name.decode(): request.headers[name].decode("latin-1")
            for name in PASSED_ON
            if name in request.headers
        }
        target = request.path + (b"?" + request.query if request.query else b"")
        try:
            connection = _connection(server)
            try:
                connection.request(
                    request.method,
                    server.path.rstrip("/") + target.decode("latin-1"),
                    request.body or None,
                    headers,
                )
                answer = connection.getresponse()
                body = answer.read(ANSWER_BYTES_MAX)
                return Passed(
                    answer.status, body, answer.getheader("Content-Type", "application/json").encode()
                )
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            message = f"{server.netloc} does not answer: {error}"
            return Passed(502, error_body("unreachable", message))

    def close(self) -> None:
        """Start no more calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _checked(url: str) -> SplitResult:
    server = urlsplit(url)
    if server.scheme not in ("http", "https") or not server.hostname:
        raise InvalidConfig(f"{url!r} is not the address of a server; write http://HOST:PORT")
    return server


def _connection(server: SplitResult) -> http.client.HTTPConnection:
    host = server.hostname or ""
    if server.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, server.port, timeout=TIMEOUT_S, context=context)
    return http.client.HTTPConnection(host, server.port, timeout=TIMEOUT_S)


def _is_call(path: bytes) -> bool:
    """Whether a path is a call of the API that ends with an answer, or one of its documents."""
    is_stream = path.startswith((b"/v0/watch/", b"/v0/ws")) or path.endswith(b"/work")
    return path in DOCUMENTS or (path.startswith(b"/v0/") and not is_stream)


def _answer(exchange: Exchange, calling: asyncio.Future[Passed]) -> None:
    if calling.cancelled():
        return
    passed = calling.result()
    exchange.respond(passed.status, passed.body, passed.content_type)
