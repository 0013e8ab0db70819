"""The topics engine inside one process: rates, recovery, memory, growth (`make bench-engine`).

Start with `measures.py` (what is measured), then `report.py` (rows and targets); the timed code is in
the `*_jobs.py` modules, each run in a fresh process on one core.
"""
