"""`everlog consumer` against a real server: what its commands do and print."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.command_lines import TopicCommands
from tests.support.server_processes import running_server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server that all tests of this file share; each uses its own names."""
    with running_server(tmp_path_factory.mktemp("server"), "--memory") as server:
        yield server.url


@pytest.fixture
def consumer(url: str) -> TopicCommands:
    """The commands about consumers."""
    return TopicCommands(url, "consumer")


@pytest.fixture
def topic(url: str) -> TopicCommands:
    """The commands about topics."""
    return TopicCommands(url)


def test_a_consumer_is_put_shown_listed_read_and_removed(
    consumer: TopicCommands, topic: TopicCommands
) -> None:
    topic.json("append", "orders", "-d", "1", "-d", "2", "-d", "3", "--tag", "eu")
    put = consumer.json("put", "orders", "c", "--start", "2", "--filter", '["tag","Eq","eu"]')
    assert (put["cursor"], put["filter"]) == (1, ["tag", "Eq", "eu"])
    assert consumer.json("show", "orders", "c")["lag_records"] == 2
    assert [each["name"] for each in consumer.json("ls", "orders")["consumers"]] == ["c"]
    for _ in range(2):
        assert consumer("read", "orders", "c", "--format", "{seq}").split() == ["2", "3"]
    assert consumer("read", "orders", "c", "--format", "{seq}", "--commit", "--count", "1").split() == ["2"]
    assert consumer.json("show", "orders", "c")["cursor"] == 2
    assert consumer("read", "orders", "c", "--format", "{seq}", "--commit").split() == ["3"]
    assert consumer.json("show", "orders", "c")["cursor"] == 3
    assert consumer.json("reset", "orders", "c", "earliest", "--dry-run")["records"] == 3
    assert consumer.json("reset", "orders", "c", "2000-01-01T00:00:00Z")["cursor"] == 0
    assert consumer.json("commit", "orders", "c", "1")["cursor"] == 1
    assert consumer.error("commit", "orders", "c", "0")["code"] == "cursor_backwards"
    assert consumer.json("rm", "orders", "c")["deleted"] is True


def test_an_owner_gets_an_epoch_that_its_reads_and_commits_need(
    consumer: TopicCommands, topic: TopicCommands
) -> None:
    topic.json("append", "owned", "-d", "1")
    consumer("put", "owned", "c")
    epoch = consumer.json("acquire", "owned", "c", "one")["owner_epoch"]
    assert consumer.error("commit", "owned", "c", "1")["code"] == "fenced"
    assert consumer.json("commit", "owned", "c", "1", "--owner-epoch", epoch)["owner"] == "one"
    assert (
        consumer("acquire", "owned", "c", "two", "--ttl-ms", 5000) == f"c: owned by two, epoch {epoch + 1}\n"
    )
    assert consumer.error("read", "owned", "c", "--owner-epoch", epoch)["code"] == "fenced"


def test_people_get_tables_and_sentences(consumer: TopicCommands, topic: TopicCommands) -> None:
    topic.json("append", "people", "-d", "1")
    assert consumer("ls", "people").startswith("no consumers of people on ")
    assert consumer("put", "people", "p", "--hold").startswith("p: created, cursor 0, behind 1 record, ")
    assert consumer("put", "people", "p").startswith("p: changed, cursor 0")
    assert "1 record, " in consumer("show", "people", "p")
    assert "p" in consumer("ls", "people")
    assert consumer("commit", "people", "p", "1") == "p: cursor 1, behind nothing\n"
    assert consumer("reset", "people", "p", "1") == "p: moved from 1 to 0, over 1 record\n"
    assert consumer("rm", "people", "p") == "p: deleted\n"
    assert consumer.error("rm", "people", "p")["code"] == "consumer_not_found"
    assert consumer.error("show", "people", "p")["code"] == "consumer_not_found"


def test_a_topic_is_read_from_a_time_and_with_a_filter(topic: TopicCommands) -> None:
    topic.json("append", "timed", "-d", "1", "-d", "2")
    assert topic("read", "timed", "--format", "{seq}", "--filter", '["data","Gt",1]').split() == ["2"]
    assert topic("read", "timed", "--format", "{seq}", "--from", "2000-01-01T00:00:00Z").split() == ["1", "2"]
    assert topic("read", "timed", "--format", "{seq}", "--from", "2100-01-01T00:00:00Z").split() == []
