"""Real servers, several clients at once, `kill -9`: one order explains every answer."""

from __future__ import annotations

from pathlib import Path

from tests.histories.server_trial import ServerTrial
from tests.support.effort import effort
from tests.support.processes import fresh_seed

KILLS = effort(4)


def test_one_order_explains_what_clients_of_a_killed_server_were_answered(tmp_path: Path) -> None:
    trial = ServerTrial(tmp_path, fresh_seed("server histories"))
    trial.run(KILLS)
    totals = trial.history.check()
    print(f"{totals.operations} operations in {totals.histories} histories, {trial.kills} kills")
    assert totals.operations > 50 * KILLS
