"""`everlog status` and `everlog top` against a real server."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from everlog import Client
from everlog.api_types import TopicSummary
from everlog.cli.status import Sample, rates
from tests.support.command_lines import run, started
from tests.support.server_processes import running_server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for the tests of this file."""
    with running_server(tmp_path_factory.mktemp("server"), "--memory") as server:
        yield server.url


def test_status_shows_what_the_server_holds(url: str) -> None:
    with Client(url) as client:
        client.append("status.one", 1)
    ended = run("everlog", "status", "--url", url)
    assert ended.returncode == 0, ended.stderr
    fields = dict(line.split("  ", 1) for line in ended.stdout.splitlines())
    assert fields["ready"].strip() == "yes"
    assert fields["storage"].strip() == "ok"
    assert int(fields["topics"].split()[0]) >= 1


def test_top_prints_the_busiest_topic_first_and_ends_with_zero_at_ctrl_c(url: str) -> None:
    with Client(url) as client, started("everlog", "top", "--json", "--interval", "0.1", "--url", url) as top:
        line = top.line()
        while '"topic":"top.busy"' not in line:
            client.append("top.busy", 1)
            line = top.line()
        assert '"topics":[{"topic":"top.busy"' in line
        code, _, error = top.end(signal.SIGINT)
    assert (code, error) == (0, "")


def test_top_as_text_has_a_table(url: str) -> None:
    ended = run("everlog", "top", "--interval", "0.1", "--count", "1", "--url", url)
    assert ended.returncode == 0
    assert "records/s" in ended.stdout.splitlines()[1]


def test_rates_count_new_topics_from_their_start_and_never_go_below_zero() -> None:
    def sample(at_s: float, **heads: int) -> Sample:
        topics = [TopicSummary(name, head, 1, head, 0, False, 0) for name, head in heads.items()]
        return Sample(at_s, {}, topics, False)

    found = rates(sample(10.0, a=100, b=50), sample(12.0, a=110, b=7, c=30))
    assert [(topic.topic, rate) for topic, rate in found] == [("c", 15.0), ("a", 5.0), ("b", 0.0)]
