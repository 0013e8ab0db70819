"""The pages of jobs in a real browser: states, failures by error, attempts, bulk actions, schedules."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.browser.devtools import Page
from tests.browser.test_console_shell import keep_picture, shown_width
from tests.support.server_clients import PlainClient
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser

TIMEOUT = {
    "type": "Timeout",
    "message": "smtp.example <b>did not answer</b>",
    "trace": "line 1\nline 2 <script>",
}
NO_ADDRESS = {"type": "ValueError", "message": "no address", "trace": "line 3"}
LATER_MS = 3_600_000


def enqueue(client: PlainClient, topic: str, jobs: Sequence[dict[str, Any]]) -> None:
    """Append jobs in batches."""
    for start in range(0, len(jobs), 10_000):
        reply = client.append(topic, jobs[start : start + 10_000])
        assert reply.status == 200, reply


def lease(client: PlainClient, topic: str, count: int) -> list[int]:
    """Claim at most 1000 jobs as worker w1; their seqs."""
    reply = client.ask("POST", f"/topics/{topic}/claim", {"node": "w1", "max": count, "lease_ms": LATER_MS})
    assert reply.status == 200, reply
    return [job["$seq"] for job in reply.json["claimed"]]


def fail(client: PlainClient, topic: str, count: int, error: object, delay_ms: int = LATER_MS) -> None:
    """Let jobs fail; they wait again, for an hour unless told otherwise."""
    while count > 0:
        seqs = lease(client, topic, min(count, 1000))
        body = {"node": "w1", "seqs": seqs, "delay_ms": delay_ms, "error": error}
        assert client.ask("POST", f"/topics/{topic}/nack", body).status == 200
        count -= len(seqs)


def job_queue(client: PlainClient, each: int) -> None:
    """A job queue with `each` jobs of every state; half of the failed ones have the other error."""
    client.ask("PUT", "/topics/mails", {"type": "queue", "max_deliveries": 5, "dead_letter": "mails.dead"})
    enqueue(client, "mails", [{"data": {"to": f"{number}@example"}} for number in range(each)])
    fail(client, "mails", each // 2, TIMEOUT)
    fail(client, "mails", each - each // 2, NO_ADDRESS)
    enqueue(client, "mails", [{"data": 0, "delay_ms": LATER_MS}] * each + [{"data": 0}] * 2 * each)
    for start in range(0, each, 1000):
        lease(client, "mails", min(1000, each - start))


def counts(client: PlainClient, topic: str = "mails") -> dict[str, int]:
    """How many jobs of each state there are."""
    found: dict[str, int] = client.ask("GET", f"/topics/{topic}/jobs?limit=1").json["counts"]
    return found


def test_job_queues_are_found_among_topics(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        for number in range(30):
            client.ask("PUT", f"/topics/log{number}", {})
        client.ask("PUT", "/topics/mails", {"type": "queue"})
        client.append("mails", [{"data": number} for number in range(12)])
        client.ask("POST", "/topics/mails/claim", {"node": "w", "max": 5})
        page.open(f"{server.url}/#/jobs")
        page.until("document.querySelector('ev-jobs ev-rows').entries.length === 1")
        page.until_text("7", "ev-jobs ev-rows")
        assert page.unnamed() == []


def test_jobs_are_seen_by_state_with_their_attempts_and_failures_by_error(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        job_queue(client, 100)
        client.ask(
            "PUT", "/schedules/nightly", {"topic": "mails", "cron": "0 3 * * *", "record": {"data": 1}}
        )
        page.open(f"{server.url}/#/jobs")
        page.until_text("nightly", ".schedules")
        page.click("ev-jobs .row a", "mails")
        page.until_text("100", "ev-job-queue .tiles")
        page.until_text("400 jobs in this view", "ev-job-queue")
        page.click(".choice button", "failed")
        entries = "document.querySelector('ev-job-queue ev-rows').entries"
        page.until(f"{entries}.length && {entries}.every(({{state}}) => state === 'failed')")
        page.click("ev-job-queue ev-rows .row", "smtp.example")
        page.until_text("delivery 1 by w1, ", ".detail")
        page.until_text("0@example", ".detail")
        page.click(".detail summary", "Trace")
        page.until_text("line 2 <script>", ".detail")
        keep_picture(page, "jobs", tmp_path)
        page.click(".detail button", "Close the job")
        page.click(".choice button", "errors")
        page.until_text("100 failed jobs by error", "ev-job-queue")
        assert "smtp.example <b>did not answer</b>" in page.text("ev-job-queue table")
        page.size(390, 844)
        width, content = shown_width(page)
        assert content <= width
        assert page.unnamed() == []
        page.click("ev-job-queue table button", "Select")
        page.until_text("50 jobs selected", "ev-job-queue")
        page.until_text("delivery 1 by w1, ", ".detail")  # the first of them is opened
        page.press("Escape")
        page.click("ev-job-queue button", "Retry 50")
        page.click("dialog button", "Retry")
        page.until_text("50 jobs retried")
        due = [
            job["last_error"]["type"]
            for job in client.ask("GET", "/topics/mails/jobs?state=failed&limit=200").json["jobs"]
            if (job["run_at"] or 0) <= time.time() * 1000
        ]
        assert len(due) == 50
        assert len(set(due)) == 1  # those of the other error still wait


def test_the_oldest_ready_job_is_shown(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        job_queue(client, 4)
        page.open(f"{server.url}/#/jobs")
        page.until("/\\d+ (s|min)/.test(document.querySelector('ev-rows .space .row')?.innerText)")
        page.click("ev-jobs .row a", "mails")
        page.until_text("oldest ", ".tiles")


def test_an_answer_that_comes_after_another_view_was_chosen_is_not_shown_in_it(
    page: Page, tmp_path: Path
) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        job_queue(client, 10)
        page.open(f"{server.url}/#/jobs/mails")
        page.until_text("40 jobs in this view", "ev-job-queue")
        page.evaluate(
            "{const real = window.fetch; window.held = []; window.fetch = async (...given) => {"
            "const answer = await real(...given);"
            "if (String(given[0]).includes('state=failed')) await new Promise((go) => held.push(go));"
            "return answer; }; }"
        )
        page.click(".choice button", "failed")
        page.until("held.length > 0")
        page.click(".choice button", "delayed")
        entries = "document.querySelector('ev-job-queue ev-rows').entries"
        page.until(f"{entries}.length === 10 && {entries}[0].state === 'delayed'")
        states = page.evaluate(
            "(async () => { held.forEach((go) => go()); await new Promise((go) => setTimeout(go, 300));"
            f"return {entries}.map((each) => each.state) }})()"
        )
        assert set(states) == {"delayed"}


def test_100_000_jobs_are_retried_and_cancelled_with_progress(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        job_queue(client, 25_000)
        page.open(f"{server.url}/#/jobs/mails")
        page.until_text("100,000 jobs in this view", "ev-job-queue")
        page.click(".choice button", "failed")
        page.until_text("25,000 jobs in this view", "ev-job-queue")
        page.click(".bulk button", "Retry all in this view")
        page.click("dialog button", "Retry")
        page.until_text("25,000 jobs retried")
        assert len(lease(client, "mails", 1000)) == 1000  # they are due, and before the younger ones
        assert counts(client)["failed"] == 24_000
        page.click(".choice button", "delayed")
        page.until_text("25,000 jobs in this view", "ev-job-queue")
        page.until("document.querySelectorAll('ev-job-queue [type=checkbox]').length > 3")
        page.click("ev-job-queue [type=checkbox]")
        page.click(".bulk button", "Cancel 1")
        page.click("dialog button", "Cancel")
        page.until("!document.querySelector('dialog')")
        assert counts(client)["delayed"] == 25_000  # the question was answered with no
        page.click(".bulk button", "Cancel 1")
        page.click("dialog button.danger", "Cancel")
        page.until_text("1 job cancelled")
        assert counts(client)["delayed"] == 24_999
        page.click(".bulk button", "Cancel all in this view")
        page.click("dialog button.danger", "Cancel")
        page.until_text("24,999 jobs cancelled")
        assert counts(client)["delayed"] == 0


def test_a_tag_narrows_what_is_cancelled(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.ask("PUT", "/topics/mails", {"type": "queue"})
        enqueue(client, "mails", [{"data": n, "tag": "few" if n < 3 else "many"} for n in range(300)])
        page.open(f"{server.url}/#/jobs/mails")
        page.until_text("300 jobs in this view", "ev-job-queue")
        for tag, viewed in (("many", "200 or more jobs"), ("few", "3 jobs")):
            page.evaluate(
                f"{{const tag = document.querySelector('[aria-label=Tag]'); tag.value = '{tag}';"
                "tag.dispatchEvent(new Event('change'))}"
            )
            page.until_text(f"{viewed} in this view", "ev-job-queue")
        page.click(".bulk button", "Cancel all in this view")
        page.until_text("Cancel 3 jobs?")
        page.click("dialog button.danger", "Cancel")
        page.until_text("3 jobs cancelled")
        assert counts(client)["ready"] == 297


def test_dead_letters_are_moved_back_to_their_queue_alone(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        for topic, dead in (("mails", 2500), ("texts", 3)):
            client.ask("PUT", f"/topics/{topic}", {"type": "queue", "dead_letter": "dead"})
            enqueue(client, topic, [{"data": 0, "max_deliveries": 1}] * dead)
            fail(client, topic, dead, NO_ADDRESS, delay_ms=0)
            assert lease(client, topic, 1) == []  # finds that each had its last delivery
        page.open(f"{server.url}/#/jobs/mails")
        page.until_text("2,500", "ev-job-queue .tiles")
        page.click("button", "Redrive dead letters")
        page.until_text("Move 2,500 jobs back?")
        page.click("dialog button", "Redrive")
        page.until_text("2,500 jobs moved back")
        assert counts(client)["ready"] == 2500
        assert client.ask("GET", "/topics/dead").json["count"] == 3
        page.click("button", "Redrive dead letters")
        page.until_text("There are no dead letters of mails")


def test_a_queue_and_a_schedule_are_paused(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.ask("PUT", "/topics/mails", {"type": "queue"})
        client.append("mails", [{"data": 1}])
        schedule = {
            "topic": "mails",
            "cron": "0 3 * * *",
            "timezone": "Europe/Berlin",
            "catch_up": "all",
            "record": {"data": {"n": 1}, "tag": "t", "priority": 5},
        }
        assert client.ask("PUT", "/schedules/nightly", schedule).status == 201
        page.open(f"{server.url}/#/jobs/mails")
        page.click("button", "Pause")
        page.until_text("Resume", ".page-head")
        assert lease(client, "mails", 1) == []
        page.click("button", "Resume")
        page.until_text("Pause", ".page-head")
        assert lease(client, "mails", 1) == [1]
        page.evaluate("location.hash = '#/jobs'")
        page.click(".schedules button", "Pause")
        page.until_text("paused", ".schedules table")
        shown = client.ask("GET", "/schedules/nightly").json
        assert shown["paused"] is True
        assert {name: shown[name] for name in schedule} == schedule  # pausing changes nothing else
