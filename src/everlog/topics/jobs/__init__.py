"""Job queues: topics of type `queue`, whose records are leased to workers and deleted when acknowledged.

`job_calls` has the operations, `claims` serves them; `lease_table` holds the state of every leased job;
`job_board` the jobs that have options, and with `claim_order` and `claim_rates` which is claimed next;
`lease_log` writes all of it to the log and replays it; `dead_letters` moves jobs delivered too often.
"""
