"""The native half of `everlog.market`: order books, and book events in bulk.

`books` applies events to L2 and L3 books, also straight from a queue; `events` turns rows of text into events
and sorts events by market.
"""
