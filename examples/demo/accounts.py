"""The audit of everything: one account for each step of the chain, and whether every number is explained.

Owns the accounts and the verdict. It is given columns and counts that others have read, from queues,
topics and tables; no process's own statement about success is used where the data itself can be
counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.demo.audit import Findings
from examples.demo.tables import END, L2, L3, TRADES, Array, MarketTable


@dataclass(frozen=True)
class Account:
    """One step: what was to arrive, what did, and what is unexplained.

    `again` arrived once more after a kill and was recognised: it had no second effect. `lost`,
    `duplicated` and `different` are unexplained.
    """

    part: str
    step: str
    expected: int
    arrived: int
    again: int = 0
    lost: int = 0
    duplicated: int = 0
    different: int = 0
    how: str = ""

    @property
    def unexplained(self) -> int:
        """Seqs, or rows, or levels, that are not as they must be."""
        return self.lost + self.duplicated + self.different


@dataclass(frozen=True)
class Verdict:
    """All accounts and everything that is odd besides."""

    accounts: list[Account]
    problems: list[str]

    @property
    def unexplained(self) -> int:
        """The sum over all accounts."""
        return sum(account.unexplained for account in self.accounts)

    @property
    def is_sound(self) -> bool:
        """Whether every seq is explained and nothing is odd."""
        return not self.unexplained and not self.problems


def account_of_seqs(
    part: str, step: str, expected: Array, arrived: Array, how: str, *, again: int = 0, different: int = 0
) -> Account:
    """Compare the ids that should be there with those that are; ids that were never sent are duplicates."""
    wanted, found = np.unique(expected), np.unique(arrived)
    lost = len(np.setdiff1d(wanted, found, assume_unique=True))
    surplus = len(arrived) - len(np.intersect1d(wanted, found, assume_unique=True)) - again
    return Account(part, step, len(expected), len(found), again, lost, max(0, surplus), different, how)


def account_of_counts(part: str, step: str, expected: int, arrived: int, how: str) -> Account:
    """Compare two counts of things that have no id of their own."""
    lost, surplus = max(0, expected - arrived), max(0, arrived - expected)
    return Account(part, step, expected, arrived, 0, lost, surplus, 0, how)


def venue_account(market: MarketTable, truth: Mapping[str, Any]) -> Account:
    """The venue's own count of what it sent, by kind, against the queue."""
    counts = truth["counts"]
    pairs = [
        (counts["l3_events"], market.count(L3)),
        (counts["l2_events"], market.count(L2)),
        (counts["trades"], market.count(TRADES)),
        (1, market.count(END)),
    ]
    holes = len(market) and int(market.seq[-1]) + 1 - len(market)
    lost = sum(max(0, sent - found) for sent, found in pairs) + int(holes)
    surplus = sum(max(0, found - sent) for sent, found in pairs)
    expected = sum(sent for sent, _ in pairs)
    return Account(
        "queue", "venue to queue", expected, len(market), 0, lost, surplus, 0, "count by kind, seqs"
    )


def order_accounts(findings: Findings) -> list[Account]:
    """The links between feed, strategies and router."""
    return [
        Account(
            "queue",
            link.name,
            link.messages,
            link.messages - link.lost,
            link.redelivered,
            link.lost,
            link.duplicated,
            0,
            "each message by seq and content",
        )
        for link in findings.links
    ]


def job_account(fills: Array, job_order_ids: Array, deliveries: Array) -> Account:
    """Every fill was settled; those settled again came with a higher count of deliveries."""
    repeated = len(job_order_ids) - len(np.unique(job_order_ids))
    again = min(repeated, int(np.count_nonzero(deliveries > 1)))
    how = "order id of each fill; twice only if a lease had ended"
    return account_of_seqs("topics", "job queue to workers", fills, job_order_ids, how, again=again)


def stream_accounts(step: str, streams: Iterable[Mapping[str, Any]], expected: int) -> list[Account]:
    """What Spark's audit of an archive says, held against what the source really had."""
    found = []
    for stream in streams:
        covered = stream["delivered"] + stream["gap"] + stream["deleted"]
        lost = stream["missing"] + max(0, expected - covered - stream["missing"])
        how = "Spark counts seqs in the table"
        found.append(
            Account("lake", step, expected, stream["delivered"], 0, lost, stream["duplicate"], 0, how)
        )
    return found or [Account("lake", step, expected, 0, 0, expected, 0, 0, "the table has no stream")]
