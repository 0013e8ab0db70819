"""The native half of `everlog.topics` and of the server: records in memory, and bytes to connections.

`log` has frames, batches, indexes and rendering; `socket_writer` writes to sockets.
"""
