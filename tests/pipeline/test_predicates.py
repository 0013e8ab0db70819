"""What is understood of a condition in SQL: terms joined by `and`, and nothing where it is not clear."""

from __future__ import annotations

import pytest

from everlog.pipeline.predicates import Term, bounds_of, choices_of, known_terms, names_in, prefix_of


@pytest.mark.parametrize(
    ("where", "low", "high"),
    [
        ("seq < 10", None, 9),
        ("SEQ <= 10 AND seq > -3", -2, 10),
        ("10 > seq and (5 <= `seq`)", 5, 9),
        ("seq between 3 and 7 and seq between 5 and 9", 5, 7),
        ("seq in (8, 2, 5) and payload is not null", 2, 8),
        ("seq == 4", 4, 4),
        ("lower(tag) = 'x and seq < 3' and seq < 5", None, 4),
        ("(seq < 9 or type_id = 1) and seq >= 2", 2, None),
    ],
)
def test_bounds_of_a_number_are_the_tightest_of_all_terms(
    where: str, low: int | None, high: int | None
) -> None:
    assert bounds_of(known_terms(where), "seq") == (low, high)


@pytest.mark.parametrize(
    "where",
    [
        "seq < 10 or type_id = 2",
        "not seq < 10",
        "not (seq < 10)",
        "(seq < 10) = false",
        "seq < 10 = false",
        "seq < 10 + 5",
        "seq + 1 < 10",
        "-seq < 10",
        "5 - 1 < seq - 3",
        "abs(seq) < 10",
        "m.seq < 10",
        "seq not in (1, 2)",
        "seq in (1, null)",
        "seq in (1, 2) = false",
        "seq <=> 3",
        "seq != 3",
        "seq < 10L",
        "seq < 1e1",
        "seq < 10.5",
        "seq < '10'",
        "seq between 1 and type_id",
        "type_id + 1 between 1 and seq < 3",
        "type_id between symmetric 5 and seq < 3",
        "case when type_id = 1 and seq < 3 then true end",
        "type_id = 1 -- and\n and seq < 3",
        'tag = "x" and seq < 3',
        "tag = 'it\\'s' and seq < 3",
    ],
)
def test_of_what_is_not_a_plain_bound_nothing_is_known(where: str) -> None:
    assert bounds_of(known_terms(where), "seq") == (None, None)


def test_lists_prefixes_and_times_are_known() -> None:
    terms = known_terms("tag like 'eu-%' and type_id in (2, 0) and ts >= timestamp '2026-01-01 00:00:00'")
    assert prefix_of(terms, "tag") == "eu-"
    assert choices_of(terms, "type_id") == (2, 0)
    assert terms[-1] == Term("ts", ">=", ("2026-01-01 00:00:00",), is_time=True)


@pytest.mark.parametrize("pattern", ["%", "a%b%", "a_%", "%a", "a", "a\\\\%"])
def test_other_patterns_are_no_prefix(pattern: str) -> None:
    assert prefix_of(known_terms(f"tag like '{pattern}'"), "tag") is None


def test_names_are_found_outside_of_texts() -> None:
    assert names_in("lower(Tag) = 'kind' and `seq` < 3") == {"lower", "tag", "and", "seq", "3"}
