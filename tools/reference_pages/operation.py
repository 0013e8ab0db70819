"""What an operation of the API is: one method of one path, its parameters and its answers.

Owns these types and the defaults that all operations share. Which operations there are is in `operations`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from everlog.server.auth import Scope

EVENT_STREAM: Final = "text/event-stream"
PLAIN_TEXT: Final = "text/plain"
HTML: Final = "text/html"
NO_SCOPE: Final = Scope(0)
KEYED: Final = "unauthorized forbidden not_ready"


@dataclass(frozen=True)
class Parameter:
    """A parameter of the query, or a header."""

    name: str
    kind: str
    text: str
    default: Any = None
    is_header: bool = False
    is_required: bool = False


@dataclass(frozen=True)
class Answer:
    """A success: a struct of `api_types` as JSON, other content, or both."""

    text: str
    body: type | None = None
    content: str | None = None


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path. `name` and `item` say what `:name` and `:item` in the path stand for."""

    method: str
    path: str
    id: str
    group: str
    summary: str
    answers: dict[int, Answer]
    codes: frozenset[str]
    scope: Scope = NO_SCOPE
    is_open: bool = False
    """No key is needed, whatever the settings."""
    takes_token: bool = False
    """The key may also stand in the query."""
    name: str | None = None
    item: str | None = None
    parameters: tuple[Parameter, ...] = ()
    body: type | None = None
    body_is_optional: bool = False
    text: str = ""

    @property
    def template(self) -> str:
        """The path with its parameters in braces."""
        path = self.path if self.name is None else self.path.replace(":name", f"{{{self.name}}}")
        return path if self.item is None else path.replace(":item", f"{{{self.item}}}")


STRICT: Final = Parameter(
    "strict", "boolean", "whether a member that the server does not know is refused instead of ignored", False
)


def operation(
    group: str,
    request: str,
    id_: str,
    summary: str,
    answers: dict[int, Answer] | Answer,
    scope: Scope = NO_SCOPE,
    codes: str = "",
    keyed: str = KEYED,
    **more: Any,
) -> Operation:
    """An operation; one with a scope also fails as all that need a key do."""
    method, path = request.split()
    if "body" in more:
        more["parameters"] = (*more.get("parameters", ()), STRICT)
    names = {"/v0/topics/:name": "topic", "/v0/routers/:name": "router", "/v0/watch/:name": "wid"}
    return Operation(
        method=method,
        path=path,
        id=id_,
        group=group,
        summary=summary,
        answers={200: answers} if isinstance(answers, Answer) else answers,
        codes=frozenset(f"{keyed if scope else ''} {codes}".split()),
        scope=scope,
        name=next((name for start, name in names.items() if path.startswith(start)), None),
        item="consumer" if ":item" in path else None,
        **more,
    )
