"""Job queues: topics of type `queue`, whose records are leased to workers and deleted when acknowledged.

`claims` serves claim, ack, nack and extend; `lease_table` holds the state of every leased job; `lease_log`
writes deletions and leases to the log and replays them; `dead_letters` moves jobs delivered too often.
"""
