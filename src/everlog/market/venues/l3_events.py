"""Order-by-order events in bulk: where importers begin to fill in their columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from everlog.market.protocol import new_l3_records


def l3_records(count: int, *, venue_id: int = 0, market_id: int = 0) -> NDArray[Any]:
    """Return `count` payloads with everything constant set; copies of one are made fastest."""
    return np.repeat(new_l3_records(1, venue_id=venue_id, market_id=market_id), count)
