"""The commands of `everlog jobs`: ls, peek, redrive. Owns what they print."""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any, Final, cast

import msgspec
import typer

from everlog.api_types import NewRecord, Record, Tombstone, TopicState
from everlog.cli.output import Table, counted, group, one_line, print_json, print_table, printable
from everlog.cli.session import Prefix, Session, beginning_with, server_command
from everlog.client import calls
from everlog.client.errors import ApiFailed
from everlog.errors import InvalidRequest

PEEK_DEFAULT: Final = 10
PEEK_MAX: Final = 1000
PAGE: Final = 100
DATA_SHOWN: Final = 80
NODE: Final = "everlog-redrive"
MARK: Final = "$dead_letter_"

app = group("Look at the job queues of a running server, and bring back what failed.", "everlog jobs ls")

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.", show_default=False)]


# -- ls ------------------------------------------------------------------------------------


@server_command(app, "ls", "everlog jobs ls --prefix mail.")
def ls_command(session: Session, prefix: Prefix = "") -> None:
    """List the queues of the server: jobs that are ready, leased, or were given up."""
    queues = _queues(session, prefix)
    columns = ("queue", "ready>", "in flight>", "delayed>", "dead lettered>", "dead letters go to")
    rows = [
        (
            printable(queue["queue"]),
            *(str(queue[name]) for name in ("ready", "in_flight", "delayed", "dead_lettered")),
            printable(queue["dead_letter"] or "-"),
        )
        for queue in queues
    ]
    session.list("queues", queues, columns, rows, beginning_with(prefix))


def _queues(session: Session, prefix: str) -> list[dict[str, Any]]:
    """The job queues by name. The list of topics does not say which they are, so each state is requested."""
    queues = []
    for listed in session.client.topics(prefix or None):
        try:
            state = session.client.topic(listed.topic, touch=False)
        except ApiFailed as error:
            if error.code != "topic_not_found":
                raise
            continue  # deleted meanwhile
        if state.queue is not None:
            queues.append(_summary(state))
    return queues


def _summary(state: TopicState) -> dict[str, Any]:
    queue = state.queue
    assert queue is not None, "the topic is a job queue"
    return {
        "queue": state.topic,
        **msgspec.to_builtins(queue),
        "delayed": max(0, state.count - queue.ready - queue.in_flight),
        "dead_letter": state.config.dead_letter,
    }


# -- peek ----------------------------------------------------------------------------------


@server_command(app, "peek", "everlog jobs peek mail --count 3")
def peek_command(
    session: Session,
    queue: QueueName,
    count: Annotated[
        int, typer.Option("--count", "-c", min=1, max=PEEK_MAX, help="How many jobs.")
    ] = PEEK_DEFAULT,
) -> None:
    """Show the oldest jobs of a queue without claiming them. Some of them may be leased right now."""
    state = session.client.topic(queue, touch=False)
    if state.queue is None:
        raise InvalidRequest(f"{queue} is a log, not a queue; `everlog topic read` shows its records")
    summary = _summary(state)
    wanted = calls.diff(queue, limit=count, include_tags=True)
    if session.as_json:
        page = session.client.call(wanted.reading(dict[str, Any]))
        print_json({**summary, "jobs": page["records"]})
        return
    counts = (f"{summary[name]} {name.replace('_', ' ')}" for name in ("ready", "in_flight", "delayed"))
    print(f"{printable(queue)}: {', '.join(counts)}")
    jobs = session.client.call(wanted).records
    if jobs:
        rows = [(str(job.seq), _time(job.ts_ms), printable(job.tag or "-"), _cut(job)) for job in jobs]
        print_table(Table("oldest jobs", ("seq>", "since", "tag", "data"), rows))


def _time(ts_ms: int) -> str:
    return datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")


def _cut(job: Record) -> str:
    text = one_line(msgspec.json.encode(job.data).decode())
    return text if len(text) <= DATA_SHOWN else text[: DATA_SHOWN - 1] + "…"


# -- redrive -------------------------------------------------------------------------------


class Letter(msgspec.Struct):
    """A dead letter, as reading or claiming it gives it; what is sent again is the text that was stored."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    tag: str | None = msgspec.field(name="$tag", default=None)
    node: str | None = msgspec.field(name="$node", default=None)
    meta: dict[str, msgspec.Raw] = {}
    lease_id: str = ""

    def source(self) -> str | None:
        """The queue that gave it up; None if nothing says so."""
        text = self.meta.get(f"{MARK}from")
        return None if text is None else msgspec.json.decode(text, type=str)

    def again(self) -> NewRecord:
        """The job as it was before it was given up."""
        meta = {name: value for name, value in self.meta.items() if not name.startswith(MARK)}
        return NewRecord(self.data, self.tag, self.node, cast(dict[str, Any], meta) or None)


class _Letters(msgspec.Struct):
    """A page of letters, read or claimed."""

    records: list[Letter] = []
    claimed: list[Letter] = []
    tombstone: Tombstone | None = None


@server_command(app, "redrive", "everlog jobs redrive mail.dead --max 100")
def redrive_command(
    session: Session,
    dead_letters: Annotated[
        str,
        typer.Argument(metavar="DEAD_LETTER_TOPIC", help="Where the given-up jobs are.", show_default=False),
    ],
    to: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Send all of them there, not to where they were.")
    ] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Bring back so many at most.")] = None,
) -> None:
    """Bring given-up jobs back to their queues, oldest first, and delete them here.

    A job is deleted here only after its queue has taken it, and taken once if the command is run again.
    """
    state = session.client.topic(dead_letters, touch=False)
    redrive = _Redrive(session, dead_letters, to, most)
    try:
        if state.queue is None:
            redrive.from_log()
        else:
            redrive.from_queue()
    finally:
        redrive.report()


class _Redrive:
    """Brings the letters of one topic back to their queues."""

    def __init__(self, session: Session, topic: str, to: str | None, most: int | None) -> None:
        self._session = session
        self._client = session.client
        self._topic = topic
        self._to = to
        self._most = most
        self._done: Counter[str] = Counter()

    def _limit(self) -> int:
        """How many letters the next page may have; 0 at the end."""
        return PAGE if self._most is None else min(PAGE, self._most - self._done.total())

    def _read(self, from_seq: int, limit: int) -> _Letters:
        wanted = calls.diff(self._topic, from_seq, limit=limit, include_tags=True)
        return self._client.call(wanted.reading(_Letters))

    def from_log(self) -> None:
        """Letters go in the order of seq, so that all below the last one can be deleted."""
        while limit := self._limit():
            page = self._read(0, limit)
            if not page.records:
                return
            gap = page.tombstone
            if gap is not None and not self._done:
                lost = f"records {gap.gap_from} to {gap.gap_to} of {self._topic}"
                detail = msgspec.to_builtins(gap)
                self._session.warn("gap", f"{lost} were lost before they were brought back", detail)
            last_seq = 0
            try:
                for letter in page.records:
                    self._send(letter)
                    last_seq = letter.seq
            finally:
                if last_seq:
                    self._client.delete_records(self._topic, before_seq=last_seq + 1)

    def from_queue(self) -> None:
        """Letters are claimed, so that no worker has them at the same time."""
        for letter in self._read(0, 1).records:
            self._target(letter)  # a claim counts as a delivery, so jobs that are not letters are left alone
        while limit := self._limit():
            claimed = self._client.call(calls.claim(self._topic, NODE, limit).reading(_Letters)).claimed
            if not claimed:
                return
            nodes = self._nodes(claimed[0].seq, claimed[-1].seq)
            sent = 0
            try:
                for letter in claimed:
                    letter.node = nodes.get(letter.seq)
                    self._send(letter)
                    sent += 1
            finally:
                finished, rest = claimed[:sent], claimed[sent:]
                if finished:
                    self._client.ack(self._topic, NODE, _seqs(finished), lease_ids=_leases(finished))
                if rest:
                    self._client.nack(self._topic, NODE, _seqs(rest), lease_ids=_leases(rest))

    def _nodes(self, first_seq: int, last_seq: int) -> dict[int, str | None]:
        """The nodes of the records from `first_seq` to `last_seq`, which a claim does not return."""
        nodes: dict[int, str | None] = {}
        while first_seq <= last_seq:
            page = self._read(first_seq - 1, PEEK_MAX)
            if not page.records:
                break
            nodes |= {record.seq: record.node for record in page.records}
            first_seq = page.records[-1].seq + 1
        return nodes

    def _send(self, letter: Letter) -> None:
        """Append one letter to its queue; the same letter is never taken twice."""
        target = self._target(letter)
        # Of fixed length, since names can be as long as a key may be. The time tells it from a letter that
        # had this seq before the topic was created again.
        name = f"{self._topic}\0{letter.seq}\0{letter.ts}".encode("utf-8", "surrogateescape")
        key = f"redrive-{hashlib.sha256(name).hexdigest()}"
        self._client.append_many(target, [letter.again()], idempotency_key=key, create=False)
        self._done[target] += 1

    def _target(self, letter: Letter) -> str:
        target = self._to or letter.source()
        if target is None:
            raise InvalidRequest(
                f"record {letter.seq} of {self._topic} does not say which queue it comes from; "
                "name one with --to"
            )
        return target

    def report(self) -> None:
        """Print how many jobs went to which queue."""
        done = dict(sorted(self._done.items()))
        lines = [f"{counted(n, 'job')} brought back to {printable(queue)}" for queue, n in done.items()]
        text = "\n".join(lines) or f"{printable(self._topic)}: nothing was brought back"
        self._session.report({"topic": self._topic, "redriven": self._done.total(), "queues": done}, text)


def _seqs(letters: list[Letter]) -> list[int]:
    return [letter.seq for letter in letters]


def _leases(letters: list[Letter]) -> list[str]:
    return [letter.lease_id for letter in letters]
