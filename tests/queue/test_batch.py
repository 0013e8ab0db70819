"""Batches: a run of messages as arrays over the mapping, without a copy where the sizes allow."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import Corrupt, Unsupported
from everlog.queue import Batch, QueueReader
from tests.support.effort import effort
from tests.support.queues import SMALL, flip, open_reader, open_writer, overwrite, segment_file

QUOTE = np.dtype([("price", "<f8"), ("size", "<u4"), ("side", "u1"), ("pad", "V3")])


def all_batches(reader: QueueReader, max_count: int = 65536) -> list[Batch]:
    """Everything that is there, batch by batch."""
    batches = []
    while len(batch := reader.read_batch(max_count)):
        batches.append(batch)
    return batches


def only(values: set[int]) -> int | None:
    """The value if there is but one."""
    return next(iter(values)) if len(values) == 1 else None


def test_the_fields_of_a_batch_are_those_of_its_messages(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", segment_size=4096) as writer, open_reader(tmp_path / "q") as reader:
        for seq in range(10):
            writer.append(seq + 3, bytes([seq]) * 8, 100 - seq)
        batch = reader.read_batch()
        assert len(batch) == 10
        assert batch.seq.tolist() == list(range(10))
        assert batch.timestamp_ns.tolist() == list(range(100, 90, -1))
        assert batch.type_id.tolist() == list(range(3, 13))
        assert batch.length.tolist() == [8] * 10
        assert batch.offset.tolist() == list(range(64, 64 + 10 * 128, 128))
        assert batch.segment_id == 0
        assert [
            array.dtype.str for array in (batch.seq, batch.timestamp_ns, batch.type_id, batch.length)
        ] == [
            "<u8",
            "<u8",
            "<u2",
            "<u4",
        ]
        assert batch.payloads.shape == (10, 8)
        assert batch.payloads.tolist() == [[seq] * 8 for seq in range(10)]
        assert [(view.seq, bytes(view)) for view in batch] == [(seq, bytes([seq]) * 8) for seq in range(10)]


def test_a_structured_view_is_the_array_that_was_appended(tmp_path: Path) -> None:
    quotes = np.zeros(20, QUOTE)
    quotes["price"] = np.arange(20) / 8
    quotes["size"] = np.arange(20)
    with open_writer(tmp_path / "q", segment_size=4096) as writer, open_reader(tmp_path / "q") as reader:
        writer.append_array(7, quotes)
        seen = reader.read_batch().view(QUOTE)
        assert seen.tolist() == quotes.tolist()
        assert seen["price"].sum() == quotes["price"].sum()


def test_arrays_are_views_of_the_mapping_and_read_only(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", segment_size=4096) as writer, open_reader(tmp_path / "q") as reader:
        writer.append_array(1, np.arange(5, dtype="<u8"))
        batch = reader.read_batch()
        view, payloads = batch.view("<u8"), batch.payloads
        for array in (batch.seq, batch.timestamp_ns, batch.type_id, view, payloads):
            assert not array.flags.owndata
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
        overwrite(segment_file(tmp_path / "q", 0), 128, (99).to_bytes(8, "little"))
        assert view[0] == 99
        assert payloads[0, 0] == 99


def test_payloads_of_different_length_are_reached_one_by_one(tmp_path: Path) -> None:
    items = [b"", b"a", b"bb" * 40, b"c" * 200]
    with open_writer(tmp_path / "q", segment_size=4096) as writer, open_reader(tmp_path / "q") as reader:
        writer.append_many(1, items, 9)
        batch = reader.read_batch()
        assert batch.length.tolist() == [len(item) for item in items]
        assert batch.seq.tolist() == [0, 1, 2, 3]
        assert batch.timestamp_ns.tolist() == [9] * 4
        assert batch.offset.tolist() == [64, 128, 256, 448]
        assert [bytes(view) for view in batch] == items
        for reach in (lambda: batch.payloads, lambda: batch.view("u1")):
            with pytest.raises(Unsupported, match="0 to 200 bytes long; iterate"):
                reach()


def test_payloads_of_different_length_in_records_of_one_size_are_told_apart(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        writer.append_many(1, [b"a", b"bb", b"ccc"])
        batch = reader.read_batch()
        assert batch.length.tolist() == [1, 2, 3]
        with pytest.raises(Unsupported, match="1 to 3 bytes long"):
            batch.payloads  # noqa: B018 - looking is what must fail


def test_a_dtype_of_another_size_is_refused(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        writer.append_many(1, [b"12345678"] * 2)
        batch = reader.read_batch()
        with pytest.raises(Unsupported, match="payloads have 8 bytes, the dtype has 4"):
            batch.view("<u4")
        assert batch.view("V8").shape == (2,)


def test_empty_payloads_make_rows_without_columns(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", segment_size=192) as writer, open_reader(tmp_path / "q") as reader:
        writer.append_many(1, [b"", b""])
        batch = reader.read_batch()
        assert batch.payloads.shape == (2, 0)
        assert batch.length.tolist() == [0, 0]
        assert [bytes(view) for view in batch] == [b"", b""]


def test_an_empty_batch_means_that_nothing_is_committed(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q"), open_reader(tmp_path / "q") as reader:
        batch = reader.read_batch()
        assert len(batch) == 0
        assert list(batch) == []
        assert [batch.seq.size, batch.timestamp_ns.size, batch.type_id.size, batch.length.size] == [0] * 4
        assert batch.payloads.shape == (0, 0)
        assert batch.view(QUOTE).shape == (0,)
        assert batch.offset.size == 0


def test_a_batch_holds_at_most_max_messages_and_consumes_no_more(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        writer.append_many(1, [b"x"] * 5)
        assert reader.read_batch(2).seq.tolist() == [0, 1]
        assert [view.seq for view in reader] == [2, 3, 4]


def test_a_batch_ends_with_its_segment_and_the_next_goes_on(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer, open_reader(tmp_path / "q") as reader:
        writer.append_many(1, [b"x"] * 20)
        assert [batch.seq.tolist() for batch in all_batches(reader)] == [
            list(range(7)),
            list(range(7, 14)),
            list(range(14, 20)),
        ]


def test_a_batch_ends_before_damage_and_the_next_reports_it(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        writer.append_many(1, [b"x"] * 5)
        flip(segment_file(tmp_path / "q", 0), 64 + 2 * 128 + 64)
        assert reader.read_batch().seq.tolist() == [0, 1]
        before = reader.position
        with pytest.raises(Corrupt, match="offset 320 of segment 0 fails its checksum"):
            reader.read_batch()
        assert reader.position == before
        reader.skip_corrupt()
        assert reader.read_batch().seq.tolist() == [3, 4]


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 128, 192])
@pytest.mark.parametrize("damaged", range(9))
def test_a_batch_ends_before_damage_wherever_it_is(tmp_path: Path, length: int, damaged: int) -> None:
    with open_writer(tmp_path / "q", segment_size=8192) as writer, open_reader(tmp_path / "q") as reader:
        writer.append_many(1, [bytes([seq]) * length for seq in range(9)])
        record_bytes = 64 + -(-length // 64) * 64
        checksum_or_last_byte = 28 if length == 0 else 64 + length - 1
        flip(segment_file(tmp_path / "q", 0), 64 + damaged * record_bytes + checksum_or_last_byte)
        sound = reader.read_batch().seq.tolist() if damaged else []
        assert sound == list(range(damaged))
        with pytest.raises(Corrupt, match="fails its checksum"):
            reader.read_batch()
        reader.skip_corrupt()
        assert reader.read_batch().seq.tolist() == list(range(damaged + 1, 9))


def test_verify_can_be_chosen_for_each_batch(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append_many(1, [b"x"] * 3)
    flip(segment_file(tmp_path / "q", 0), 128)
    with open_reader(tmp_path / "q") as reader:
        assert reader.read_batch(verify=False).seq.tolist() == [0, 1, 2]
    with open_reader(tmp_path / "q", verify=False) as reader:
        with pytest.raises(Corrupt):
            reader.read_batch(verify=True)
        assert reader.read_batch().seq.tolist() == [0, 1, 2]


@settings(max_examples=effort(60))
@given(
    sizes=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 300), st.just(SMALL - 128)), max_size=40),
    alike=st.sampled_from([1, 1, 7, 20]),
    max_count=st.one_of(st.integers(1, 12), st.just(100)),
    types=st.sampled_from([1, 9]),
)
def test_batches_hold_exactly_what_single_reads_return(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], alike: int, max_count: int, types: int
) -> None:
    path = tmp_path_factory.mktemp("batch") / "q"
    lengths = [size for size in sizes for _ in range(alike)]
    items = [np.random.default_rng(seq).bytes(length) for seq, length in enumerate(lengths)]
    with open_writer(path, retention=False) as writer:
        for seq, item in enumerate(items):
            writer.append(seq % types, item, 1000 + seq)
    with open_reader(path, None) as reader:
        batches = all_batches(reader, max_count)
        assert all(0 < len(batch) <= max_count for batch in batches)
        seen = [
            (view.seq, view.timestamp_ns, view.type_id, bytes(view)) for batch in batches for view in batch
        ]
        assert seen == [(seq, 1000 + seq, seq % types, item) for seq, item in enumerate(items)]
        for name in ("seq", "timestamp_ns", "type_id", "length"):
            fields = [int(value) for batch in batches for value in getattr(batch, name)]
            index = ("seq", "timestamp_ns", "type_id").index(name) if name != "length" else 3
            assert fields == [(*row[:3], len(row[3]))[index] for row in seen]
        for batch in batches:
            assert batch.common_length == only({len(view) for view in batch})
            assert batch.common_type_id == only({view.type_id for view in batch})
    shutil.rmtree(path)
