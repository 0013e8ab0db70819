"""What a client may say over a WebSocket: from JSON text to typed commands.

Owns the shapes of commands and the two ways in which a message can be wrong: it is no JSON that may be used
(`invalid_json`), or it is no command (`invalid_request`). Knows no socket and no topic.
"""

from __future__ import annotations

from typing import Final

import msgspec

from everlog.native.topics.log import json_fault
from everlog.server.bodies import MAX_NESTING, AppendBody, WatchedBody
from everlog.server.body_checks import VALUES_MAX, UnknownMember, fault, unknown_members
from everlog.server.errors import ApiError, invalid

NULL: Final = b"null"
_NO_ID: Final = msgspec.Raw(NULL)


class Subscribe(WatchedBody, kw_only=True, tag_field="op", tag="subscribe"):
    """Follow topics: `topic` from the cursor of the command itself, and those of the map from their own."""

    topic: str | None = None
    topics: dict[str, WatchedBody] | None = None
    node: str | list[str] | None = None
    limit: int = 1000
    max_batch_bytes: int = 1 << 20
    include_data: bool = True
    include_tags: bool = False
    include_meta: bool = True
    lenient: bool = False
    request_id: msgspec.Raw = _NO_ID

    def wanted(self) -> dict[str, WatchedBody]:
        """Where to begin, for each topic that is named."""
        wanted = dict(self.topics or {})
        if self.topic is not None:
            wanted[self.topic] = self
        return wanted


class Unsubscribe(msgspec.Struct, kw_only=True, tag_field="op", tag="unsubscribe"):
    """Follow topics no more."""

    topic: str | None = None
    topics: list[str] | None = None
    request_id: msgspec.Raw = _NO_ID

    def names(self) -> list[str]:
        """The topics that are named, each once."""
        single = [] if self.topic is None else [self.topic]
        return list(dict.fromkeys(single + (self.topics or [])))


class Publish(AppendBody, kw_only=True, tag_field="op", tag="publish"):
    """Append to a topic."""

    topic: str
    return_seqs: bool = True
    request_id: msgspec.Raw = _NO_ID


class Ping(msgspec.Struct, kw_only=True, tag_field="op", tag="ping"):
    """Ask for a sign of life."""

    request_id: msgspec.Raw = _NO_ID


Command = Subscribe | Unsubscribe | Publish | Ping


class _Envelope(msgspec.Struct):
    """What can be read of a message even if it is no command."""

    request_id: msgspec.Raw = _NO_ID
    op: msgspec.Raw = _NO_ID


_KINDS: Final[dict[bytes, type[msgspec.Struct]]] = {
    msgspec.json.encode(kind.__struct_config__.tag): kind for kind in (Subscribe, Unsubscribe, Publish, Ping)
}
_PUBLISH: Final = msgspec.Raw(b'"publish"')
_commands: Final[msgspec.json.Decoder[Command]] = msgspec.json.Decoder(Command)
_envelopes: Final = msgspec.json.Decoder(_Envelope)


class BadCommand(Exception):
    """A message that cannot be carried out, and the id that the answer to it carries."""

    def __init__(self, request_id: bytes, error: ApiError) -> None:
        super().__init__(str(error))
        self.request_id = request_id
        self.error = error


def decode_command(message: bytes | bytearray, *, is_strict: bool) -> tuple[Command, list[UnknownMember]]:
    """Read a message, which is UTF-8, and what is in it that no command has; raises `BadCommand`."""
    problem = json_fault(message, MAX_NESTING)
    if problem is not None:
        raise BadCommand(NULL, _invalid_json(problem))
    try:
        if message.count(b",") > VALUES_MAX and _envelopes.decode(message).op != _PUBLISH:
            raise BadCommand(NULL, invalid(f"the message has more than {VALUES_MAX} values"))
        command = _commands.decode(message)
    except msgspec.MsgspecError as error:
        raise _explained(message, error) from None
    try:
        unknown = unknown_members(message, type(command))
        if unknown and is_strict:
            raise unknown[0].refusal()
    except ApiError as error:
        raise BadCommand(echoed(command.request_id), error) from None
    return command, unknown


def _explained(message: bytes | bytearray, error: msgspec.MsgspecError) -> BadCommand:
    try:
        # The decoder of commands stops at the first thing that is wrong; this one reads all of it.
        envelope = _envelopes.decode(message)
    except msgspec.ValidationError:
        envelope = _Envelope()
    except msgspec.DecodeError as malformed:
        return BadCommand(NULL, _invalid_json(fault(message, _Envelope, malformed)))
    kind = _KINDS.get(bytes(envelope.op))
    if kind is None:
        ops = ", ".join(op.decode() for op in _KINDS)
        problem = f"op is {bytes(envelope.op).decode()}; it must be one of {ops}"
    else:
        problem = fault(message, kind, error)
    return BadCommand(echoed(envelope.request_id), invalid(f"the message is no command: {problem}"))


def _invalid_json(reason: str) -> ApiError:
    return ApiError(400, "invalid_json", f"the message cannot be read: {reason}")


def echoed(request_id: msgspec.Raw) -> bytes:
    """A request id as it is sent back: the same value, compact, and not a view of the whole message."""
    text = bytes(request_id)
    return msgspec.json.format(text, indent=-1) if text[:1] in (b"{", b"[") else text
