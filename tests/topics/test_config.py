"""The configuration of a topic and of an engine: defaults, ranges, the stored form."""

from __future__ import annotations

from typing import Any

import pytest

from everlog.errors import InvalidConfig, InvalidRequest
from everlog.topics import Discard, Durability, EngineSettings, TopicConfig, TopicType

U64_FIELDS = ("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries")


def test_the_defaults_keep_everything_on_disk() -> None:
    config = TopicConfig().resolved("t")
    assert config == TopicConfig(
        type=TopicType.LOG,
        ttl_ms=0,
        cap_records=0,
        cap_bytes=0,
        discard=Discard.OLD,
        durable=False,
        durability=Durability.DISK,
        priority=None,
        auto_priority=True,
        auto_create=True,
        idempotency_window_ms=120_000,
        dedupe_node=True,
        lease_ms=30_000,
        claim_jitter_ms=0,
        max_deliveries=0,
        dead_letter=None,
        leases_durable=False,
    )


@pytest.mark.parametrize(
    ("durable", "durability", "resolved"),
    [
        (False, None, "disk"),
        (True, None, "fsync"),
        (True, "disk", "disk"),
        (True, "ephemeral", "ephemeral"),
        (False, "memory", "memory"),
        (False, "fsync", "fsync"),
    ],
)
def test_an_explicit_class_wins_over_the_flag_and_the_flag_is_made_to_agree(
    durable: bool, durability: Any, resolved: str
) -> None:
    config = TopicConfig(durable=durable, durability=durability).resolved("t")
    assert (config.durability, config.durable) == (resolved, resolved == "fsync")
    assert config.resolved("t") == config


@pytest.mark.parametrize("field", U64_FIELDS)
@pytest.mark.parametrize(("value", "is_allowed"), [(0, True), (2**64 - 1, True), (-1, False), (2**64, False)])
def test_numbers_are_unsigned_64_bit(field: str, value: int, is_allowed: bool) -> None:
    fields: dict[str, Any] = {field: value}
    config = TopicConfig(**fields)
    if is_allowed:
        assert getattr(config.resolved("t"), field) == value
    else:
        with pytest.raises(InvalidRequest, match=field):
            config.resolved("t")


@pytest.mark.parametrize(
    ("priority", "is_allowed"), [(-(2**31), True), (2**31 - 1, True), (2**31, False), (-(2**31) - 1, False)]
)
def test_a_priority_is_a_signed_32_bit_number_and_stored_as_sent(priority: int, is_allowed: bool) -> None:
    config = TopicConfig(priority=priority)
    if is_allowed:
        assert config.resolved("t").priority == priority
    else:
        with pytest.raises(InvalidRequest, match="priority"):
            config.resolved("t")


@pytest.mark.parametrize(
    ("field", "sent", "stored"),
    [
        ("lease_ms", 0, 100),
        ("lease_ms", 99, 100),
        ("lease_ms", 100, 100),
        ("lease_ms", 86_400_000, 86_400_000),
        ("lease_ms", 86_400_001, 86_400_000),
        ("claim_jitter_ms", 5000, 5000),
        ("claim_jitter_ms", 5001, 5000),
    ],
)
def test_lease_times_are_clamped_when_stored(field: str, sent: int, stored: int) -> None:
    fields: dict[str, Any] = {field: sent}
    assert getattr(TopicConfig(**fields).resolved("t"), field) == stored


@pytest.mark.parametrize("dead_letter", ["t", "", "-x", "a b", "x" * 256])
def test_a_dead_letter_topic_needs_a_valid_name_other_than_its_own(dead_letter: str) -> None:
    with pytest.raises(InvalidRequest):
        TopicConfig(dead_letter=dead_letter).resolved("t")
    assert TopicConfig(dead_letter="u").resolved("t").dead_letter == "u"


@pytest.mark.parametrize("fields", [{"durability": "paper"}, {"discard": "new"}, {"type": "stack"}])
def test_unknown_words_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        TopicConfig(**fields).resolved("t")


@pytest.mark.parametrize(
    "settings",
    [
        {"shards": 0},
        {"segment_max_events": 0},
        {"segment_max_bytes": 0},
        {"file_bytes": 0},
        {"file_bytes": 2**32},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig):
        EngineSettings(**settings)  # type: ignore[arg-type]
