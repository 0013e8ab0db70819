"""The pages of jobs in a real browser: states, failures by error, attempts, bulk actions, schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.devtools import Page
from tests.browser.scripted_jobs import serving_jobs
from tests.browser.test_console_shell import keep_picture, shown_width
from tests.support.server_clients import PlainClient
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser


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
    with serving_jobs(400) as (url, _):
        page.open(f"{url}/#/jobs")
        page.until_text("nightly", ".schedules")
        page.click("ev-jobs .row a", "mails")
        page.until_text("1,234", "ev-job-queue .tiles")
        page.click(".choice button", "failed")
        entries = "document.querySelector('ev-job-queue ev-rows').entries"
        page.until(f"{entries}.length && {entries}.every(({{state}}) => state === 'failed')")
        page.click("ev-job-queue ev-rows .row", "smtp.example")
        page.until_text("delivery 1 by w1, 2 s", ".detail")
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


def test_100_000_jobs_are_retried_and_cancelled_with_progress(page: Page) -> None:
    with serving_jobs(100_000) as (url, state):
        page.open(f"{url}/#/jobs/mails")
        page.until_text("100,000 jobs in this view", "ev-job-queue")
        page.click(".choice button", "failed")
        page.until_text("25,000 jobs in this view", "ev-job-queue")
        page.click(".bulk button", "Retry all in this view")
        page.click("dialog button", "Retry")
        page.until_text("25,000 jobs retried")
        assert state.counts()["failed"] == 0
        assert max(len(body["seqs"]) for path, body in state.calls if path.endswith("retry")) <= 1000
        page.click(".choice button", "delayed")
        page.until("document.querySelectorAll('ev-job-queue [type=checkbox]').length > 3")
        page.click("ev-job-queue [type=checkbox]")
        page.click(".bulk button", "Cancel 1")
        page.click("dialog button", "Cancel")
        page.until("!document.querySelector('dialog')")
        assert len(state.states) == 100_000  # the question was answered with no
        page.click(".bulk button", "Cancel 1")
        page.click("dialog button.danger", "Cancel")
        page.until_text("1 job cancelled")
        assert len(state.states) == 99_999


def test_a_queue_is_paused_dead_letters_are_moved_back_and_schedules_paused(page: Page) -> None:
    with serving_jobs(10) as (url, state):
        page.open(f"{url}/#/jobs/mails")
        page.click("button", "Pause")
        page.until_text("Resume", ".page-head")
        assert state.is_paused
        page.click("button", "Redrive dead letters")
        page.click("dialog button", "Redrive")
        page.until_text("2,500 jobs moved back")
        assert state.dead == 0
        page.evaluate("location.hash = '#/jobs'")
        page.click(".schedules button", "Pause")
        page.until_text("paused", ".schedules table")
        assert state.schedule_is_paused
