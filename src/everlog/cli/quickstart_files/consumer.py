"""Reads the orders from where it was; end it and start it again: it goes on with the next one.

python consumer.py [URL]
"""

import sys

from everlog import Client, Consumer


def main(url: str = "http://127.0.0.1:4000") -> None:
    """Read until the process is ended."""
    total = 0
    with Client(url) as client:
        client.put_topic("orders", {"cap_records": 100_000})  # as in producer.py: either may start first
        # The server stores how far the consumer `totals` is; `everlog consumer ls orders` shows it.
        with Consumer(client, "orders", "totals") as consumer:
            for record in consumer:
                total += record.data["size"]
                print(f"seq {record.seq}: {record.data['symbol']}, {total} in all", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
