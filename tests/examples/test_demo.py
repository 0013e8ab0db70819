"""The demonstration as a user runs it: real processes, real kills, a report, and how it ends when it must."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from rich.console import Console

from everlog.bus import IpcLayout, StrategyChannel
from everlog.queue import Queue
from examples.demo import __main__ as command
from examples.demo.display import Display, make_console
from examples.demo.evidence import Evidence, gather
from examples.demo.plan import Plan
from examples.demo.records import (
    CONFIG,
    FILL,
    MARKET_TOPIC,
    ORDER,
    SEEN,
    SEEN_TYPE_ID,
    STRATEGIES,
    VENUE,
    WATCHER,
    notes_dir,
    ticks_dir,
    truth_file,
)
from examples.demo.report import write_report
from examples.demo.session import Counts, Session
from examples.demo.summary import summarize
from examples.demo.topic_copy import TopicCopy
from tests.browser.axe import open_unguarded, scrolls_sideways, violations
from tests.browser.browsers import find_browser
from tests.browser.devtools import opened_page
from tests.support.processes import eventually
from tests.support.server_clients import PlainClient

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, "-m", "examples.demo"]
PLAN = Plan(seconds=4.0, symbols=2, rate_per_s=2000.0, with_spark=False)
STEPS = [
    "venue to queue",
    "feed -> arbitrage",
    "arbitrage -> router",
    "router -> arbitrage",
    "feed -> maker",
    "maker -> router",
    "router -> maker",
    "queue to topic",
    "topic to SSE watcher",
    "fills to job queue",
    "job queue to workers",
    "L2 replay to book",
    "L3 replay to book",
    "seqs of 10 queues",
    "seqs of topic market",
    "seqs of topic settlement",
    "bridge of market",
    "bridge of fills",
]

# A run has a dozen processes to start, and a machine under test may be busy.
pytestmark = pytest.mark.timeout(300)


class Finished(NamedTuple):
    """A run that has ended, and where its report is."""

    root: Path
    evidence: Evidence
    topic: TopicCopy
    report: Path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Run the chain once, without Spark."""
    root = tmp_path_factory.mktemp("demo")
    console = make_console(quiet=True)
    with Display(console, ticks_dir(IpcLayout(root))) as display, Session(root, PLAN, display) as session:
        outcome = session.run()
    assert session.topic is not None
    evidence = gather(root, outcome, session.topic)
    report = root / "report"
    write_report(report, evidence, summarize(evidence, PLAN, 1.0))
    return Finished(root, evidence, session.topic, report)


# -- what a run proves -----------------------------------------------------------------------


def test_every_message_is_accounted_for_although_three_processes_are_killed(finished: Finished) -> None:
    verdict = finished.evidence.verdict
    assert verdict.problems == []
    assert [account.step for account in verdict.accounts] == STEPS
    assert [account.unexplained for account in verdict.accounts] == [0] * len(STEPS)
    assert all(account.expected == account.arrived > 0 for account in verdict.accounts)
    assert [kill.who for kill in finished.evidence.outcome.kills] == ["bridge", "arbitrage", "worker-1"]
    assert verdict.is_sound


def test_the_killed_strategy_resumes_at_its_committed_position(finished: Finished) -> None:
    findings = finished.evidence.findings
    resumed = findings.resumption
    assert resumed is not None
    assert resumed.committed_seq <= resumed.first_seq_after <= resumed.last_seq_before + 1
    links = {link.name: link for link in findings.links}
    assert links["feed -> maker"].redelivered == 0
    for strategy in STRATEGIES:
        trades, orders = links[f"feed -> {strategy}"], links[f"{strategy} -> router"]
        assert orders.messages == trades.messages + orders.redelivered
        assert trades.latency is not None and trades.latency.samples > 0
        assert 0 < trades.latency.p50_us <= trades.latency.p99_us <= trades.latency.p999_us


# -- what an audit must not overlook ---------------------------------------------------------


def judged(finished: Finished, topic: TopicCopy | None = None, root: Path | None = None) -> Evidence:
    return gather(root or finished.root, finished.evidence.outcome, topic or finished.topic)


def unexplained(evidence: Evidence) -> dict[str, int]:
    """The steps that are not sound, with how much is unexplained."""
    accounts = evidence.verdict.accounts
    return {account.step: account.unexplained for account in accounts if account.unexplained}


def without_record(topic: TopicCopy, place: int) -> TopicCopy:
    kept = np.arange(len(topic)) != place
    none = np.empty(0)
    return TopicCopy(topic.seq[kept], topic.source_seq[kept], none.astype(np.intp), none, none)


def test_a_record_that_the_topic_lost_makes_the_demo_fail(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctored = judged(finished, without_record(finished.topic, 17))
    assert unexplained(doctored) == {"queue to topic": 1, "topic to SSE watcher": 1}
    options = argparse.Namespace(report=tmp_path / "report", json=True, dir=None)
    assert command.conclude(doctored, PLAN, options, make_console(quiet=True), 1.0) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["is_sound"], told["unexplained"]) == (False, 2)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "NOT SOUND: 2 unexplained" in page
    assert "NOT SOUND: 2 unexplained" in (tmp_path / "report" / "report.txt").read_text()


def test_the_exit_code_of_a_sound_run_is_0(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = argparse.Namespace(report=tmp_path / "report", json=True, dir=None)
    assert command.conclude(finished.evidence, PLAN, options, make_console(quiet=True), 1.0) == 0
    assert json.loads(capsys.readouterr().out)["is_sound"] is True


def test_a_trade_with_another_price_in_the_topic_is_unexplained(finished: Finished) -> None:
    prices = finished.topic.trade_price.copy()
    prices[3] += 0.01
    assert unexplained(judged(finished, replace(finished.topic, trade_price=prices))) == {"queue to topic": 1}


@pytest.fixture
def copied(finished: Finished, tmp_path: Path) -> Path:
    """Another directory with the same run, to be doctored."""
    subprocess.run(["cp", "-r", f"{finished.root}/.", str(tmp_path / "copy")], check=True)
    return tmp_path / "copy"


def test_a_record_that_the_watcher_got_twice_is_unexplained(finished: Finished, copied: Path) -> None:
    with Queue.open_publisher(notes_dir(IpcLayout(copied), WATCHER), CONFIG) as notes:
        notes.append(SEEN_TYPE_ID, SEEN.pack(5, 4, 0, 0, 1, 0, 1, 0))
    assert unexplained(judged(finished, root=copied)) == {"topic to SSE watcher": 1}


def test_a_book_that_differs_from_the_venues_is_unexplained(finished: Finished, copied: Path) -> None:
    truth = json.loads(truth_file(copied).read_text())
    truth["books"][1]["bids"][0][1] += 1
    truth_file(copied).write_text(json.dumps(truth))
    assert unexplained(judged(finished, root=copied)) == {"L2 replay to book": 1, "L3 replay to book": 1}


def test_an_event_that_the_venue_sent_and_the_queue_has_not_is_unexplained(
    finished: Finished, copied: Path
) -> None:
    truth = json.loads(truth_file(copied).read_text())
    truth["counts"]["l3_events"] += 1
    truth_file(copied).write_text(json.dumps(truth))
    assert unexplained(judged(finished, root=copied)) == {"venue to queue": 1}


# -- the report ------------------------------------------------------------------------------


class Page(HTMLParser):
    """Collects what a page would load from elsewhere, its headings and the cells of its tables."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        self.loaded += [f"{name}={value}" for name, value in attrs if name in {"src", "href", "xlink:href"}]
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "td":
            self.rows[-1].append(data)
        elif self._open and self._open[-1] == "h2":
            self.headings.append(data)


def test_the_page_opens_offline_and_has_every_plot_and_the_audit(finished: Finished) -> None:
    text = (finished.report / "index.html").read_text()
    page = Page()
    page.feed(text)
    assert page.loaded == []
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert page.headings[:6] == [
        "The chain",
        "Audit",
        "Mid price and spread",
        "Depth of the book",
        "Latency",
        "Throughput",
    ]
    assert page.tags.count("svg") == 8
    rows = {row[1]: row for row in page.rows if len(row) == 7}
    assert list(rows) == STEPS
    assert {row[5] for row in rows.values()} == {"0"}
    assert "prefers-color-scheme:dark" in text
    assert "zero unexplained" in text


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_report_passes_the_rules_of_accessibility_and_fits_a_phone(
    finished: Finished, tmp_path: Path, theme: str
) -> None:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium is installed; on Debian the package is called chromium")
    with opened_page(program, tmp_path / "profile") as page:
        page.prefer(theme)
        open_unguarded(page, (finished.report / "index.html").as_uri())
        assert violations(page) == []
        page.size(420, 860)
        assert scrolls_sideways(page) == []
        assert violations(page) == []
        # A row of the audit is a list of names and values there; no value has to be scrolled to.
        right = page.evaluate(
            "Math.max(...[...document.querySelectorAll('td')].map((e) => e.getBoundingClientRect().right))"
        )
        assert right <= 420
        named = "getComputedStyle(document.querySelector('td'), '::before').content"
        assert page.evaluate(named) == '"part"'


def test_axes_have_units_and_histograms_have_percentiles(finished: Finished) -> None:
    text = (finished.report / "index.html").read_text()
    labels = re.findall(r'class="label"[^>]*>([^<]*)<', text)
    assert {
        "seconds since the opening",
        "mid price",
        "spread, bps",
        "price",
        "latency, logarithmic",
        "messages",
        "messages a second",
    } == set(labels)
    assert len(re.findall(r'class="mark-text"[^>]*>p(?:50|99) [\d.]+ (?:µs|ms|s)<', text)) == 4
    assert len(re.findall(r'class="mark-text"[^>]*>\S+ killed<', text)) == 3


def test_the_same_is_there_as_text_and_as_json(finished: Finished) -> None:
    text = (finished.report / "report.txt").read_text()
    for words in (
        "Mid price and spread of SIM0000",
        "Depth: resting size",
        "Latency of queue",
        "Latency of SSE",
    ):
        assert words in text
    for words in ("Messages a second", "Audit of everything", "Kill: bridge", "zero unexplained"):
        assert words in text
    for step in STEPS:
        assert step in text
    told = json.loads((finished.report / "report.json").read_text())
    assert [account["step"] for account in told["accounts"]] == STEPS
    assert told["unexplained"] == 0


def test_a_terminal_shows_the_live_book_and_what_has_come_so_far(finished: Finished) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=110, height=40)
    with Display(console, ticks_dir(IpcLayout(finished.root))) as display:
        display.stage("trade")

        def is_drawn() -> bool:
            display.progress(Counts(12345, 6, 7, 8, 9))
            return "12,345" in shown.getvalue()

        eventually("a frame is drawn", is_drawn)
    frame = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
    book = finished.evidence.truth["books"][0]
    assert "book of SIM0000, live" in frame
    for price, size in (book["bids"][0], book["asks"][0]):
        assert re.search(rf"{price / 100:g}\s+{size / 1000:g}\s+█", frame)


# -- how it ends -----------------------------------------------------------------------------


@contextmanager
def running_demo(
    temporary: Path, until: str, *more: str
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a long demonstration; yield it and its processes once it has said something."""
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    report = temporary / "report"
    demo = subprocess.Popen(
        [*DEMO, "--seconds", "60", "--symbols", "1", "--no-spark", "--report", str(report), *more],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    children: list[int] = []
    try:
        for line in demo.stdout:
            if until in line:
                break
        children = children_of(demo.pid)
        assert children, "the demonstration has started something"
        yield demo, children
    finally:
        demo.kill()
        demo.communicate()
        for child in children:
            if not has_ended(child):
                os.kill(child, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """The processes that `pid` has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for its parent to collect its exit code."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def test_an_interrupted_demo_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    with running_demo(tmp_path, "the venue is open") as (demo, children):
        assert len(children) == 10, "server, two bridges, router, strategies, watcher, workers, feed"
        assert list(tmp_path.iterdir()) != []
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=60)
        assert demo.returncode == 130
        assert errors == "interrupted; every process has ended\n"
        assert [child for child in children if not has_ended(child)] == []
        assert list(tmp_path.iterdir()) == []


def test_a_served_demo_ends_with_the_console_on_its_data(tmp_path: Path) -> None:
    with running_demo(tmp_path, "The console: ", "--seconds", "2", "--serve") as (demo, children):
        assert len(children) == 1, "the server alone runs on"
        arguments = Path(f"/proc/{children[0]}/cmdline").read_text().split("\0")
        url = f"http://{Path(arguments[arguments.index('--port-file') + 1]).read_text().strip()}"
        page = urllib.request.Request(url, headers={"Accept": "text/html"})
        assert b"<everlog-console>" in urllib.request.urlopen(page, timeout=30).read()
        with PlainClient(url) as client:
            market = client.ask("GET", f"/topics/{MARKET_TOPIC}").json
            queues = client.ask("GET", "/queues").json["queues"]
        assert market["count"] == market["head_seq"] > 0
        assert len(queues) == 10
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=60)
        assert (demo.returncode, errors) == (0, "")
        assert has_ended(children[0])
        assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_a_served_demo_prints_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        command.parse(["--serve", "--json"])
    assert raised.value.code == 2
    assert "leave out --serve" in capsys.readouterr().err


def test_processes_end_by_themselves_when_the_demo_is_killed(tmp_path: Path) -> None:
    with running_demo(tmp_path, "listens on") as (demo, children):
        demo.kill()
        eventually("all processes have ended", lambda: all(map(has_ended, children)))


def test_a_process_that_fails_makes_the_demo_fail_and_is_named(tmp_path: Path) -> None:
    with running_demo(tmp_path, "listens on") as (demo, children):
        victim = next(child for child in children if "serve" in Path(f"/proc/{child}/cmdline").read_text())
        os.kill(victim, signal.SIGKILL)
        _, errors = demo.communicate(timeout=60)
        assert demo.returncode == 1
        assert "the demonstration failed: server failed with exit code -9" in errors
        assert [child for child in children if not has_ended(child)] == []


@pytest.mark.parametrize("wrong", [["--seconds", "1"], ["--symbols", "0"], ["--rate", "5"]])
def test_numbers_that_make_no_demo_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        command.parse(wrong)
    assert raised.value.code == 2
    assert "is not between" in capsys.readouterr().err


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(SystemExit) as raised:
        command.parse(["--dir", str(tmp_path)])
    assert raised.value.code == 2
    assert "is not empty; name a new directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_more_symbols_bring_more_changes_up_to_a_bound() -> None:
    rates = [
        command.plan_of(command.parse(["--symbols", str(symbols)])).rate_per_s for symbols in (1, 4, 8, 200)
    ]
    assert rates == [1000, 4000, 8000, 8000]


def test_a_router_without_its_feed_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "router.toml").write_text(f'[feeds]\nrequired = ["{VENUE}"]\n', encoding="utf-8")
    program = [sys.executable, "-m", "examples.demo.router", str(tmp_path), "1"]
    ended = subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert "1 of 1 required feeds are missing: simulated" in ended.stderr


def test_a_router_that_is_killed_answers_no_order_twice(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "examples.demo.router", str(tmp_path), "1"]
    received: list[int] = []

    def has_received(channel: StrategyChannel, count: int) -> bool:
        while (fill := channel.next_fill()) is not None:
            received.append(FILL.unpack(fill)[0])
        return len(received) >= count

    Queue.open_publisher(ticks_dir(IpcLayout(tmp_path)), CONFIG).close()
    (tmp_path / "router.toml").write_text(f'[feeds]\nrequired = ["{VENUE}"]\n', encoding="utf-8")
    with StrategyChannel.open(IpcLayout(tmp_path), "solo", config=CONFIG) as channel:
        for count in (10, 20):  # fewer than it takes to commit, so the second router reads all of them
            for order_id in range(count - 10, count):
                channel.send_order(ORDER.pack(order_id, 0, 0, 1, 0, 1, 1.0, 1.0))
            router = subprocess.Popen(program, cwd=REPOSITORY)
            try:
                eventually("the router has come", channel.attach_inbox)
                eventually("all orders are answered", partial(has_received, channel, count))
                if count == 20:
                    channel.close()
                    assert router.wait(60) == 0
            finally:
                router.kill()
                router.wait()
    assert received == list(range(20))
