"""Every page of the console, and the documentation: the rules of axe-core in both themes, and a phone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from everlog.pipeline.jobs.audit import AuditReport, StreamAudit
from everlog.pipeline.jobs.audit_report import html_of
from everlog.queue import Queue
from tests.browser.axe import open_unguarded, scrolls_sideways, violations
from tests.browser.devtools import Page
from tests.browser.test_console_bus import put_feed
from tests.server.test_lake_routes import make_lake
from tests.support.market_queues import simulated_queue
from tests.support.server_clients import PlainClient
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
PHONE = (420, 860)
ROWS = "document.querySelectorAll('ev-rows .space .row').length"

# The address of each page, what has to be there before it is looked at, and what is opened in it.
PAGES = {
    "overview": ("document.querySelector('ev-chart').rows?.length > 1", None),
    "topics": (f"{ROWS} > 3", None),
    "topics/orders/records": (f"{ROWS} > 3", ("ev-rows .space .row", "eu")),
    "topics/orders/settings": ("document.querySelector('#field-ttl_ms')", None),
    "topics/orders/append": ("document.querySelector('#append-data')", None),
    "topics/orders/delete": ("document.querySelector('#delete-tag')", None),
    "consumers": (f"{ROWS} > 0", ("ev-rows .space .row", "billing")),
    "jobs": ("document.querySelector('.schedules table')", None),
    "jobs/mails": (f"{ROWS} > 1", ("ev-rows .space .row", "ready")),
    "routers": ("document.querySelector('.graph svg .node')", None),
    "bus": ("document.querySelector('.feed')", ("ev-rows .space .row", "sim")),
    "market": ("document.querySelectorAll('.market .tiles dd').length > 4", None),
    "pipeline": (f"{ROWS} > 1", ("ev-rows .space .row", "records")),
    "nowhere": ("document.querySelector('.notice')", None),
}


def listed(found: dict[str, list[str]]) -> str:
    """What was found on which page, a line each; of a rule on a page the first three places."""
    lines: list[str] = []
    for place, wrong in found.items():
        seen: Counter[str] = Counter()
        for each in wrong:
            seen[each.split()[0]] += 1
            if seen[each.split()[0]] <= 3:
                lines.append(f"{place}: {each}")
    return "\n".join(lines)


def fill(client: PlainClient) -> None:
    """Something on every page."""
    orders = [{"data": {"id": n, "side": "buy"}, "tag": "eu", "node": "web"} for n in range(60)]
    answers = [
        client.append("orders", orders, config={"cap_records": 50}),
        *(client.append(name, [{"data": 1}]) for name in ("orders.eu", "orders.us")),
        client.ask("PUT", "/routers/eu", {"source": "orders", "dest": "orders.eu"}),
        client.ask("PUT", "/topics/orders/consumers/billing", {"start": {"seq": 12}}),
        client.ask("PUT", "/topics/mails", {"type": "queue"}),
        client.append("mails", [{"data": n} for n in range(9)]),
        client.ask("POST", "/topics/mails/claim", {"node": "w1", "max": 2}),
        client.ask(
            "PUT", "/schedules/nightly", {"topic": "mails", "cron": "0 3 * * *", "record": {"data": 1}}
        ),
    ]
    assert [answer for answer in answers if answer.status >= 300] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_of_the_console_passes_the_rules_and_fits_a_phone(
    page: Page, tmp_path: Path, theme: str
) -> None:
    queue = tmp_path / "bus" / "sim"
    simulated_queue(queue, symbols=2, seconds=5, rate=500, kinds="l2,trades")
    Queue.open_subscriber(queue, "strategy", start="earliest").close()
    put_feed(tmp_path / "bus", time.time_ns())
    lake = make_lake(tmp_path / "lake")
    with (
        running_server(tmp_path, "--bus", tmp_path / "bus", "--lake", lake) as server,
        PlainClient(server.url) as client,
    ):
        fill(client)
        page.prefer(theme)
        found = {}
        for place, (is_there, opened) in PAGES.items():
            page.size(1280, 900)
            open_unguarded(page, f"{server.url}/?{place}#/{place}")
            page.until(is_there)
            if opened is not None:
                page.click(*opened)
                page.until(
                    "!document.querySelector('.detail').hidden && document.querySelector('.detail h2')"
                )
            page.until("[...document.querySelectorAll('.problem')].every((e) => !e.innerText)")
            found[place] = violations(page)
            page.size(*PHONE)
            found[f"{place}, phone"] = [*scrolls_sideways(page), *violations(page)]
        assert not listed(found), listed(found)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_of_an_audit_passes_the_rules_and_fits_a_phone(
    page: Page, tmp_path: Path, theme: str
) -> None:
    sound = StreamAudit(
        name="orders", instance="a" * 32, first_seq=1, last_seq=123_456_789, delivered=9, gap=1
    )
    missing = msgspec.structs.replace(sound, missing=2, missing_ranges=[(4, 5)])
    (tmp_path / "audit.html").write_text(
        html_of(AuditReport(table="records", place="/data/lakes/" + "long" * 30, streams=[sound, missing]))
    )
    page.prefer(theme)
    open_unguarded(page, (tmp_path / "audit.html").as_uri())
    assert violations(page) == []
    page.size(*PHONE)
    assert [*scrolls_sideways(page), *violations(page)] == []
    page.complaints.clear()


@pytest.fixture(scope="module")
def site() -> Path:
    """The documentation as `make docs` builds it; built here if a page is newer."""
    built = ROOT / "build" / "site"
    sources = [*(ROOT / "docs").rglob("*"), ROOT / "mkdocs.yml", ROOT / "README.md"]
    index = built / "index.html"
    if not index.exists() or index.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        mkdocs = Path(sys.executable).with_name("mkdocs")
        arguments = [mkdocs, "build", "--strict", "--quiet", "--site-dir", built]
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        subprocess.run(arguments, cwd=ROOT, check=True, env=environment, timeout=110)
    return built


@pytest.fixture
def patient(page: Page) -> Iterator[Page]:
    """A tab for pages that are files; what they say of themselves on the console is not what is tested."""
    yield page
    page.complaints.clear()


# One of each kind: the rules are about what the theme makes of a page.
JUDGED = (
    "index.html",
    "tour.html",
    "guide/console.html",
    "reference/settings.html",
    "reference/client.html",
    "internals/benchmarks.html",
    "internals/data-path.html",
)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_documentation_passes_the_rules(patient: Page, site: Path, theme: str) -> None:
    patient.prefer(theme)
    found = {}
    for name in JUDGED:
        open_unguarded(patient, (site / name).as_uri())
        found[name] = violations(patient)
    assert not listed(found), listed(found)


def test_no_page_of_the_documentation_scrolls_sideways_on_a_phone(patient: Page, site: Path) -> None:
    patient.size(*PHONE)
    found = {}
    for path in sorted(site.rglob("*.html")):
        open_unguarded(patient, path.as_uri())
        found[str(path.relative_to(site))] = scrolls_sideways(patient)
    assert len(found) > 60
    assert not listed(found), listed(found)
