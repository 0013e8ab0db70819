"""What `everlog audit` says of the queues, topics and bridges of a run while its server still lives.

Owns the translation into accounts; the rules are everlog's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from everlog import Client
from everlog.bridge.audit_bridge import audit_bridge
from everlog.bridge.audit_queue import audit_queue
from everlog.bridge.audit_topic import audit_topic
from everlog.fs import OsFs
from everlog.queue.inspect import find_queues
from examples.demo.accounts import Account

PART = "live"


def live_accounts(
    client: Client, root: str, topics: Iterable[str], bridges: Iterable[tuple[str, str]]
) -> list[Account]:
    """Audit every queue below `root`, the topics, and the bridges given as queue and name."""
    accounts = [_queues_account(root)]
    for topic in topics:
        told = audit_topic(client, topic)
        how = f"everlog audit topic: {told.live:,} live, {told.deleted:,} deleted"
        explained = told.assigned - told.unexplained
        accounts.append(
            Account(
                PART,
                f"seqs of topic {topic}",
                told.assigned,
                explained,
                0,
                told.unexplained,
                0,
                told.disordered,
                how,
            )
        )
    for queue, name in bridges:
        crossed = audit_bridge(client, queue, name)
        how = f"everlog audit bridge: {crossed.present:,} present, {crossed.gone:,} done and gone"
        explained = crossed.forwarded - crossed.unexplained
        accounts.append(
            Account(
                PART,
                f"bridge of {name}",
                crossed.forwarded,
                explained,
                0,
                crossed.unexplained,
                crossed.duplicates,
                0,
                how,
            )
        )
    return accounts


def _queues_account(root: str) -> Account:
    paths = find_queues(OsFs(), root).paths
    told = [audit_queue(path) for path in paths]
    assigned, unexplained, damaged = (
        sum(getattr(one, name) for one in told) for name in ("assigned", "unexplained", "damaged")
    )
    how = "everlog audit queue: each seq, each checksum"
    step = f"seqs of {len(paths)} queues"
    return Account(PART, step, assigned, assigned - unexplained, 0, unexplained, 0, damaged, how)
