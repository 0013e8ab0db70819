"""The pages on commands, settings and metrics say what the code says, and are committed as they are."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families

from everlog.cli import chron_cli, main
from everlog.queue import WriterConfig
from everlog.server.settings import VARIABLES, ServerSettings
from tests.support.http_cases import running
from tools.reference_pages import documents as reference
from tools.reference_pages.markdown import code, table
from tools.reference_pages.settings import SERVER_TEXTS, WRITER_TEXTS

documents = cache(reference.documents)
REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"


def rows(page: str, heading: str = "") -> list[list[str]]:
    """The cells of the first table below a heading; a whole cell of code loses its backquotes."""
    text = documents()[page].split(f"\n## {heading}\n")[1] if heading else documents()[page]
    lines = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert lines is not None
    # Bars inside a cell are escaped.
    cells = [re.split(r"(?<!\\)\|", line.strip("|")) for line in lines[0].splitlines()[2:]]
    return [[re.sub(r"^`([^`]*)`$", r"\1", cell.strip()) for cell in row] for row in cells]


# --- Settings --------------------------------------------------------------------------------------------


def test_every_setting_has_words_and_no_words_are_left_over() -> None:
    assert list(SERVER_TEXTS) == [field.name for field in dataclasses.fields(ServerSettings)]
    assert list(WRITER_TEXTS) == [field.name for field in dataclasses.fields(WriterConfig)]


def test_a_setting_stands_with_its_variable_default_and_range() -> None:
    listed = {row[0]: row[1:4] for row in rows("settings.md", "Server")}
    assert {name: row[0] for name, row in listed.items()} == VARIABLES
    assert listed["port"] == ["TOPICS_PORT", "4000", "0 to 65535"]
    assert listed["gzip"] == ["TOPICS_GZIP", "false", ""]
    assert listed["cold_dir"] == ["TOPICS_COLD_DIR", "unset", ""]
    assert listed["api_keys"] == ["TOPICS_API_KEYS", "none", ""]
    assert listed["max_topics"] == ["TOPICS_MAX_TOPICS", "100000", "at least 0"]
    # What depends on the machine is not shown as this machine has it.
    assert listed["wal_shards"][1] == "processors, at most 8"


def test_the_flags_of_the_page_are_those_of_the_command() -> None:
    command = typer.main.get_command(main.app).commands["serve"]  # type: ignore[attr-defined]
    flags = {parameter.name: parameter.opts[0] for parameter in command.params}
    listed = {row[0]: row[4] for row in rows("settings.md", "Server") if row[4]}
    assert {**listed, "config": "--config", "memory": "--memory"} == flags


# --- Metrics ---------------------------------------------------------------------------------------------


def test_every_metric_of_a_running_server_is_on_the_page_with_its_kind_and_labels() -> None:
    with running() as server:
        server.api().put("q", type="queue")
        server.api().fill("q", 1)
        text = server.api().request("GET", "/v0/metrics").text
    listed = {row[0].removesuffix("_total"): row for row in rows("metrics.md")}
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(found) == set(listed)
    for name, family in found.items():
        _, kind, labels, meaning = listed[name]
        assert kind == family.type
        assert meaning
        for sample in family.samples:
            assert {label for label in sample.labels if label != "le"} == set(re.findall(r"\w+", labels))


# --- Commands --------------------------------------------------------------------------------------------


def leaves(name: str, command: Any) -> dict[str, Any]:
    """The commands of a group by their whole names."""
    if not hasattr(command, "commands"):
        return {name: command}
    return {
        whole: leaf
        for word, member in command.commands.items()
        for whole, leaf in leaves(f"{name} {word}", member).items()
    }


COMMANDS = {
    **leaves("everlog", typer.main.get_command(main.app)),
    **leaves("chron-cli", typer.main.get_command(chron_cli.app)),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_stands_with_all_its_options_and_its_example(name: str) -> None:
    section = documents()["cli.md"].split(f"\n## {name}\n")[1].split("\n## ")[0]
    command = COMMANDS[name]
    for parameter in command.params:
        for word in (*parameter.opts, *parameter.secondary_opts):
            assert f"`{word}`" in section or parameter.param_type_name == "argument"
        assert (parameter.help or "").splitlines()[0].replace("|", "\\|") in section
    assert f"```sh\n{name} " in section


def test_values_defaults_and_variables_are_shown_as_they_are_typed() -> None:
    tail = {row[0]: row[1:] for row in rows("cli.md", "everlog queue tail")}
    assert tail["QUEUE"][:2] == ["", "required"]
    assert tail["--format"][:2] == [r"hex\|text\|json\|market", "hex"]
    assert tail["--limit"][:2] == ["`N`, at least 1", ""]
    append = {row[0]: row[1:] for row in rows("cli.md", "everlog topic append")}
    assert append["--url"][2].endswith("Also from the variable `EVERLOG_URL`.")


# --- Files -----------------------------------------------------------------------------------------------


def test_bars_and_line_breaks_stay_inside_their_cell() -> None:
    assert table(("A", "B"), [("a|b", "c\nd")]) == "| A | B |\n| --- | --- |\n| a\\|b | c d |\n"
    assert code("") == ""
