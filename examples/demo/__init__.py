"""The demonstration: the whole chain of everlog, every box a process of its own.

    venue --> queue --> strategies <--> router                    files that all processes map
                |                         |
              bridge                bridge of fills
                v                         v
              topic --> SSE watcher   job queue --> workers       one topics server
                |
    queue and topic --> Spark: archive, L2 and L3 replay, features, audit

`python -m examples.demo` (or `make demo`) starts them, kills the bridge, a strategy and a worker with
SIGKILL on the way and starts them again. When all is over it reads everything from the first record
and holds every step against the one before it, and the books against the venue's own. What the report
says is what that audit found and what was measured in this run.

Where to look: `feed`, `strategy`, `router`, `watcher`, `worker` and `lake` are the programs, `records`
is what they say to each other, `processes` and `session` start and kill them, `display` shows the live
book; `audit` follows the orders, `accounts` and `evidence` judge the rest; `series`, `charts`, `page` and
`report` tell it.
"""
