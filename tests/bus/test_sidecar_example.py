"""The sidecar example: section 5.6, as a user would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sidecar.py"


def test_the_sidecar_example_ends_by_itself_and_loses_nothing() -> None:
    command = [sys.executable, str(EXAMPLE), "--orders", "5000"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    assert "3 strategies, 15000 orders, 0 lost" in result.stdout
    for strategy in ("arbitrage", "maker", "latecomer"):
        assert f"found {strategy}, opened both queues, handed them to the hot thread" in result.stdout
        assert f"closed the queues of {strategy}" in result.stdout
        [row] = [line.split() for line in result.stdout.splitlines() if line.startswith(strategy)]
        _, orders, fills, rolls, segments_left = row
        assert orders == fills == "5000"
        assert int(rolls) >= 2  # so a prepared segment was used, and
        assert int(segments_left) < int(rolls) + 1  # retention deleted at least one
