"""The demonstration as a user runs it: real processes, a real kill, and how it ends when interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from everlog.bus import IpcLayout, StrategyChannel
from examples.demo import __main__ as command
from examples.demo.audit import Findings, Link, audit
from examples.demo.records import CONFIG, FILL, ORDER, STRATEGIES, ticks_dir
from examples.demo.supervisor import Kill
from tests.support.processes import eventually

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, "-m", "examples.demo"]
SHORT = ["--seconds", "1.5", "--rate", "4000"]
TICKS = 6000


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demonstration to its end, with its output in pipes."""
    return subprocess.run(
        [*DEMO, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False
    )


@contextmanager
def running_demo(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a long demonstration; yield it and its processes once they are trading."""
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    demo = subprocess.Popen(
        [*DEMO, "--seconds", "60", "--rate", "1000"],
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
            if " fills" in line and " s  " in line:
                break
        children = children_of(demo.pid)
        assert len(children) == 4, "feed, two strategies and the router"
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
    """Whether a process is gone, or only waits for somebody to ask how it ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def test_the_demo_loses_nothing_although_a_strategy_is_killed() -> None:
    result = run_demo(*SHORT, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert found["zero_loss"] is True
    assert found["problems"] == []
    links = {link["name"]: link for link in found["links"]}
    assert len(links) == 3 * len(STRATEGIES)
    for strategy in STRATEGIES:
        ticks = links[f"feed -> {strategy}"]
        orders = links[f"{strategy} -> router"]
        fills = links[f"router -> {strategy}"]
        assert ticks["messages"] == fills["messages"] == TICKS
        assert orders["messages"] == TICKS + orders["redelivered"]
        for link in (ticks, orders, fills):
            assert link["lost"] == link["duplicated"] == 0
            assert link["latency"]["samples"] > 0
            assert 0 < link["latency"]["p50_us"] <= link["latency"]["p99_us"] <= link["latency"]["p999_us"]
    resumed = found["resumption"]
    assert resumed["committed_seq"] == resumed["first_seq_after"] <= resumed["last_seq_before"] + 1
    again = resumed["last_seq_before"] + 1 - resumed["first_seq_after"]
    assert links["feed -> arbitrage"]["redelivered"] == again
    assert links["feed -> maker"]["redelivered"] == 0


def test_without_a_terminal_the_demo_prints_plain_text_and_a_named_directory_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    result = run_demo(*SHORT, "--dir", str(kept))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.isascii()
    assert "\x1b" not in result.stdout
    assert "killed arbitrage" in result.stdout
    assert "zero loss: every tick has one order, one fill and one entry in the books" in result.stdout
    assert len(list(ticks_dir(IpcLayout(kept)).glob("*.q"))) > 1, "the queue should have rolled"
    assert audit(kept, STRATEGIES, None).zero_loss
    wrong_place = Kill("arbitrage", 1, committed_seq=17)
    [problem] = audit(kept, STRATEGIES, wrong_place).problems
    assert "arbitrage had committed up to tick 17 but resumed at tick" in problem


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    with running_demo(tmp_path) as (demo, children):
        assert list(tmp_path.iterdir()) != []
        demo.send_signal(number)
        _, errors = demo.communicate(timeout=60)
        assert demo.returncode == 130
        assert errors == "interrupted; every process has ended\n"
        assert [child for child in children if not has_ended(child)] == []
        assert list(tmp_path.iterdir()) == []


def test_processes_end_by_themselves_when_the_demo_is_killed(tmp_path: Path) -> None:
    with running_demo(tmp_path) as (demo, children):
        demo.kill()
        eventually("all processes have ended", lambda: all(map(has_ended, children)))


def test_a_process_that_fails_makes_the_demo_fail_and_is_named(tmp_path: Path) -> None:
    with running_demo(tmp_path) as (demo, children):
        victim = next(child for child in children if "router" in Path(f"/proc/{child}/cmdline").read_text())
        os.kill(victim, signal.SIGKILL)
        _, errors = demo.communicate(timeout=60)
        assert demo.returncode == 1
        assert "the demonstration failed: router failed with exit code -9" in errors
        assert [child for child in children if not has_ended(child)] == []


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    result = run_demo("--dir", str(tmp_path))
    assert result.returncode == 2
    assert "is not empty; name a new directory" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize(("lost", "duplicated", "problems"), [(1, 0, []), (0, 1, []), (0, 0, ["odd"])])
def test_the_exit_code_is_1_if_anything_is_lost_doubled_or_odd(
    lost: int, duplicated: int, problems: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link("a -> b", 9, 1, 1.0, None, lost, duplicated, 0)
    findings = Findings([link], {"b": None}, 0, None, problems)
    monkeypatch.setattr(command, "_run", lambda *_: findings)
    monkeypatch.setattr(command, "_raise_once_on_signals", lambda: None)
    assert command.main([]) == 1
    assert command.main(["--json"]) == 1


def test_a_router_that_is_killed_answers_no_order_twice(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "examples.demo.router", str(tmp_path), "1"]
    received: list[int] = []

    def has_received(channel: StrategyChannel, count: int) -> bool:
        while (fill := channel.next_fill()) is not None:
            received.append(FILL.unpack(fill)[0])
        return len(received) >= count

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
