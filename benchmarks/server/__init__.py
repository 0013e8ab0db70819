"""The topics server on loopback, side by side with its peers (`make bench-server`).

Start with `measures.py` (what is measured), then `report.py` (rows and targets). `servers.py` starts the
servers on one core, `load.py` is the client that is fast enough to be no bottleneck on the other, and the
`*_jobs.py` modules are what that core does.
"""
