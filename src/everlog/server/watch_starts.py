"""Where a watch begins: from the entries of a request to a cursor and options for each topic.

Owns what an entry may say (a seq, a time, the head, a consumer, a filter) and what a name that ends in `*`
stands for. Watch sessions and WebSockets begin with the same rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from everlog.errors import TopicNotFound
from everlog.server.app import App
from everlog.server.auth import Key, allows_name
from everlog.server.bodies import WatchedBody, check_counts, filter_of
from everlog.server.errors import ApiError, from_engine, invalid
from everlog.server.fan_out import ReadOptions
from everlog.topics import Engine, TopicState
from everlog.topics.jobs.steps import Steps

TOPICS_MAX: Final = 256
"""Entries of one watch."""
MATCHED_MAX: Final = 10_000
"""Topics of one watch that names patterns."""
STEP_TOPICS: Final = 64
"""Topics that are looked at before other requests get their turn."""
PART_TOPICS: Final = 512
"""Topics that are followed and answered before other requests get their turn: two milliseconds."""
_json = msgspec.json.Encoder()


class WatchStart(NamedTuple):
    """Where reading one topic begins, and what is read of it."""

    state: TopicState
    seq: int
    options: ReadOptions
    consumer: str | None = None
    """Whose cursor it is."""


class Pattern(NamedTuple):
    """A name that ends in `*`: topics that begin with `prefix`, also those that appear later."""

    prefix: str
    options: ReadOptions


class Resolved(NamedTuple):
    """What a watch follows."""

    starts: dict[str, WatchStart]
    patterns: tuple[Pattern, ...]


def start_parts(resolved: Resolved) -> Iterator[dict[str, WatchStart]]:
    """The starts in parts of at most `PART_TOPICS`, each of which is little work for one step."""
    starts = iter(resolved.starts.items())
    while part := dict(islice(starts, PART_TOPICS)):
        yield part


def positions_answer(part: Mapping[str, WatchStart]) -> bytes:
    """Where reading begins in each of these topics: the members of an object."""
    answer = {
        name: {
            "from_seq": start.seq,
            "head_seq": start.state.head_seq,
            "earliest_seq": start.state.earliest_seq,
        }
        for name, start in part.items()
    }
    return _json.encode(answer)[1:-1]


def is_pattern(name: str) -> bool:
    """Whether an entry names a prefix instead of a topic."""
    return name.endswith("*")


def _check_entry(key: Key | None, name: str, entry: WatchedBody) -> None:
    """Refuse an entry that contradicts itself or that the key may not ask for."""
    check_counts(entry)
    _check_start(name, entry)
    if key is None or not key.prefixes:
        return
    prefix = name[:-1].encode("utf-8", "surrogatepass") if is_pattern(name) else None
    if not (allows_name(key, name) if prefix is None else _overlaps(key, prefix)):
        raise ApiError(403, "forbidden", f"this key may not use the name {name!r}", {"topic": name})


def _overlaps(key: Key, prefix: bytes) -> bool:
    """Whether the key may touch any topic with this prefix; of the others it gets none."""
    return any(allowed.startswith(prefix) or prefix.startswith(allowed) for allowed in key.prefixes)


def _check_start(name: str, entry: WatchedBody) -> None:
    given = {
        "from_seq": entry.from_seq is not msgspec.UNSET,
        "tail": entry.tail,
        "from_time_ms": entry.from_time_ms is not None,
        "consumer": entry.consumer is not None,
    }
    words = [word for word, is_given in given.items() if is_given]
    if len(words) > 1 and words != ["from_seq", "tail"]:  # these two were always allowed; tail wins
        raise invalid(f"{name!r} has {' and '.join(words)}; a watch begins at one of them")
    if is_pattern(name) and entry.consumer is not None:
        raise invalid(f"{name!r} with a consumer; a consumer belongs to one topic, name that")


class Resolution:
    """Checks the entries of a watch and finds where each topic that they name or match begins, in steps."""

    def __init__(
        self,
        app: App,
        key: Key | None,
        wanted: Mapping[str, WatchedBody],
        options: ReadOptions,
        *,
        is_lenient: bool,
    ) -> None:
        most = MATCHED_MAX if any(map(is_pattern, wanted)) else TOPICS_MAX
        if not 1 <= len(wanted) <= most:
            raise invalid(f"a watch of {len(wanted)} topics; name 1 to {most}")
        self._app = app
        self._key = key
        self._wanted = wanted
        self._options = options
        self._starts: dict[str, WatchStart] = {}
        self._patterns: list[Pattern] = []
        self._is_lenient = is_lenient

    def steps(self) -> Steps[Resolved]:
        """Find the starts; a step looks at `STEP_TOPICS` topics."""
        for number, (name, entry) in enumerate(self._wanted.items(), start=1):
            _check_entry(self._key, name, entry)
            if is_pattern(name):
                self._patterns.append(Pattern(name[:-1], _options_of(entry, self._options)))
            if number % STEP_TOPICS == 0:
                yield None
        yield from self._find()
        for pattern in self._patterns:
            yield from self._match(pattern)
        return Resolved(self._starts, tuple(self._patterns))

    def _find(self) -> Steps[None]:
        """Find the starts of the topics that are named."""
        absent: ApiError | None = None
        for number, (name, entry) in enumerate(self._wanted.items(), start=1):
            if number % STEP_TOPICS == 0:
                yield None
            engine = self._app.ready_engine()
            try:
                if not is_pattern(name):
                    options = _options_of(entry, self._options)
                    self._starts[name] = _start(engine, engine.state(name, touch=False), entry, options)
            except TopicNotFound as error:
                absent = absent or from_engine(error, name)
        if absent is not None and not (self._is_lenient and (self._starts or self._patterns)):
            raise absent

    def _match(self, pattern: Pattern) -> Steps[None]:
        """Find the starts of the topics that a pattern matches."""
        entry = self._wanted[pattern.prefix + "*"]
        after: str | None = None
        while True:
            engine = self._app.ready_engine()
            page = engine.topics(pattern.prefix, after, STEP_TOPICS)
            for state in page:
                if state.topic not in self._starts and allows_name(self._key, state.topic):
                    self._starts[state.topic] = _start(engine, state, entry, pattern.options)
            if len(self._starts) > MATCHED_MAX:
                raise invalid(
                    f"the patterns match more than {MATCHED_MAX} topics; name a longer prefix, or watch twice"
                )
            if len(page) < STEP_TOPICS:
                return
            after = page[-1].topic
            yield None


def _options_of(entry: WatchedBody, options: ReadOptions) -> ReadOptions:
    selection = filter_of(entry.filter)
    return options if selection is None else options._replace(filter=selection)


def _start(engine: Engine, state: TopicState, entry: WatchedBody, options: ReadOptions) -> WatchStart:
    if entry.consumer is not None:
        # What the entry does not say is as the consumer's own reads have it.
        reading = engine.consumers.position(state.topic, entry.consumer)
        options = options._replace(
            nodes=options.nodes or tuple(sorted(set(reading.nodes))), filter=options.filter or reading.filter
        )
        return WatchStart(state, reading.cursor, options, entry.consumer)
    if entry.from_time_ms is not None:
        return WatchStart(state, engine.first_of_time(state.topic, entry.from_time_ms), options)
    return WatchStart(state, state.head_seq if entry.tail else entry.cursor, options)


def pattern_of(patterns: tuple[Pattern, ...], name: str) -> Pattern | None:
    """The first pattern that matches a topic."""
    return next((pattern for pattern in patterns if name.startswith(pattern.prefix)), None)
