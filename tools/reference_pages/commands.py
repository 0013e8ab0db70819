"""The page on the commands `everlog` and `chron-cli`, from the objects that parse the command line.

Owns the layout of the page; names, defaults and words are those of the commands themselves.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, Literal, get_args, get_origin

import typer

from everlog.cli import chron_cli, main
from tools.reference_pages.markdown import MADE_BY, code, table

_OPENING: Final = f"""# Commands

{MADE_BY}

Every command with its arguments and options, made from the code that reads them. The
[guide](../guide/cli.md) shows them at work and explains their output.

A command that fails prints one line on standard error and ends with a code above 0; with `--json` the
line is an object with the error's `code`.
"""
_NUMBERS: Final = {int: "N", float: "NUMBER"}


def commands_page() -> str:
    """The whole page."""
    roots = {"everlog": typer.main.get_command(main.app), "chron-cli": typer.main.get_command(chron_cli.app)}
    found = [entry for name, root in roots.items() for entry in _commands(name, root)]
    parts = [_OPENING, table(("Command", "Does"), (_row(name, command) for name, command in found))]
    parts += [_section(name, command) for name, command in found]
    return "\n".join(parts).rstrip("\n") + "\n"


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands that do something, not the groups they are in."""
    members = getattr(command, "commands", None)
    if members is None:
        if not command.hidden:
            yield name, command
        return
    for word, member in members.items():
        yield from _commands(f"{name} {word}", member)


def _row(name: str, command: Any) -> tuple[str, str]:
    summary = _text(command.help).split("\n\n")[0].replace("\n", " ")
    return f"[`{name}`](#{name.replace(' ', '-')})", summary


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    usage = " ".join([name, "[OPTIONS]", *(_placeholder(each) for each in arguments)])
    parts = [f"## {name}\n", f"```text\n{usage}\n```\n"]
    if command.help:
        parts.append(_text(command.help) + "\n")
    rows = [_parameter(each) for each in command.params if not getattr(each, "hidden", False)]
    if rows:
        parts.append(table(("Argument or option", "Value", "Default", "Means"), rows))
    if command.epilog:
        parts.append(f"Example:\n\n```sh\n{_text(command.epilog).removeprefix('Example: ')}\n```\n")
    return "\n".join(parts)


def _parameter(parameter: Any) -> tuple[str, str, str, str]:
    if parameter.param_type_name == "argument":
        names = code(_placeholder(parameter))
    else:
        names = ", ".join(code(word) for word in (*parameter.opts, *parameter.secondary_opts))
    words = _text(parameter.help or "").replace("\n", " ")
    if parameter.envvar:
        words += f" Also from the variable `{parameter.envvar}`."
    if parameter.multiple:
        words += "" if "repeated" in words else " May be repeated."
    return names, _value(parameter), _default(parameter), words.strip()


def _placeholder(argument: Any) -> str:
    word = str(argument.metavar or argument.name.upper())
    if word.startswith("["):
        return word
    word += "..." if argument.nargs == -1 and not word.endswith("...") else ""
    return word if argument.required else f"[{word}]"


def _value(parameter: Any) -> str:
    """What follows the option."""
    if parameter.param_type_name == "argument" or getattr(parameter, "is_flag", False):
        return ""
    kind = parameter.type_descriptor.annotation
    kind = get_args(kind)[0] if get_origin(kind) is list else kind
    if parameter.metavar is None and isinstance(kind, type) and issubclass(kind, Enum):
        return code("|".join(str(member.value) for member in kind))
    if parameter.metavar is None and get_origin(kind) is Literal:
        return code("|".join(get_args(kind)))
    word = parameter.metavar or _NUMBERS.get(kind, "TEXT")
    if parameter.min is None and parameter.max is None:
        return code(word)
    return f"{code(word)}, {_range(parameter.min, parameter.max)}"


def _range(least: float | None, most: float | None) -> str:
    if most is None:
        return f"at least {least}"
    return f"at most {most}" if least is None else f"{least} to {most}"


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return "required"
    if default is None or default is False or default == [] or callable(default):
        return ""
    if default is True:
        return "on"
    return code(
        os.fspath(default) if isinstance(default, os.PathLike) else getattr(default, "value", default)
    )


def _text(words: str) -> str:
    return inspect.cleandoc(words).strip()
