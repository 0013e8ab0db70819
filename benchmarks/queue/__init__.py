"""The queue next to its peers: latency, throughput and cost per message (`make bench-queue`).

Start with `measures.py` (what is measured), then `loops.py` (the timed code, the same for all
contenders) and `peers/` (how each contender sends and receives).
"""
