"""Damage at random places of every file of a queue is surfaced, and no seq is given out twice.

A queue is built, one file of it is damaged, and readers, `doctor --deep`, the audit and the writer look at
it. A plain list of what was appended is the model. Either the damage is surfaced, or it was to bytes without
a meaning: then everything is as the model says. QUEUE_DAMAGE_TRIALS sets the number of trials,
QUEUE_DAMAGE_SEED the first seed; a failure names the seed of its trial.
"""

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from everlog.bridge.audit_queue import audit_queue
from everlog.clock import SystemClock
from everlog.errors import EverlogError
from everlog.fs import OsFs
from everlog.queue import Message, Queue, layout
from everlog.queue.doctor import examine
from everlog.queue.findings import Severity
from everlog.queue.reader import copy_message
from tests.support import ring_twin
from tests.support.files import UnsyncedFs
from tests.support.queues import kill_image, segment_file

TRIALS = int(os.environ.get("QUEUE_DAMAGE_TRIALS", "120"))
SEED = int(os.environ.get("QUEUE_DAMAGE_SEED", "1"))
SEGMENT_SIZE = 4096
READER = "alpha"

KINDS: dict[str, Callable[[str], bool]] = {
    "segment": lambda name: layout.parse_segment_name(name) is not None,
    "seek index": lambda name: layout.parse_seek_index_name(name) is not None,
    "control.meta": lambda name: name == layout.CONTROL_FILE,
    "index.meta": lambda name: name == layout.INDEX_META_FILE,
    "reader meta": lambda name: name.endswith(f"{READER}.meta"),
    "lock": lambda name: name == layout.LOCK_FILE,
}


@dataclass
class Seen:
    """What was noticed of the damage, and what could still be read."""

    errors: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


def build(path: Path, rng: random.Random) -> list[Message]:
    """Make a queue of a few segments; its writer was closed or killed, after a flush or without one."""
    model = []
    work = path.with_name(f"{path.name}-work")
    settings = {"segment_size": SEGMENT_SIZE, "index_stride": 3, "fs": UnsyncedFs()}
    with Queue.open_publisher(work, **settings) as writer:  # type: ignore[arg-type]
        Queue.open_subscriber(work, READER, fs=UnsyncedFs()).close()
        for seq in range(rng.randint(20, 60)):
            payload = rng.randbytes(rng.choice([0, 1, 40, 64, 200, 700]))
            stamp, kind = rng.getrandbits(63), rng.randrange(0xFFFF)
            assert writer.append(kind, payload, stamp) == seq
            model.append(Message(seq, stamp, kind, payload))
            if rng.random() < 0.1:
                writer.flush_sync()
        if rng.random() < 0.7:
            writer.flush_sync()
        if rng.random() < 0.5:
            kill_image(work, path)
            return model
    shutil.copytree(work, path)
    return model


def damage(path: Path, rng: random.Random) -> tuple[str, str]:
    """Damage one file; returns its kind and what was done."""
    names = [str(file.relative_to(path)) for file in sorted(path.rglob("*")) if file.is_file()]
    kind = rng.choice([kind for kind, matches in KINDS.items() if any(map(matches, names))])
    file = path / rng.choice([name for name in names if KINDS[kind](name)])
    data = bytearray(file.read_bytes())
    how = rng.choice(["flip", "flip", "zero", "truncate", "lose"]) if data else "lose"
    if how == "flip":
        bit = rng.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
    elif how == "zero":
        start = rng.randrange(len(data)) // 64 * 64
        length = rng.choice([64, 512, 4096])
        data[start : start + length] = bytes(len(data[start : start + length]))
    elif how == "truncate":
        del data[rng.randrange(len(data)) :]
    if how == "lose":
        file.unlink()
    else:
        file.write_bytes(data)
    return kind, f"{how} {file.name}"


def read_everything(path: Path) -> Seen:
    """Read as a user does who notes every error and goes on behind it."""
    seen = Seen()
    try:
        with Queue.open_subscriber(path, READER, fs=UnsyncedFs()) as reader:
            for _ in range(1000):
                try:
                    while (view := reader.next()) is not None:
                        seen.messages.append(copy_message(view))
                    return seen
                except EverlogError as error:
                    seen.errors.append(f"{error.code}: {error}")
                    behind = seen.messages[-1].seq + 1 if seen.messages else 0
                    if not (reader.skip_damage() if "segment" not in error.code else reader.seek_seq(behind)):
                        return seen
    except EverlogError as error:
        seen.errors.append(f"{error.code}: {error}")
    return seen


def doctor_findings(path: Path) -> set[str]:
    """The codes of errors and warnings of a deep look."""
    results = examine(OsFs(), SystemClock(), str(path), deep=True)
    if not results:
        return {"no queue"}
    findings = [finding for result in results for finding in result.findings]
    return {finding.code for finding in findings if finding.severity is not Severity.INFO}


def is_audited_sound(path: Path) -> bool:
    try:
        return audit_queue(str(path)).is_sound
    except EverlogError:
        return False


def write_one(path: Path) -> tuple[int | None, bool]:
    """Open the writer and append: the seq, None if it was refused, and whether damage was reported."""
    try:
        with Queue.open_publisher(path, retention=False, fs=UnsyncedFs()) as writer:
            return writer.append(1, b"next"), bool(writer.recovery.damage)
    except EverlogError:
        return None, True


def run_trial(root: Path, seed: int) -> str:
    """Damage a queue and compare what everyone says with the model; returns the outcome."""
    rng = random.Random(seed)
    path = root / str(seed)
    model = build(path, rng)
    usual = doctor_findings(path)
    kind, what = damage(path, rng)
    label = f"QUEUE_DAMAGE_SEED={seed}, {what}"
    findings = doctor_findings(path) - usual
    is_sound = is_audited_sound(path)
    seen = read_everything(path)
    by_seq = {message.seq: message for message in model}
    assert all(by_seq.get(message.seq) == message for message in seen.messages), f"{label}: altered messages"
    seqs = [message.seq for message in seen.messages]
    assert seqs == sorted(set(seqs)), f"{label}: not once and in order"
    lost = len(seen.messages) < len(model)
    assert not lost or seen.errors or findings, f"{label}: {len(model) - len(seqs)} messages lost in silence"
    if lost and seen.errors:
        assert findings, f"{label}: a reader says {seen.errors}, the doctor nothing"
        # A lost first segment looks like one that retention deleted, but for the reader that stands in it.
        is_first = seen.errors[0].startswith("segment_missing")
        unnoticed = f"{label}: a reader says {seen.errors}, the audit that all is well"
        assert not is_sound or is_first or kind == "reader meta", unnoticed
    if lost and kind == "segment" and not seen.errors:
        assert not is_sound, f"{label}: readers stop early, and the audit says that all is well"
    next_seq, reported = write_one(path)
    assert next_seq is None or next_seq >= len(model), f"{label}: seq {next_seq} is given out again"
    if seen.errors or findings or reported:
        outcome = "surfaced"
    else:
        assert next_seq == len(model), f"{label}: seqs jump to {next_seq} without a word"
        outcome = "harmless"
    shutil.rmtree(root)
    root.mkdir()
    return f"{kind}: {outcome}"


def test_damage_to_any_file_is_surfaced_and_no_seq_is_given_out_again(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    root = tmp_path / "trials"
    root.mkdir()
    outcomes = Counter(run_trial(root, seed) for seed in range(SEED, SEED + TRIALS))
    print(f"seeds {SEED} to {SEED + TRIALS - 1}: {dict(sorted(outcomes.items()))}")
    record_property("trials", json.dumps(outcomes, sort_keys=True))


# -- single promises -------------------------------------------------------------------------------


def fill(path: Path, count: int, payload: bytes = b"payload") -> None:
    """Append and flush messages into one segment."""
    with Queue.open_publisher(path, segment_size=65536, retention=False) as writer:
        for seq in range(count):
            writer.append(1, payload, 1000 + seq)
        writer.flush_sync()


def test_a_zeroed_page_of_the_head_segment_after_a_flush_is_surfaced_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "q"
    fill(path, 300, b"")
    with open(segment_file(path, 0), "r+b") as file:
        file.seek(8192)
        file.write(bytes(4096))
    seen = Seen()
    with Queue.open_subscriber(path, None, "earliest") as reader:
        with pytest.raises(EverlogError, match=r"records 127 to 190 are missing; seek_seq\(191\)"):
            seen.messages.extend(copy_message(view) for view in reader)
        assert reader.skip_damage() is True
        assert [view.seq for view in reader] == list(range(191, 300)), "what is sound behind it can be read"
    assert doctor_findings(path) >= {"record_damaged"}
    assert not is_audited_sound(path)
    with Queue.open_publisher(path) as writer:
        assert [damage.segment_id for damage in writer.recovery.damage] == [0]
        assert writer.append(1, b"next") == 300
    assert not is_audited_sound(path)


def test_a_segment_that_is_not_sealed_any_more_is_damage_to_the_audit(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with Queue.open_publisher(path, segment_size=4096, retention=False) as writer:
        for _ in range(100):
            writer.append(1, b"x")
    assert is_audited_sound(path)
    data = bytearray(segment_file(path, 0).read_bytes())
    data[layout.SEG_FLAGS] ^= layout.SEG_FLAG_SEALED
    segment_file(path, 0).write_bytes(data)
    with Queue.open_subscriber(path, None, "earliest") as reader:
        assert len(list(reader)) < 100, "readers wait here for more"
    assert "segment_unsealed" in doctor_findings(path)
    audit = audit_queue(str(path))
    assert (audit.is_sound, audit.damaged) == (False, 1)
    assert "readers stop at segment 0" in audit.runs[0].problem


@pytest.mark.parametrize("byte", [4, 5, 8, 15, 16, 23, 24, 25, 26, 27, 28, 32, 63, 64])
def test_a_flipped_bit_anywhere_in_a_record_is_never_delivered(tmp_path: Path, byte: int) -> None:
    path = tmp_path / "q"
    fill(path, 5)
    data = bytearray(segment_file(path, 0).read_bytes())
    data[64 + 2 * 128 + byte] ^= 1
    segment_file(path, 0).write_bytes(data)
    for read in (lambda reader: reader.next().seq, lambda reader: reader.read_batch(10).seq.tolist()[-1]):
        with Queue.open_subscriber(path, None, "earliest") as reader:
            last = None
            with pytest.raises(EverlogError, match="offset 320 of segment 0"):
                while True:
                    last = read(reader)
            assert last == 1
    assert doctor_findings(path) >= {"record_damaged"}


def test_records_of_version_1_are_read_and_a_break_of_their_seqs_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "q"
    fill(path, 0)
    data = bytearray(segment_file(path, 0).read_bytes())
    offset = 64
    for seq in range(6):
        offset = ring_twin.append(data, offset, seq, 7, 1, b"old", version=1)
    segment_file(path, 0).write_bytes(data)
    with Queue.open_publisher(path) as writer:
        assert writer.recovery.damage == []
        assert writer.append(1, b"new") == 6
    for batches in (False, True):
        with Queue.open_subscriber(path, None, "earliest") as reader:
            found = reader.read_batch().seq.tolist() if batches else [view.seq for view in reader]
        assert found == list(range(7)), "old and new records in one segment"
    data = bytearray(segment_file(path, 0).read_bytes())
    data[64 + 3 * 128 + layout.MSG_SEQ] = 9
    segment_file(path, 0).write_bytes(data)
    for batches in (False, True):
        with Queue.open_subscriber(path, None, "earliest") as reader:
            reader.drain(3)
            with pytest.raises(EverlogError, match="offset 448 of segment 0 has seq 9, expected 3"):
                _ = reader.read_batch() if batches else reader.next()
