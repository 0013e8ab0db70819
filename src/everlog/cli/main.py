"""The command `everlog`: nouns, then verbs. Owns the top level only; each noun has its own module.

Only the module of the noun that is asked for is loaded, so that looking at a queue does not wait for Spark,
books and the engine of topics. `everlog --help` needs all of them and uses `app`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from typer._completion_classes import completion_init
from typer.core import TyperGroup

import everlog
from everlog.cli import output
from everlog.cli.completion import VARIABLE

if TYPE_CHECKING:
    # Loaded by name below; here for tools that read the source.
    from everlog.cli import (  # noqa: F401
        archive,
        audit,
        backup,
        book,
        bridge,
        completion,
        console,
        consumer,
        context,
        export,
        features,
        feed,
        import_,
        jobs,
        key,
        pipeline,
        queue,
        quickstart,
        repair,
        replay,
        router,
        schedule,
        serve,
        status,
        symbols,
        topic,
        verify,
    )

    app: typer.Typer
    """The command line with everything in it."""


class _Command(NamedTuple):
    """A noun without verbs: the function that it calls, and an example."""

    module: str
    function: str
    example: str


_GROUPS: Final = {
    "book": "book",
    "queue": "queue",
    "archive": "archive",
    "topic": "topic",
    "jobs": "jobs",
    "schedule": "schedule",
    "router": "router",
    "consumer": "consumer",
    "key": "key",
    "pipeline": "pipeline",
    "bridge": "bridge",
    "feed": "feed",
    "replay": "replay",
    "symbols": "symbols",
    "audit": "audit",
    "context": "context",
}
"""The module of each noun with verbs."""

_COMMANDS: Final = {
    "import": _Command(
        "import_", "import_command", "everlog import tardis-book BTCUSDT.csv.gz --queue ./history"
    ),
    "export": _Command("export", "export_command", "everlog export ./queue --to trades.parquet --kind trade"),
    "simulate": _Command(
        "import_", "simulate_command", "everlog simulate --queue ./queue --symbols 100 --events 1000000"
    ),
    "features": _Command(
        "features", "features_command", "everlog features ./queue --every 1s --out features.parquet"
    ),
    "quickstart": _Command("quickstart", "quickstart_command", "everlog quickstart my-project"),
    "serve": _Command("serve", "serve_command", "everlog serve --data-dir ./topics-data"),
    "console": _Command("console", "console_command", "everlog console --url http://127.0.0.1:4000"),
    "verify": _Command("verify", "verify_command", "everlog verify ./topics-data"),
    "repair": _Command("repair", "repair_command", "everlog repair --accept-loss ./topics-data"),
    "backup": _Command("backup", "backup_command", "everlog backup ./topics-data --to s3://bucket/backup"),
    "restore": _Command("backup", "restore_command", "everlog restore ./new-data --from s3://bucket/backup"),
    "standby": _Command("backup", "standby_command", "everlog standby ./copy --from s3://bucket/backup"),
    "promote": _Command("backup", "promote_command", "everlog promote ./copy --from s3://bucket/backup"),
    "status": _Command("status", "status_command", "everlog status --url http://127.0.0.1:4000"),
    "top": _Command("status", "top_command", "everlog top --interval 2"),
    "config": _Command("context", "config_command", "everlog config --json"),
    "completion": _Command("completion", "completion_command", "everlog completion bash"),
}

_PANELS: Final = {
    "Begin": ("quickstart", "serve", "console", "status", "top", "context", "config", "completion"),
    "Topics and jobs of a server": ("topic", "jobs", "schedule", "router", "consumer", "key"),
    "Queues of this machine": ("queue", "bridge", "archive"),
    "Market data": ("simulate", "import", "export", "feed", "replay", "book", "features", "symbols"),
    "Spark": ("pipeline",),
    "Checks and copies": ("audit", "verify", "repair", "backup", "restore", "standby", "promote"),
}
"""The commands as help lists them."""

NOUNS: Final = tuple(noun for nouns in _PANELS.values() for noun in nouns)
"""What can follow `everlog`."""


class _InOrder(TyperGroup):
    """Commands and groups as `_PANELS` has them; the library lists the commands first."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [noun for noun in NOUNS if noun in self.commands]


HELP_OPTIONS: Final = {"help_option_names": ["-h", "--help"]}

GREETING: Final = """\
everlog {version}: an ordered log that never loses anything silently.

  everlog quickstart                                a server and programs to change, all running

Or step by step, with two terminals:
  everlog serve --memory                            run a server that keeps nothing
  everlog topic append orders -d '{{"id": 1}}'        write a record
  everlog topic tail -f orders                      read what comes
  everlog status                                    see how the server is

  everlog serve --data-dir ./topics-data            keep the records
  everlog simulate --queue ./queue --events 1000    or fill a queue on this machine
  everlog queue tail -f ./queue                     and read it, without any server

{name} -h lists all commands, and -h behind a command explains it.
"""
"""What `everlog` alone prints."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"everlog {everlog.__version__}")
        raise typer.Exit


def everlog_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Work with everlog's queues and topics from the command line."""


def command_line(nouns: Iterable[str] = NOUNS) -> typer.Typer:
    """Return `everlog` with these nouns."""
    panels = {noun: panel for panel, members in _PANELS.items() for noun in members}
    line = typer.Typer(
        cls=_InOrder,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings=HELP_OPTIONS,
    )
    line.callback(epilog="Example: everlog queue tail -f ./queue")(everlog_command)
    for noun in nouns:
        if noun in _GROUPS:
            group = output.name_values(import_module(f"everlog.cli.{_GROUPS[noun]}").app)
            line.add_typer(group, name=noun, rich_help_panel=panels[noun])
        else:
            command = _COMMANDS[noun]
            function = getattr(import_module(f"everlog.cli.{command.module}"), command.function)
            epilog = f"Example: {command.example}"
            line.command(noun, epilog=epilog, rich_help_panel=panels[noun])(function)
    return output.name_values(line)


@functools.cache
def _whole() -> typer.Typer:
    return command_line()


def __getattr__(name: str) -> Any:
    if name == "app":
        return _whole()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _words_to_complete(environment: Mapping[str, str]) -> list[str]:
    """The words before the cursor, without `everlog`, as the script of a shell gives them."""
    text = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS") or ""
    # The last word may be half typed; then it is no noun yet.
    return text.split()[1:] if text[-1:].isspace() else text.split()[1:-1]


def main(name: str = "everlog") -> None:
    """Run `everlog`; `name` is what the user typed to get here."""
    asked = sys.argv[1:2]
    if is_completing := VARIABLE in os.environ:
        completion_init()
        asked = _words_to_complete(os.environ)[:1]
    if not asked and not is_completing:
        output.run_greeting(GREETING.format(version=everlog.__version__, name=name))
    # Options may come first, and a noun may be misspelt: then all of them are needed for the answer.
    if asked == ["--version"]:
        line = command_line(())
    else:
        line = command_line(asked) if asked and asked[0] in NOUNS else _whole()
    output.run(line, name)
