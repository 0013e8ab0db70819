"""Commands of the pipeline: wrong arguments are refused before a session starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from typer.testing import CliRunner

from everlog.cli import pipeline
from everlog.errors import DataLost, InvalidConfig


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
        (("audit", "--lake", "l", "--topic", "t"), "needs --url"),
        (("replay", "--queue", "q", "--lake", "l", "--reader", "r"), "need --follow or --live"),
        (("features", "--queue", "q", "--lake", "l", "--bars", "time"), "--bars is 'time'"),
        (("features", "--queue", "q", "--lake", "l", "--bars", "volume:-1"), "--bars is 'volume:-1'"),
        (("compact", "--lake", "absent"), "there is no table 'records'"),
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


def test_an_error_in_a_trace_of_spark_becomes_one_line() -> None:
    trace = "Job aborted:\nTraceback\neverlog.errors.DataLost: records 3 to 60 are lost (cap)\n\tat x"
    found = pipeline._own_error(PySparkException(trace))
    assert isinstance(found, DataLost)
    assert str(found) == "records 3 to 60 are lost (cap)"
    assert pipeline._own_error(PySparkException("something else")) is None
    assert pipeline._own_error(ValueError("everlog.errors.DataLost: no")) is None
