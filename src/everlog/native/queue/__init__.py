"""The native half of `everlog.queue`: mappings of its files, reading and appending messages.

`ring` is the compiled module. Its `Mapping` also serves the topics plane, which maps its log files with it.
"""
