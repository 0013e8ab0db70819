"""The events all contenders get: made once, with fixed seeds, like those of a busy market.

Owns the shape of the load. L2: most updates are near the best price, the price wanders, and levels that the
price has passed are removed. L3: a number of live orders is kept up by adds, cancels, modifies and trades.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from everlog.market.book_results import L2_UPDATE
from everlog.market.protocol import L3EventType, new_l3_records

MIDDLE = 1_000_000
REMOVED = 0.25
MEAN_DEPTH = 8
MODIFY, TRADE = 0.1, 0.1


def l2_updates(count: int, *, tick: int = 1, jump: int = 0, seed: int = 1) -> NDArray[np.void]:
    """Return level updates; the price moves by one tick now and then, and by `jump` ticks rarely."""
    random = np.random.default_rng(seed)
    updates = np.zeros(count, dtype=L2_UPDATE)
    depths = random.geometric(1 / MEAN_DEPTH, count).tolist()
    sides, sizes = random.integers(0, 2, count).tolist(), random.integers(1, 1000, count).tolist()
    removed = (random.random(count) < REMOVED).tolist()
    moves = np.where(random.random(count) < 0.06, random.integers(0, 2, count) * 2 - 1, 0)
    if jump:
        moves += np.where(random.random(count) < 0.0005, (random.integers(0, 2, count) * 2 - 1) * jump, 0)
    books: tuple[set[int], set[int]] = (set(), set())
    rows: list[tuple[int, int, int]] = []
    middle = MIDDLE
    for depth, side, size, gone, move in zip(depths, sides, sizes, removed, moves.tolist(), strict=True):
        if len(rows) >= count:
            break
        middle += move
        if move:
            rows += [(price, 0, 1) for price in books[0] if price >= middle]
            rows += [(price, 0, 2) for price in books[1] if price < middle]
            books[0].difference_update({price for price in books[0] if price >= middle})
            books[1].difference_update({price for price in books[1] if price < middle})
        price = middle - depth if side == 0 else middle + depth - 1
        if gone and price in books[side]:
            books[side].discard(price)
            rows.append((price, 0, side + 1))
        else:
            books[side].add(price)
            rows.append((price, size, side + 1))
    for name, column in zip(("price", "size", "side"), np.array(rows[:count]).T, strict=True):
        updates[name] = column
    updates["price"] *= np.int64(tick)
    return updates


def scattered_l2_updates(count: int, spread: int, *, seed: int = 2) -> NDArray[np.void]:
    """Return updates at prices all over `spread` ticks on each side: the worst case for any cache."""
    random = np.random.default_rng(seed)
    updates = np.zeros(count, dtype=L2_UPDATE)
    updates["side"] = random.integers(1, 3, count)
    distance = random.integers(0, spread, count)
    updates["price"] = 10**9 + np.where(updates["side"] == 1, -1 - distance, distance)
    updates["size"] = np.where(random.random(count) < REMOVED, 0, random.integers(1, 1000, count))
    return updates


def l3_records(live: int, count: int, levels: int, *, seed: int = 3) -> NDArray[np.void]:
    """Return `live` adds and then `count` events that keep about so many orders alive."""
    random = np.random.default_rng(seed)
    total = live + count
    records = new_l3_records(total, venue_id=2, market_id=1)
    ids, kinds = np.zeros(total, dtype=np.uint64), np.zeros(total, dtype=np.uint8)
    picks, chances = random.random(total).tolist(), random.random(total).tolist()
    alive: list[int] = []
    for number, (pick, chance) in enumerate(zip(picks, chances, strict=True)):
        if len(alive) < live:
            alive.append(number + 1)
            ids[number], kinds[number] = number + 1, L3EventType.ORDER_ADD
            continue
        at = int(pick * len(alive))
        ids[number] = alive[at]
        if chance < MODIFY:
            kinds[number] = L3EventType.ORDER_MODIFY
            continue
        kinds[number] = L3EventType.TRADE if chance < MODIFY + TRADE else L3EventType.ORDER_CANCEL
        alive[at] = alive[-1]
        alive.pop()
    event = records["event"]
    event["order_id"], event["event_type"] = ids, kinds
    home = ids.astype(np.int64)  # the side and price of an order depend on its id alone
    depth = np.minimum(np.random.default_rng(seed).geometric(4 / levels, total + 1)[home], levels)
    event["side"] = 1 + home % 2
    event["price"] = MIDDLE + np.where(home % 2 == 0, -depth, depth)
    sizes = random.integers(1, 100, total)
    event["qty"] = np.where((kinds == L3EventType.ORDER_CANCEL) | (kinds == L3EventType.TRADE), 0, sizes)
    records["header"]["seq"] = np.arange(1, total + 1)
    return records
