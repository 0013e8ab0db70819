"""Everything that a run has left behind, read once: for the audit, the plots and the tables.

Owns the reading and the list of accounts; changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everlog.bus import IpcLayout
from everlog.market.protocol import BookMode
from examples.demo.accounts import (
    Account,
    Verdict,
    account_of_counts,
    account_of_seqs,
    job_account,
    order_accounts,
    venue_account,
)
from examples.demo.audit import Auditor, Findings
from examples.demo.plan import Outcome
from examples.demo.rebuilt import book_account
from examples.demo.records import (
    DONE,
    FILL,
    JOBS_TOPIC,
    ORDER,
    SEEN,
    SETTLED_STRATEGY,
    STRATEGIES,
    WATCHER,
    WORKERS,
    notes_dir,
    ticks_dir,
    truth_file,
)
from examples.demo.tables import MarketTable, Table, read_table
from examples.demo.topic_copy import TopicCopy


@dataclass(frozen=True)
class Evidence:
    """The columns of a run, what the order flow's audit found, and the accounts of all steps."""

    root: Path
    truth: dict[str, Any]
    market: MarketTable
    orders: dict[str, Table]
    fills: dict[str, Table]
    seen: Table
    done: dict[str, Table]
    findings: Findings
    verdict: Verdict
    outcome: Outcome

    @property
    def queue(self) -> Path:
        """The market queue."""
        return ticks_dir(IpcLayout(self.root))


def gather(root: Path, outcome: Outcome, topic: TopicCopy) -> Evidence:
    """Read everything below `root` and judge it."""
    layout = IpcLayout(root)
    truth = json.loads(truth_file(root).read_text())
    auditor = Auditor(layout)
    for strategy in STRATEGIES:
        auditor.follow(strategy, outcome.kill_of(strategy))
    endpoints = {name: layout.orders().strategy_endpoints(name) for name in STRATEGIES}
    orders = {name: read_table(endpoints[name].orders_out, ORDER) for name in STRATEGIES}
    fills = {name: read_table(endpoints[name].orders_in, FILL) for name in STRATEGIES}
    seen = read_table(notes_dir(layout, WATCHER), SEEN)
    done = {name: read_table(notes_dir(layout, name), DONE) for name in WORKERS}
    findings = auditor.findings()
    accounts = [
        venue_account(auditor.market, truth),
        *order_accounts(findings),
        *_topic_accounts(auditor.market, topic, seen),
        *_job_accounts(fills[SETTLED_STRATEGY], done, outcome),
        book_account(ticks_dir(layout), BookMode.L2, truth),
        book_account(ticks_dir(layout), BookMode.L3, truth),
        *_lake_accounts(root, auditor.market, len(topic), truth, outcome),
        *outcome.live_accounts,
    ]
    verdict = Verdict(accounts, findings.problems)
    return Evidence(root, truth, auditor.market, orders, fills, seen, done, findings, verdict, outcome)


def _topic_accounts(market: MarketTable, topic: TopicCopy, seen: Table) -> list[Account]:
    """Queue to topic by seq and content of trades; topic to watcher by seq."""
    trades = market.trades
    carried = topic.source_seq[topic.trade_place]
    known = np.isin(carried, trades.seq)
    rows = trades.rows[np.searchsorted(trades.seq, carried[known])]
    same = (rows["price"] == topic.trade_price[known]) & (rows["qty"] == topic.trade_quantity[known])
    different = int(np.count_nonzero(~known)) + int(np.count_nonzero(~same))
    how = "each message by seq, trades by content"
    bridged = account_of_seqs(
        "topics", "queue to topic", market.seq, topic.source_seq, how, different=different
    )
    how = "each record by seq"
    watched = account_of_seqs("topics", "topic to SSE watcher", topic.seq, seen.rows["seq"], how)
    return [bridged, watched]


def _job_accounts(fills: Table, done: dict[str, Table], outcome: Outcome) -> list[Account]:
    """Fills to the job queue by number, job queue to workers by order id."""
    jobs = int(outcome.topics[JOBS_TOPIC]["head_seq"])
    rows = np.concatenate([table.rows for table in done.values()])
    left = int(outcome.topics[JOBS_TOPIC]["count"])
    how = f"number of jobs ever made; {left} still there"
    return [
        account_of_counts("topics", "fills to job queue", len(fills), jobs, how),
        job_account(fills.rows["order_id"], rows["order_id"], rows["deliveries"]),
    ]


def _lake_accounts(
    root: Path, market: MarketTable, topic_records: int, truth: dict[str, Any], outcome: Outcome
) -> list[Account]:
    if outcome.lake is None:
        return []
    from examples.demo.lake_checks import lake_accounts  # needs what only Spark runs have installed

    queue = ticks_dir(IpcLayout(root))
    return lake_accounts(root, queue, market, topic_records, truth, outcome.lake)
