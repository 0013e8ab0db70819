"""The commands of `everlog context` and `everlog config`: named servers, and what a command would use.

Owns what they print; a key is never printed. The file is `context_file`.
"""

from __future__ import annotations

import os
import sys
from getpass import getpass
from typing import Annotated, Any

import msgspec
import typer

from everlog.cli import context_file
from everlog.cli.options import AsJson
from everlog.cli.output import (
    Table,
    counted,
    group,
    print_fields,
    print_json,
    print_result,
    print_table,
    printable,
    reporting,
)
from everlog.cli.session import ContextName, Key, Url
from everlog.client.wire import ServerAddress
from everlog.errors import InvalidConfig

app = group("Give servers names, with their keys, and select one.", "everlog context use production")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.", show_default=False)]


@app.command("ls", epilog="Example: everlog context ls --json")
def ls_command(as_json: AsJson = False) -> None:
    """List the contexts; the selected one is marked. Keys are not shown."""
    with reporting(as_json=as_json):
        contexts = context_file.load()
        shown = [_shown(contexts, name) for name in sorted(contexts.contexts)]
        if as_json:
            print_json({"contexts": shown})
        elif shown:
            rows = [
                (
                    "*" if each["selected"] else "",
                    each["context"],
                    printable(each["url"]),
                    "yes" if each["has_key"] else "no",
                )
                for each in shown
            ]
            print_table(Table(str(context_file.contexts_path()), ("selected", "context", "url", "key"), rows))
        else:
            print("no contexts; make one: everlog context add NAME --url URL")


@app.command("add", epilog="Example: everlog context add production --url https://log.example.org --key -")
def add_command(
    name: Name,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="Where the server is.")],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY|-",
            envvar="EVERLOG_KEY",
            show_default=False,
            help="Its key; '-' asks for it, or reads it from standard input.",
        ),
    ] = None,
    select: Annotated[bool, typer.Option("--select", help="Use it from now on.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a context of this name.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a server. The first one is selected; the file is readable by you alone."""
    with reporting(as_json=as_json):
        contexts = context_file.load()
        context_file.checked_name(name)
        if name in contexts.contexts and not replace:
            raise InvalidConfig(f"there is a context {name!r} already; --replace replaces it")
        if key == "-":
            key = getpass("key: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
        contexts.contexts = {**contexts.contexts, name: context_file.checked_context(url, key)}
        if select or contexts.selected is None:
            contexts.selected = name
        context_file.save(contexts)
        _report(contexts, name, "added", as_json=as_json)


@app.command("use", epilog="Example: everlog context use production")
def use_command(name: Name, as_json: AsJson = False) -> None:
    """Select a server: commands talk to it unless --url, --context or a variable says otherwise."""
    with reporting(as_json=as_json):
        contexts = context_file.load()
        contexts.named(name)
        contexts.selected = name
        context_file.save(contexts)
        _report(contexts, name, "selected", as_json=as_json)


@app.command("rm", epilog="Example: everlog context rm production")
def rm_command(name: Name, as_json: AsJson = False) -> None:
    """Forget a server and its key. If it was selected, none is."""
    with reporting(as_json=as_json):
        contexts = context_file.load()
        contexts.named(name)
        shown = _shown(contexts, name)
        contexts.contexts = {each: value for each, value in contexts.contexts.items() if each != name}
        contexts.selected = None if contexts.selected == name else contexts.selected
        context_file.save(contexts)
        print_result(shown, f"{name}: removed", as_json=as_json)


def _shown(contexts: context_file.Contexts, name: str) -> dict[str, Any]:
    context = contexts.contexts[name]
    is_selected = contexts.selected == name
    return {"context": name, "url": context.url, "has_key": context.key is not None, "selected": is_selected}


def _report(contexts: context_file.Contexts, name: str, done: str, *, as_json: bool) -> None:
    also = ", selected" if done == "added" and contexts.selected == name else ""
    text = f"{name}: {done}{also}, {printable(contexts.contexts[name].url)}"
    print_result(_shown(contexts, name), text, as_json=as_json)


# -- config --------------------------------------------------------------------------------


def config_command(
    url: Url = None,
    key: Key = None,
    context: ContextName = None,
    settings_file: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="Settings file that `serve` would read.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what commands use here: server, key and files, and the settings that `everlog serve` would have.

    Each value comes with its source. Keys are not shown.
    """
    # Imported here: the commands that talk to a server need not wait for it.
    from everlog.server.settings import VARIABLES, ServerSettings

    with reporting(as_json=as_json):
        target = context_file.target(url, key, context)
        wanted = ServerSettings.from_sources(os.environ, settings_file, {})
        defaults = ServerSettings()
        serve: dict[str, dict[str, Any]] = {}
        for name, variable in VARIABLES.items():
            value = getattr(wanted, name)
            is_default = value == getattr(defaults, name)
            shown = counted(len(value), "key") if name == "api_keys" else msgspec.to_builtins(value)
            serve[name] = {"value": shown, "default": is_default, "variable": variable}
        path = context_file.contexts_path()
        command: dict[str, Any] = {
            "url": str(ServerAddress.parse(target.url)),
            "url_from": target.url_from,
            "has_key": target.key is not None,
            "key_from": target.key_from,
            "contexts_file": str(path),
        }
    if as_json:
        print_json({"command": command, "serve": serve})
        return
    print_fields(
        [
            ("server", f"{printable(command['url'])} ({target.url_from})"),
            ("key", target.key_from),
            ("contexts", f"{printable(str(path))}{'' if path.exists() else ' (not there)'}"),
        ]
    )
    rows = [
        (name, _setting(each["value"]), "default" if each["default"] else "set", each["variable"])
        for name, each in serve.items()
    ]
    print_table(Table("settings of `everlog serve`", ("setting", "value", "source", "variable"), rows))


def _setting(value: Any) -> str:
    """Return a value as a settings file has it; text without quotes, and a word for what is not set."""
    if value is None or value in ([], ()):
        return "none"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if text.isprintable() else printable(text)
