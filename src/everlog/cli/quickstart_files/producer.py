"""Appends an order every half second, and a job for every third one.

python producer.py [URL]
"""

import itertools
import random
import sys
import time

from everlog import Client


def main(url: str = "http://127.0.0.1:4000") -> None:
    """Append until the process is ended."""
    with Client(url) as client:
        client.put_topic("orders", {"cap_records": 100_000})
        client.put_topic("mail", {"type": "queue", "max_deliveries": 5, "dead_letter": "mail-failed"})
        for number in itertools.count(1):
            order = {
                "id": number,
                "symbol": random.choice(["BTC", "ETH", "SOL"]),
                "size": random.randint(1, 9),
            }
            # A retry after a lost connection appends nothing twice: the client sends an idempotency key.
            seq = client.append("orders", order, tag=order["symbol"]).last_seq
            if number % 3 == 0:
                client.append("mail", {"to": "ann", "order": number})
            print(f"appended order {number} as seq {seq}", flush=True)
            time.sleep(0.5)


if __name__ == "__main__":
    main(*sys.argv[1:])
