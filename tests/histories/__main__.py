"""Long histories: `python -m tests.histories --kills 40`, or `make histories HISTORIES=40`.

Servers are killed under concurrent clients, and their histories checked. What was checked goes to
`build/proof/histories.json`: `seed`, `servers`, `kills`, `histories` (one for each topic and job),
`operations`, `unanswered` (of these, without an answer), `states` (visited by the search), `violations` and
`seconds`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.histories.checker import NotLinearizable
from tests.histories.history import Totals
from tests.histories.server_trial import ServerTrial
from tests.support.processes import fresh_seed

KILLS_PER_SERVER = 5
REPORT = Path("build/proof/histories.json")


def main() -> int:
    """Run, print the totals and write them."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--kills", type=int, default=40, help="how many times a server is killed")
    options = parser.parse_args()
    seed, started, totals = fresh_seed("histories"), time.monotonic(), Totals()
    kills = servers = violations = 0
    while kills < options.kills:
        with tempfile.TemporaryDirectory(prefix="everlog-histories-") as folder:
            trial = ServerTrial(Path(folder), seed + 1000 * servers)
            trial.run(min(KILLS_PER_SERVER, options.kills - kills))
        kills += trial.kills
        servers += 1
        try:
            totals += trial.history.check()
        except NotLinearizable as error:
            violations += 1
            print(f"seed {seed}, server {servers}: {error}", file=sys.stderr)
    report = {
        "seed": seed,
        "servers": servers,
        "kills": kills,
        "histories": totals.histories,
        "operations": totals.operations,
        "unanswered": totals.unanswered,
        "states": totals.states,
        "violations": violations,
        "seconds": round(time.monotonic() - started, 1),
    }
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    print(", ".join(f"{name} {value}" for name, value in report.items()))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
