"""The pages of docs/reference that are made from the code: HTTP API, commands, settings, metrics.

Owns words and shapes for readers; serves nothing and decides nothing. `python -m tools.reference_pages`
(`make api`) writes the files; a test compares what is committed with what the code says.
"""
