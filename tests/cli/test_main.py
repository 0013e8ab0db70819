"""The top level of `everlog`: what is loaded for which noun, and where its help may go."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from everlog.cli import main
from tests.support.command_lines import command_line, on_terminal, run
from tests.support.forked_commands import ForkedCommand
from tests.support.processes import PATIENCE_S

LOADED = """
import sys
from everlog.cli import main
main.command_line([{noun!r}])
print(*(name for name in {names!r} if name in sys.modules))
"""


def loaded_for(noun: str, *names: str) -> list[str]:
    """Which of these modules are loaded to show what can be done with a noun."""
    program = LOADED.format(noun=noun, names=names)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return ended.stdout.split()


@pytest.mark.parametrize("noun", ["topic", "jobs", "router"])
def test_talking_to_a_server_loads_neither_queues_nor_the_engine(noun: str) -> None:
    assert loaded_for(noun, "numpy", "everlog.queue", "everlog.topics", "everlog.market") == []


def test_looking_at_queues_loads_neither_topics_nor_books() -> None:
    assert loaded_for("queue", "everlog.topics", "everlog.market", "everlog.server") == []


def test_the_whole_command_line_has_every_noun() -> None:
    whole = main.typer.main.get_command(main.app)
    assert set(whole.commands) == set(main.NOUNS)  # type: ignore[attr-defined]
    assert not hasattr(main, "nothing")


def test_help_begins_with_the_command_to_begin_with_and_keeps_what_belongs_together() -> None:
    shown = run("everlog", "-h").stdout
    nouns = [line.split()[1] for line in shown.splitlines() if re.match(r"│ [a-z]", line)]
    assert nouns == list(main.NOUNS)
    assert nouns[0] == "quickstart"
    assert shown.index("─ Begin ") < shown.index("─ Market data ") < shown.index("─ Checks and copies ")


def test_a_misspelt_noun_gets_a_suggestion() -> None:
    ended = run("everlog", "quue")
    assert ended.returncode == 2
    assert "Did you mean 'queue'?" in ended.stderr


def test_help_fills_the_terminal_whatever_its_width_in_the_code() -> None:
    code, shown = on_terminal("everlog", "verify", "--help", columns=200)
    assert code == 0
    paragraph = next(line for line in shown.splitlines() if "Exit code 1 if" in line)
    assert "and the next start repairs; they do not count as wrong." in paragraph


def written_to(output: IO[bytes] | None, *words: object, **more: Any) -> tuple[int, str]:
    """Run `everlog` with its output going there; its exit code and what it says of it."""
    ended = subprocess.run(
        command_line("everlog", *words),
        stdout=output,
        stderr=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
        **more,
    )
    return ended.returncode, ended.stderr.decode()


@pytest.mark.parametrize("words", [("--help",), ("queue", "--help"), ("topic", "ls", "--help")])
def test_help_that_is_not_read_to_its_end_is_no_error(words: tuple[str, ...]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as closed:
        assert written_to(closed, *words) == (0, "")


@pytest.mark.parametrize("words", [("--help",), ("queue", "ls"), ("queue", "ls", "--json")])
def test_a_full_disk_behind_the_output_is_told_in_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        code, told = written_to(full, *words, cwd=tmp_path)
    assert code == 1
    assert "No space left on device" in told
    assert told.count("\n") == 1


def test_closed_output_counts_as_a_reader_that_has_gone(tmp_path: Path) -> None:
    assert written_to(None, "queue", "ls", cwd=tmp_path, preexec_fn=lambda: os.close(1)) == (0, "")


# --- Greeting, usage errors, completion ------------------------------------------------------------------


@pytest.mark.parametrize("words", [("everlog",), (sys.executable, "-m", "everlog")])
def test_without_words_it_says_what_to_do(words: tuple[str, ...]) -> None:
    program = command_line(*words) if words[0] == "everlog" else list(words)
    ended = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"everlog {main.everlog.__version__}" in ended.stdout
    for line in ended.stdout.splitlines():
        if line.startswith("  everlog "):
            assert line.split()[1] in main.NOUNS
    assert "everlog serve" in ended.stdout


def test_python_with_the_module_runs_the_same_commands() -> None:
    program = [sys.executable, "-m", "everlog", "--version"]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert ended.stdout == f"everlog {main.everlog.__version__}\n"


@pytest.mark.parametrize("words", [("queue", "ls"), ("topic", "ls", "--json"), ("nothing",)])
def test_a_copy_of_a_process_that_tests_start_does_what_the_installed_command_does(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERLOG_URL", "http://127.0.0.1:1")
    installed = subprocess.run(
        command_line("everlog", *words), capture_output=True, timeout=PATIENCE_S, check=False
    )
    copied = ForkedCommand(command_line("everlog", *words))
    assert copied.communicate(PATIENCE_S) == (installed.stdout, installed.stderr)
    assert copied.returncode == installed.returncode


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("topic", "lss", "--json"), "lss"),
        (("topic", "ls", "--no-such", "--json"), "--no-such"),
        (("topic", "show", "--json"), "TOPIC"),
        (("topic", "read", "t", "--from", "x", "--json"), "--from"),
        (("nothing", "--json"), "nothing"),
        (("topic", "read", "t", "--count", "few", "--json"), "'few' is not a whole number"),
        (("top", "--json", "--rows", "0"), "'0' should be greater than or equal to 1"),
        (("top", "--json", "--interval", "soon"), "'soon' is not a number"),
    ],
)
def test_wrong_usage_is_a_json_object_if_json_is_asked_for(words: tuple[str, ...], named: str) -> None:
    ended = run("everlog", *words)
    assert (ended.returncode, ended.stdout) == (2, "")
    error = json.loads(ended.stderr)["error"]
    assert error["code"] == "usage"
    assert named in error["message"]


def completed(shell: str, line: str) -> list[str]:
    """What a shell would offer at the end of a line, asked as its script asks."""
    environment = {"_EVERLOG_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    else:
        environment |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        ended = run("everlog")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "offered"), [("everlog rou", "router"), ("everlog topic de", "delete"), ("everlog ", "serve")]
)
def test_shells_are_told_what_can_come_next(shell: str, line: str, offered: str) -> None:
    assert any(offered in each for each in completed(shell, line))


def test_options_are_completed() -> None:
    assert "--durability" in completed("bash", "everlog topic create --dur")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_this_command(shell: str) -> None:
    script = run("everlog", "completion", shell).stdout
    assert "_EVERLOG_COMPLETE=complete_" + shell in script
    assert run("everlog", "completion", "tcsh").returncode == 2


def test_bash_completes_with_the_script() -> None:
    lines = f"""
PATH={os.path.dirname(command_line("everlog")[0])}:$PATH
eval "$(everlog completion bash)"
COMP_WORDS=(everlog topic cre) COMP_CWORD=2
_everlog_completion everlog
echo "${{COMPREPLY[@]}}"
"""
    ended = subprocess.run(
        ["bash", "-c", lines], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert ended.stdout.split() == ["create"], ended.stderr
