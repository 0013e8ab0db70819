"""Commands that talk to a running server: `server_command` gives them --url, --key, --context and --json.

Owns the session of such a command: the client, and how answers and problems are printed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import msgspec
import typer

from everlog.cli.context_file import target
from everlog.cli.options import AsJson
from everlog.cli.output import Table, print_json, print_problem, print_table, printable, reporting
from everlog.client.errors import ApiFailed
from everlog.client.retrying import ONCE, RetryPolicy
from everlog.client.sync_client import Client
from everlog.client.wire import DEFAULT_URL

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="EVERLOG_URL",
        show_default=False,
        help=f"Where the server is. Default: the selected context, else {DEFAULT_URL}.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        envvar="EVERLOG_KEY",
        show_default=False,
        help="Key for the server. Other users see arguments; the variable is safer.",
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        envvar="EVERLOG_CONTEXT",
        show_default=False,
        help="Server of this name; see `everlog context`.",
    ),
]
Prefix = Annotated[str, typer.Option(metavar="TEXT", help="Only names that begin with this.")]


def connected(
    url: str | None, key: str | None, context: str | None = None, retry: RetryPolicy | None = None
) -> Client:
    """A client of the server that is given, named or selected."""
    chosen = target(url, key, context)
    return Client(chosen.url, chosen.key, retry=retry)


@dataclass(frozen=True, slots=True)
class Session:
    """A server to talk to, and how to print for the user."""

    client: Client
    as_json: bool

    def warn(self, code: str, message: str, detail: dict[str, Any] | None = None) -> None:
        """Print on standard error what the command got over by itself."""
        print_problem("warning", code, message, detail, as_json=self.as_json)

    def report(self, answer: object, text: str) -> None:
        """Print an answer: the text for a person, all of it as JSON."""
        if self.as_json:
            print_json(msgspec.to_builtins(answer, str_keys=True))
        else:
            print(text)

    def list(
        self,
        noun: str,
        entries: Sequence[Any],
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        condition: str = "",
        *,
        title: str | None = None,
    ) -> None:
        """Print a list: as a table, as JSON, or in words if it is empty; `title` is what people call it."""
        if self.as_json:
            print_json({noun: msgspec.to_builtins(entries)})
        elif entries:
            print_table(Table(f"{title or noun} of {self.client.address}", columns, rows))
        else:
            print(f"no {title or noun}{condition} on {self.client.address}")


def beginning_with(prefix: str) -> str:
    """The condition of an empty list."""
    return f" that begin with {printable(prefix)}" if prefix else ""


def server_command(
    group: typer.Typer, name: str, example: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose first parameter is a `Session`; it gets --url, --key, --context and --json."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(
            *, url: str | None, key: str | None, context: str | None, as_json: bool, **options: Any
        ) -> None:
            with reporting(as_json=as_json), connected(url, key, context, ONCE) as client:
                try:
                    function(Session(client, as_json), **options)
                except ApiFailed as error:
                    print_problem("error", error.code, str(error), error.detail, as_json=as_json)
                    raise typer.Exit(1) from None

        _set_parameters(command, function)
        return group.command(name, epilog=f"Example: {example}")(command)

    return register


def _set_parameters(command: Callable[..., None], function: Callable[..., None]) -> None:
    """Give `command` the parameters of `function`, without its session, and those of the session."""
    own = list(inspect.signature(function).parameters.values())[1:]
    hints = get_type_hints(function, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    shown = [each.replace(kind=keyword, annotation=hints[each.name]) for each in own]
    shared = (
        ("url", Url, None),
        ("key", Key, None),
        ("context", ContextName, None),
        ("as_json", AsJson, False),
    )
    for word, annotation, default in shared:
        shown.append(inspect.Parameter(word, keyword, default=default, annotation=annotation))
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in shown}
