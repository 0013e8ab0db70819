"""`everlog status` and `everlog top` against a real server."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator

import pytest

from everlog import Client
from everlog.api_types import NewRecord, TopicSummary
from everlog.cli.status import Sample, rates, top_command
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


def test_top_shows_job_queues_and_consumers_that_are_behind(url: str) -> None:
    with Client(url) as client:
        client.append_many("top.read", [NewRecord(1), NewRecord(2)])
        client.put_consumer("top.read", "late")
        client.put_consumer("top.read", "done", start="latest")
        client.put_topic("top.jobs", {"type": "queue"})
        client.append("top.jobs", 1)
        client.append("top.jobs", 2, delay_ms=3_600_000)
        ended = run("everlog", "top", "--interval", "0.1", "--count", "1", "--url", url)
        assert ended.returncode == 0, ended.stderr
        rows = [line.split() for line in ended.stdout.splitlines()]
        assert ["top.jobs", "0.0", "1", "0", "1", "0", "0"] in rows
        assert [row[:3] for row in rows if row[:2] == ["late", "top.read"]] == [["late", "top.read", "2"]]
        assert not [row for row in rows if row[:1] == ["done"]]
        with started("everlog", "top", "--json", "--interval", "0.1", "--url", url) as top:
            job = client.claim("top.jobs", "w").claimed[0]
            client.ack("top.jobs", "w", [job.seq])
            line = json.loads(top.line())
            while not line["queues"][0]["done_total"]:
                line = json.loads(top.line())
            assert line["queues"][0]["queue"] == "top.jobs"
            assert line["consumers"][0]["lag_records"] == 2
            top.end(signal.SIGINT)


def test_top_shows_no_more_rows_than_its_terminal_has_room_for(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(url) as client:
        for number in range(40):
            client.append(f"room.{number:02}", 1)
        client.put_consumer("room.00", "late", start="earliest")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    top_command(url, interval_s=0.1, count=1)
    shown = capsys.readouterr().out
    assert 15 <= len(shown.splitlines()) <= 24
    assert re.search("late +room.00 +1", shown)


def test_rates_count_new_topics_from_their_start_and_never_go_below_zero() -> None:
    def sample(at_s: float, **heads: int) -> Sample:
        topics = [TopicSummary(name, head, 1, head, 0, False, 0) for name, head in heads.items()]
        return Sample(at_s, {}, topics, False)

    found = rates(sample(10.0, a=100, b=50), sample(12.0, a=110, b=7, c=30))
    assert [(topic.topic, rate) for topic, rate in found] == [("c", 15.0), ("a", 5.0), ("b", 0.0)]
