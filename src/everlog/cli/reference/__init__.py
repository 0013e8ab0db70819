"""Reference pages that are made from the code: commands, settings and metrics.

`python -m everlog.cli.reference` writes them; a test compares what is committed with what the code says.
"""
