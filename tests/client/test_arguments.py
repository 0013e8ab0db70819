"""Wrong use of the clients: refused before anything is sent, in words that tell what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import everlog
import everlog.client
from everlog import AsyncClient, Client, Producer, Worker
from everlog.api_types import Appended
from everlog.client import RecordsLost
from everlog.client.arguments import checked_start
from everlog.errors import Closed, InvalidConfig, InvalidRecord, InvalidRequest
from everlog.testing import server
from tests.support.client_faces import face

NOWHERE = "http://127.0.0.1:1"
"""A call that sends anything there fails in another way."""


class Whole:
    """A number that is no `int`, as libraries have them."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize("start", ["earliest", "now", 0, 7])
def test_a_start_that_is_known_is_taken_as_it_is(start: Any) -> None:
    assert checked_start(start) == start


def test_a_start_may_be_any_whole_number() -> None:
    assert checked_start(Whole()) == 7


@pytest.mark.parametrize("start", ["latest", "x", -1, 1.5, None, True, b"now"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_unknown_start_is_refused_and_never_reads_nothing_silently(kind: str, start: Any) -> None:
    with face(kind, NOWHERE) as client:
        for begin in (
            lambda: client.read("t", start),
            lambda: client.watch({"t": start}),
        ):
            with pytest.raises(InvalidRequest, match="'earliest', 'now', or the seq"):
                next(begin())


def test_the_name_that_others_use_for_now_is_explained() -> None:
    with pytest.raises(InvalidRequest, match="what comes from now on is 'now'"):
        Client(NOWHERE).read("t", "latest")  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_gaps_that_would_be_silent_cannot_be_asked_for(kind: str) -> None:
    with face(kind, NOWHERE) as client:
        for begin in (lambda: client.read("t", gaps="ignore"), lambda: client.watch("t", gaps="ignore")):
            with pytest.raises(InvalidRequest, match=r"'raise' .* or 'yield'"):
                next(begin())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_setting_with_a_slip_in_its_name_is_refused_instead_of_passed_over(kind: str) -> None:
    with face(kind, NOWHERE) as client:
        for call in (
            lambda: client.put_topic("t", {"cap_record": 5}),
            lambda: client.append("t", 1, config={"cap_record": 5}),
        ):
            with pytest.raises(InvalidConfig, match=r"'cap_record' .* did you mean cap_records"):
                call()
        with pytest.raises(InvalidConfig, match="there are type, ttl_ms"):
            client.put_topic("t", {"zzz": 5})
        with pytest.raises(InvalidConfig, match="give a mapping"):
            client.put_topic("t", "fsync")


def test_a_producer_checks_its_settings_when_it_is_made() -> None:
    with pytest.raises(InvalidConfig, match="did you mean durability"):
        Producer(NOWHERE, "t", config={"durabilty": "fsync"})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_data_that_was_not_made_a_record_is_told_how_to_become_one(kind: str) -> None:
    with face(kind, NOWHERE) as client, pytest.raises(InvalidRecord, match=r"record 0 is .* NewRecord\("):
        client.append_many("t", [{"id": 1}])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Client(5), "URL is 5"),  # type: ignore[arg-type]
        (lambda: AsyncClient(None), "URL is None"),  # type: ignore[arg-type]
        (lambda: Client(NOWHERE, 5), "key must be text"),  # type: ignore[arg-type]
        (lambda: Client(NOWHERE, retry=5), "RetryPolicy"),  # type: ignore[arg-type]
        (lambda: Producer(AsyncClient(NOWHERE), "t"), "give an everlog.Client"),  # type: ignore[arg-type]
        (lambda: Worker(AsyncClient(NOWHERE), "t"), "give an everlog.Client"),  # type: ignore[arg-type]
        (lambda: Worker(Client(NOWHERE), "t", key="k"), "give it to the client"),
    ],
)
def test_what_can_never_work_is_refused_when_it_is_made(make: Callable[[], object], told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        make()


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="must be text, got 5"):
        Client(NOWHERE).topic(5)  # type: ignore[arg-type]


def test_who_asks_for_what_never_was_is_told_where_the_topic_ends(client: Any) -> None:
    client.append("t", 1)
    with pytest.raises(RecordsLost, match="ends with seq 1"):
        list(client.read("t", 99))


def test_a_missing_key_and_a_wrong_one_are_told_apart_and_not_shown() -> None:
    with server(keys="right") as url:
        with pytest.raises(everlog.client.ApiFailed, match="none was given; give `key`"):
            Client(url).topics()
        with pytest.raises(everlog.client.ApiFailed, match="does not know the key") as raised:
            Client(url, "wrong-one").topics()
        assert "wrong-one" not in str(raised.value)


def test_a_worker_that_has_ended_says_so_instead_of_doing_nothing(url: str) -> None:
    with Client(url) as client:
        client.put_topic("q", {"type": "queue"})
        worker = Worker(client, "q")
        worker.handler(lambda job: None)
        worker.stop()
        worker.run()
        with pytest.raises(Closed, match="make a new one"):
            worker.run()


# --- Discovery -------------------------------------------------------------------------------------------


def test_completion_finds_what_is_loaded_later() -> None:
    assert set(everlog.__all__) <= set(dir(everlog))
    assert set(everlog.client.__all__) <= set(dir(everlog.client))


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_help_shows_methods_with_all_their_arguments_and_their_answers(kind: type) -> None:
    shown = inspect.signature(kind(NOWHERE).append)
    assert list(shown.parameters)[:2] == ["topic", "data"]
    assert shown.return_annotation == Appended.__name__
    assert next(iter(inspect.signature(kind.append).parameters)) == "self"  # type: ignore[attr-defined]


def test_what_is_printed_says_where_it_belongs_and_never_the_key(url: str) -> None:
    with Producer(url, "t", key="secret") as producer:
        made = [Client(url, "secret"), AsyncClient(url, "secret"), producer, Worker(url, "q", key="secret")]
        for each in made:
            assert url in repr(each)
            assert "secret" not in repr(each)
