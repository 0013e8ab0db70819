"""Commands of the pipeline: what is wrong with their arguments is said before a session starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from everlog.cli import pipeline
from everlog.errors import InvalidConfig


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("import", "tardis-book", "file.csv"), "either --queue or --lake"),
        (("import", "tardis-book", "file.csv", "--queue", "a", "--lake", "b"), "either --queue or --lake"),
        (
            ("refine", "--queue", "q", "--to", "t", "--venue", "v", "--symbols", "@absent"),
            "cannot read the symbols in absent",
        ),
        (("archive", "--lake", "l"), "either --topic"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_once(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(pipeline.app, [*words, "--json"])
    assert result.exit_code != 0
    assert said in result.output + result.stderr


def test_symbols_are_a_list_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "symbols"
    file.write_text("BTCUSDT\nETHUSDT, SOLUSDT\n\n")
    assert pipeline._symbols(f"@{file}") == ["BTCUSDT", "ETHUSDT", "SOLUSDT"]
    assert pipeline._symbols(" BTCUSDT,ETHUSDT,") == ["BTCUSDT", "ETHUSDT"]
    with pytest.raises(InvalidConfig, match="cannot read"):
        pipeline._symbols("@")
