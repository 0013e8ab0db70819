"""The error hierarchy: names and codes that users and scripts rely on."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import pytest

from everlog import errors
from everlog.errors import EverlogError

# Codes appear in `--json` output and names in `except` clauses: a change here breaks users.
CODES = {
    "EverlogError": "error",
    "Io": "io",
    "QueueNotFound": "queue_not_found",
    "Corrupt": "corrupt",
    "CorruptMetadata": "corrupt_metadata",
    "DamagedData": "damaged_data",
    "TopicDamaged": "topic_damaged",
    "NotReady": "not_ready",
    "Unsupported": "unsupported",
    "UnsupportedVersion": "unsupported_version",
    "PayloadTooLarge": "payload_too_large",
    "InvalidTypeId": "invalid_type_id",
    "InvalidTimestamp": "invalid_timestamp",
    "QueueFull": "queue_full",
    "SegmentNotPrepared": "segment_not_prepared",
    "LateData": "late_data",
    "WriterAlreadyActive": "writer_already_active",
    "ReaderAlreadyActive": "reader_already_active",
    "SegmentMissing": "segment_missing",
    "InvalidName": "invalid_name",
    "InvalidPartition": "invalid_partition",
    "InvalidConfig": "invalid_config",
    "ConcurrentUse": "concurrent_use",
    "Closed": "closed",
    "StorageFailed": "storage_failed",
    "ReadOnly": "read_only",
    "OutcomeUnknown": "outcome_unknown",
    "Superseded": "superseded",
    "ObjectStoreFailed": "object_store_failed",
    "ObjectNotFound": "object_not_found",
    "ObjectTooShort": "object_too_short",
    "ObjectExists": "object_exists",
    "ObjectChanged": "object_changed",
    "DataDirInUse": "data_dir_in_use",
    "InvalidRequest": "invalid_request",
    "InvalidRecord": "invalid_record",
    "BatchTooLarge": "batch_too_large",
    "RecordTooLarge": "record_too_large",
    "TopicNotFound": "topic_not_found",
    "NotAQueue": "not_a_queue",
    "TopicIncompatible": "topic_exists_incompatible",
    "TopicNotEmpty": "topic_not_empty",
    "TopicFull": "topic_full",
    "ConsumerNotFound": "consumer_not_found",
    "JobNotFound": "job_not_found",
    "ScheduleNotFound": "schedule_not_found",
    "CursorBackwards": "cursor_backwards",
    "Fenced": "fenced",
    "RouterNotFound": "router_not_found",
    "RouterCycle": "router_cycle",
    "RouterIncompatible": "router_incompatible",
    "DataLost": "data_lost",
    "LimitReached": "throttled",
    "InvalidSource": "invalid_source",
    "BookGap": "book_gap",
    "SnapshotGap": "snapshot_gap",
}

# Which `except` clause catches what besides `except EverlogError`.
PARENTS = {
    "QueueNotFound": "Io",
    "CorruptMetadata": "Corrupt",
    "DamagedData": "Corrupt",
    "TopicDamaged": "Corrupt",
    "StorageFailed": "Io",
    "ReadOnly": "StorageFailed",
    "OutcomeUnknown": "ReadOnly",
    "Superseded": "ReadOnly",
    "ObjectStoreFailed": "Io",
    "ObjectNotFound": "ObjectStoreFailed",
    "ObjectTooShort": "ObjectStoreFailed",
    "ObjectExists": "ObjectStoreFailed",
    "ObjectChanged": "ObjectStoreFailed",
    "InvalidRecord": "InvalidRequest",
    "BatchTooLarge": "InvalidRequest",
    "RecordTooLarge": "InvalidRequest",
}


def error_classes() -> list[Any]:
    """Every exception class that `everlog.errors` itself defines, whatever it derives from."""
    classes = (value for _, value in inspect.getmembers(errors, inspect.isclass))
    return [cls for cls in classes if issubclass(cls, BaseException) and cls.__module__ == errors.__name__]


def test_names_and_codes_are_those_of_the_pinned_table() -> None:
    assert {cls.__name__: cls.code for cls in error_classes()} == CODES


def test_no_two_errors_share_a_code() -> None:
    codes = [cls.code for cls in error_classes()]
    assert sorted(codes) == sorted(set(codes))


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
def test_every_error_is_an_everlog_error_below_its_pinned_parent(cls: type[EverlogError]) -> None:
    assert issubclass(cls, EverlogError)
    if cls is not EverlogError:
        assert cls.__base__ is getattr(errors, PARENTS.get(cls.__name__, "EverlogError"))


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
def test_every_code_is_defined_by_its_own_class_in_snake_case(cls: type[EverlogError]) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", vars(cls)["code"])


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
def test_every_error_says_what_it_means(cls: type[EverlogError]) -> None:
    # `vars`, because `__doc__` of a class without docstring would be looked up in Exception's.
    assert (vars(cls).get("__doc__") or "").strip()


def test_io_carries_the_errno_of_the_operating_system() -> None:
    error = errors.Io("cannot write control.meta", errno=28)
    assert (str(error), error.errno) == ("cannot write control.meta", 28)
    assert errors.Io("no number known").errno is None


def test_queue_not_found_is_caught_as_io() -> None:
    with pytest.raises(errors.Io):
        raise errors.QueueNotFound("no control.meta in q", errno=2)


def test_unsupported_version_carries_the_version() -> None:
    error = errors.UnsupportedVersion("segment has version 9", 9)
    assert (str(error), error.version) == ("segment has version 9", 9)


def test_queue_full_counts_the_records_that_were_appended() -> None:
    assert errors.QueueFull("full", appended=3).appended == 3
    assert errors.QueueFull("full").appended == 0


def test_every_error_survives_pickling_with_its_details() -> None:
    """Errors cross process borders: a pool or a Spark task raises them in another process."""
    original = errors.UnsupportedVersion("segment has version 9", 9)
    copy = pickle.loads(pickle.dumps(original))
    assert (type(copy), str(copy), copy.version) == (errors.UnsupportedVersion, "segment has version 9", 9)
    full = pickle.loads(pickle.dumps(errors.QueueFull("full", appended=3)))
    assert full.appended == 3
