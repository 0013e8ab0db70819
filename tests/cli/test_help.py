"""Every command and option explains itself, and every example works."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from everlog.cli import chron_cli, main
from everlog.queue import deep_check, doctor


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """A command line and everything below it."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


EVERLOG = typer.main.get_command(main.app)
CHRON_CLI = typer.main.get_command(chron_cli.app)
ALL = dict([*commands(EVERLOG, "everlog"), *commands(CHRON_CLI, "chron-cli")])
# Others than above, which remember the names of the first help they were asked for. To build them for each of
# the cases takes most of the time.
PROGRAMS: dict[str, Any] = {
    "everlog": typer.main.get_command(main.app),
    "chron-cli": typer.main.get_command(chron_cli.app),
}

NOUNS = tuple(
    f"everlog {noun} "
    for noun in ("queue", "archive", "topic", "jobs", "schedule", "router", "consumer", "context", "key")
)


def verbs(noun: str, *names: str) -> set[str]:
    """A noun with its verbs."""
    return {f"everlog {noun}", *(f"everlog {noun} {name}" for name in names)}


def test_the_commands_are_these() -> None:
    assert set(ALL) == {
        "everlog",
        "everlog import",
        "everlog simulate",
        "everlog book",
        "everlog book plot",
        "everlog book show",
        "everlog book top",
        "everlog book watch",
        "everlog feed",
        "everlog features",
        "everlog feed rehearse",
        "everlog feed run",
        "everlog feed status",
        *(f"everlog {name}" for name in ("verify", "repair", "backup", "restore", "standby", "promote")),
        "everlog status",
        "everlog top",
        "everlog config",
        "everlog completion",
        "everlog export",
        *verbs("replay", "serve"),
        "everlog console",
        *verbs("context", "add", "ls", "rm", "use"),
        "everlog serve",
        "everlog audit",
        "everlog audit bridge",
        "everlog audit queue",
        "everlog audit topic",
        "everlog bridge",
        "everlog bridge queue-to-topic",
        "everlog bridge topic-to-queue",
        "everlog pipeline",
        "everlog pipeline archive",
        "everlog pipeline audit",
        "everlog pipeline compact",
        "everlog pipeline features",
        "everlog pipeline import",
        "everlog pipeline refine",
        "everlog pipeline repair",
        "everlog pipeline symbols",
        *verbs("symbols", "ls", "show", "refresh", "import"),
        "everlog pipeline replay",
        *verbs("jobs", "add", "ls", "peek", "show", "cancel", "retry", "pause", "resume", "purge", "redrive"),
        *verbs("schedule", "put", "ls", "show", "rm"),
        *verbs("queue", "ls", "inspect", "tail", "merge", "snapshots", "snapshotter", "doctor", "bench"),
        *verbs("archive", "tap", "run", "ls", "compress", "move", "verify", "cat", "restore"),
        *verbs("key", "new", "ls", "revoke", "reload"),
        *verbs("router", "ls", "put", "show", "rm"),
        *verbs("consumer", "acquire", "ls", "put", "show", "read", "commit", "reset", "rm"),
        "everlog topic",
        "everlog topic ls",
        "everlog topic create",
        "everlog quickstart",
        "everlog topic show",
        "everlog topic append",
        "everlog topic read",
        "everlog topic tail",
        "everlog topic latest",
        "everlog topic delete",
        "everlog topic rm",
        "chron-cli",
        "chron-cli inspect",
        "chron-cli tail",
        "chron-cli doctor",
        "chron-cli bench",
    }


@pytest.mark.parametrize("path", ALL)
def test_the_command_and_each_of_its_options_has_a_help_text_and_an_example(path: str) -> None:
    command = ALL[path]
    assert command.help
    assert command.epilog.startswith(f"Example: {path.split(maxsplit=1)[0]} ")
    for parameter in command.params:
        assert parameter.help, parameter.name


@pytest.mark.parametrize("path", [path for path, command in ALL.items() if not hasattr(command, "commands")])
def test_the_example_is_a_valid_command_line(path: str) -> None:
    command = ALL[path]
    words = shlex.split(command.epilog.removeprefix("Example: "))
    assert words[: len(path.split())] == path.split()
    command.make_context(path, words[len(path.split()) :])


@pytest.mark.parametrize("path", [path for path in ALL if path.startswith(NOUNS)])
def test_json_is_offered_everywhere(path: str) -> None:
    assert any("--json" in parameter.opts for parameter in ALL[path].params)


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("path", ALL)
def test_help_can_be_shown(
    path: str, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    name, *words = path.split()
    assert not PROGRAMS[name].main([*words, option], prog_name=name, standalone_mode=False)
    shown = capsys.readouterr().out
    assert "Example: " in shown
    # What an option takes has a name; no type of Python is shown.
    assert not re.search(
        r"<(int|str|float|bool|list|path)|\b(INTEGER|FLOAT|BOOLEAN|RANGE)\b|NoneType|(list|dict)\[",
        shown,
    )


def test_the_guide_explains_every_command_and_every_finding() -> None:
    guide = (Path(__file__).parents[2] / "docs/guide/cli.md").read_text(encoding="utf-8")
    codes = re.findall(r"^    (\w+)  +\S", f"{doctor.__doc__}{deep_check.__doc__}", re.MULTILINE)
    assert codes
    assert re.findall(r"^\| `([a-z_]+)` \| (?:error|warning|info) \|", guide, re.MULTILINE) == codes
    for path in ALL:
        if path.startswith((*NOUNS, "everlog serve")):
            assert f"`{path}" in guide
