"""Spark over queues and topics: rates beside those of Spark's own sources, and how they scale."""
