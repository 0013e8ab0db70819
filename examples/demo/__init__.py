"""The demonstration: a feed, two strategies and a router, each a process of its own, over queues.

    feed --ticks--> arbitrage --orders--> router --fills--> arbitrage
    feed --ticks--> maker     --orders--> router --fills--> maker

`python -m examples.demo` starts them, kills one strategy with SIGKILL half way, starts it again,
and when all is over reads every queue from its first record and follows each tick to its order,
its fill and the books of the strategy. What it prints is what that audit found.

Where to look: `feed`, `strategy` and `router` are the three programs, `records` is what they say
to each other, `supervisor` starts and kills them, `audit` judges, `report` prints.
"""
