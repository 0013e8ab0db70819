"""Leased job queues on top of a topic's log: who holds which job, and what becomes of it."""
