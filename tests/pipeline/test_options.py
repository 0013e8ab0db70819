"""Options of the Spark formats: what is valid, and what an error says."""

from __future__ import annotations

import pytest

from everlog.errors import InvalidConfig
from everlog.pipeline.options import EARLIEST, LATEST, U64_MAX, Options, Start

VALID = ("path", "startingOffsets", "partitions", "columns", "onDataLoss")


def options(**given: str) -> Options:
    """Return the options of an imaginary format."""
    return Options(given, VALID, "everlog.test")


def test_names_are_compared_without_case() -> None:
    assert options(STARTINGOFFSETS="latest").start("startingOffsets", EARLIEST) == LATEST


def test_an_unknown_option_is_refused_with_those_that_are_valid() -> None:
    with pytest.raises(InvalidConfig, match=r"'patch'.*columns, onDataLoss, partitions, path"):
        options(patch="x")


def test_an_option_that_is_needed_is_named() -> None:
    with pytest.raises(InvalidConfig, match="needs the option 'path'"):
        options().text("path")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ('{"seq": 17}', Start(seq=17)),
        ('{"ts_ns":5}', Start(ts_ns=5)),
        ('{"seq": 0}', Start(seq=0)),
    ],
)
def test_a_place_is_a_word_a_seq_or_a_time(text: str, place: Start) -> None:
    assert options(startingOffsets=text).start("startingOffsets", EARLIEST) == place


@pytest.mark.parametrize(
    "text", ["first", "{}", '{"seq": -1}', '{"seq": 1, "ts_ns": 2}', '{"page": 1}', "17", '{"seq": 1.5}']
)
def test_a_place_that_is_none_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r'earliest, latest, \{"seq": 17\}'):
        options(startingOffsets=text).start("startingOffsets", EARLIEST)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", str(U64_MAX + 1), "٣"])
def test_a_number_out_of_its_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="a whole number from 1"):
        options(partitions=text).whole("partitions", least=1)


def test_a_choice_has_its_first_value_as_default() -> None:
    assert options().choice("onDataLoss", ("fail", "record")) == "fail"
    with pytest.raises(InvalidConfig, match="one of fail, record"):
        options(onDataLoss="ignore").choice("onDataLoss", ("fail", "record"))


def test_names_are_separated_by_commas() -> None:
    assert options(columns=" seq, ts ,,").names("columns") == ("seq", "ts")
    assert options().names("columns") == ()
