"""Does the jobs: a job is gone when its handler returns, and comes again when it raises or its worker dies.

python worker.py [URL]
"""

import logging
import random
import sys

from everlog import Client, Worker


def one_line(record):
    """Let a worker log one line for a failure; the trace is with the job: everlog jobs show mail SEQ."""
    record.exc_info = None
    return True


logging.getLogger("everlog.worker").addFilter(one_line)


def main(url: str = "http://127.0.0.1:4000") -> None:
    """Work until the process is ended; what is under way is finished first."""
    with Client(url) as client:
        # As in producer.py: either may start first.
        client.put_topic("mail", {"type": "queue", "max_deliveries": 5, "dead_letter": "mail-failed"})
        worker = Worker(client, "mail", concurrency=2)

        @worker.handler
        def send(job):
            if random.random() < 0.2:
                raise ConnectionError("the mail server is busy (made up, to show a retry)")
            print(
                f"mail to {job.data['to']} about order {job.data['order']}, try {job.deliveries}", flush=True
            )

        worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
