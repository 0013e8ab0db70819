"""The AsyncAPI document: what goes over streams of server-sent events and over WebSockets.

Owns how events, commands, replies and pushes become AsyncAPI 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

import everlog
from everlog.server.socket_commands import Ping, Publish, Subscribe, Unsubscribe
from tools.reference_pages.messages import EVENTS, PUSHES, REPLIES, WORK_EVENTS
from tools.reference_pages.openapi import Routes, new_shapes, operations_of
from tools.reference_pages.shapes import Shapes, first_line

COMMANDS: Final[tuple[type[Struct], ...]] = (Subscribe, Unsubscribe, Publish, Ping)
_SSE_TEXT: Final = (
    "Lines are `field: value`. The first one is `retry: 2000`; a comment `: hb` is a sign of life. "
)
_WATCH_TEXT: Final = (
    _SSE_TEXT
    + "`id` is unpadded base64url of a JSON object: for each topic the seq up to which everything was "
    "processed. It comes back as `Last-Event-ID`."
)
_WORK_TEXT: Final = _SSE_TEXT + "`id` is the seq of the job."
_SOCKET_TEXT: Final = (
    "Each message is one JSON object with `op`, as text. Every command gets exactly one reply, which carries "
    "its `request_id` (null if it had none); pushes come in between. Nothing is remembered for a socket: "
    "after a reconnect, subscribe again from your cursor."
)


def asyncapi(routes: Routes) -> dict[str, Any]:
    """The document for a server that has these routes."""
    templates = {operation.id: operation.template for operation in operations_of(routes)}
    document = _Document(new_shapes(("Tombstone", "topic")))
    if "openStream" in templates:
        document.stream("watch", templates["openStream"], "wid", EVENTS, _WATCH_TEXT)
    if "work" in templates:
        document.stream("work", templates["work"], "topic", WORK_EVENTS, _WORK_TEXT)
    if "openSocket" in templates:
        document.socket("socket", templates["openSocket"], _SOCKET_TEXT)
    shapes = document.shapes
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "everlog topics server: streams and sockets",
            "version": everlog.__version__,
            "description": "The requests that open them are in the OpenAPI document.",
            "license": {"name": "Apache-2.0"},
        },
        "servers": {
            "http": {"host": "127.0.0.1:4000", "protocol": "http"},
            "ws": {"host": "127.0.0.1:4000", "protocol": "ws"},
        },
        "defaultContentType": "application/json",
        "channels": document.channels,
        "operations": document.operations,
        "components": {"messages": document.messages, "schemas": dict(sorted(shapes.schemas.items()))},
    }


class _Document:
    """The parts that grow with every channel."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.channels: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}
        self.messages: dict[str, Any] = {}

    def stream(
        self, name: str, address: str, parameter: str, events: Mapping[str, type[Struct]], text: str
    ) -> None:
        """A stream of server-sent events."""
        for event, kind in events.items():
            self._message(kind, f"event: {event}")
        self._channel(name, address, "http", events.values(), text)
        self.channels[name]["parameters"] = {parameter: {"description": f"the {parameter} of the path"}}
        self._operation(f"{name}Events", "send", name, events.values(), "Events that the server sends.")

    def socket(self, name: str, address: str, text: str) -> None:
        """A WebSocket."""
        kinds = (*COMMANDS, *REPLIES, *PUSHES)
        for kind in kinds:
            self._message(kind, f"op: {kind.__struct_config__.tag}")
        self._channel(name, address, "ws", kinds, text)
        self._operation(f"{name}Commands", "receive", name, COMMANDS, "Commands of the client.")
        self._operation(f"{name}Replies", "send", name, REPLIES, "Replies to commands.")
        self._operation(f"{name}Pushes", "send", name, PUSHES, "What subscriptions bring.")

    def _message(self, kind: type[Struct], title: str) -> None:
        self.messages[kind.__name__] = {
            "name": kind.__name__,
            "title": title,
            "summary": first_line(kind),
            "payload": self.shapes.of(kind),
        }

    def _channel(self, name: str, address: str, server: str, kinds: Any, text: str) -> None:
        self.channels[name] = {
            "address": address,
            "description": text,
            "servers": [{"$ref": f"#/servers/{server}"}],
            "messages": {kind.__name__: {"$ref": f"#/components/messages/{kind.__name__}"} for kind in kinds},
        }

    def _operation(self, name: str, action: str, channel: str, kinds: Any, summary: str) -> None:
        self.operations[name] = {
            "action": action,
            "channel": {"$ref": f"#/channels/{channel}"},
            "summary": summary,
            "messages": [{"$ref": f"#/channels/{channel}/messages/{kind.__name__}"} for kind in kinds],
        }
