"""The files below deploy name metrics, settings and exit codes that exist, and are well formed."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from everlog.cli.main import app
from everlog.cli.serve import CORRUPT_EXIT_CODE, SETTINGS_EXIT_CODE
from everlog.server.settings import ServerSettings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
_METRIC = re.compile(r"\b(?:topics|process)_[a-z0-9_]+")


def known_series() -> dict[str, set[str]]:
    """The series of each metric of the reference, and their labels."""
    known: dict[str, set[str]] = {}
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", page, re.MULTILINE):
        names = {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
        known |= {key: set(re.findall(r"`(\w+)`", labels)) for key in names}
    return known


def expressions_of_dashboard() -> list[tuple[str, str]]:
    """Every expression with the legend that shows its labels."""
    board = json.loads((DEPLOY / "grafana" / "everlog.json").read_text(encoding="utf-8"))
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    return [(target["expr"], target["legendFormat"]) for panel in panels for target in panel["targets"]]


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def test_every_metric_and_label_of_the_dashboard_and_the_alerts_exists() -> None:
    known = known_series()
    shown = expressions_of_dashboard() + [(rule["expr"], rule["annotations"]["summary"]) for rule in rules()]
    assert len(shown) > 30
    for expression, text in shown:
        named = set(_METRIC.findall(expression))
        assert named <= set(known), expression
        labels = {label for name in named for label in known[name]} | {"instance"}
        assert set(re.findall(r"\{\{ ?\$?(?:labels\.)?(\w+) ?\}\}", text)) <= labels, (expression, text)


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    board = json.loads((DEPLOY / "grafana" / "everlog.json").read_text(encoding="utf-8"))
    cells = [
        (x, y)
        for panel in board["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_a_restart_is_not_tried_where_it_cannot_help() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / "everlog.service")
    codes = {int(code) for code in unit["Service"]["RestartPreventExitStatus"].split()}
    assert codes == {SETTINGS_EXIT_CODE, CORRUPT_EXIT_CODE}
    assert unit["Service"]["ExecStart"].endswith(" serve --config /etc/everlog/server.toml")


def test_every_unit_runs_a_command_that_exists_with_options_that_it_has() -> None:
    units = sorted((DEPLOY / "systemd").glob("*.service"))
    assert len(units) >= 7
    for path in units:
        (line,) = re.findall(r"^ExecStart=/opt/everlog/bin/everlog (.+)$", path.read_text(), re.MULTILINE)
        command: Any = get_command(app)
        words = line.split()
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, path.name
        assert path.stem in (DEPLOY / "README.md").read_text(), path.name


def test_every_variable_of_the_image_is_a_setting() -> None:
    image = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    named = set(re.findall(r"TOPICS_(\w+)=", image))
    known = {name.upper() for name in ServerSettings.__dataclass_fields__}
    assert named
    assert named <= known
