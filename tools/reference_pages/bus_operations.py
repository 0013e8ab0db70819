"""The operations about files beside the server: queues and feeds of a bus, and the tables of a lake.

Owns their words.
"""

from __future__ import annotations

from typing import Final

from everlog.server import answers
from everlog.server.auth import Scope
from tools.reference_pages.operation import Answer, Parameter, operation

BUS: Final = (
    operation(
        "Bus",
        "GET /v0/queues",
        "listQueues",
        "List the queues of the bus directory",
        Answer("the queues", answers.QueueList),
        Scope.READ,
        parameters=(Parameter("queue", "string", "only this one, with its seqs and all lags in messages"),),
        text="For servers started with `--bus`; `root` is null otherwise. Looking changes nothing. In the "
        "list the reader that is most behind has its lag in messages, if there is time: a tenth of a second "
        "for all. A key with prefixes may not look at queues.",
    ),
    operation(
        "Bus",
        "GET /v0/queues/messages",
        "queueMessages",
        "Read messages of a queue",
        Answer("the messages", answers.QueueMessages),
        Scope.READ,
        "not_found",
        parameters=(
            Parameter("queue", "string", "path of the queue below the bus directory"),
            Parameter("from_seq", "integer", "the first seq; absent, or beyond the end: the last ones"),
            Parameter("limit", "integer", "messages at most, clamped to [1, 500]", 100),
        ),
        text="No reader is registered. Of a payload the first 4096 bytes are sent.",
    ),
    operation(
        "Bus",
        "GET /v0/feeds",
        "listFeeds",
        "List the feeds that write to the bus directory",
        Answer("the feeds", answers.FeedList),
        Scope.READ,
        text="What the connections of `everlog feed run` last said of themselves: symbols, counts, gaps by "
        "reason. A key with prefixes may not look at feeds.",
    ),
    operation(
        "Bus",
        "GET /v0/markets",
        "listMarkets",
        "List the markets in a queue or topic",
        Answer("the markets", answers.MarketList),
        Scope.READ,
        "not_found topic_not_found",
        parameters=(
            Parameter("queue", "string", "path of the queue below the bus directory"),
            Parameter("topic", "string", "instead: a topic to which a bridge forwards such a queue"),
        ),
        text="Those of the first and the last 131,072 messages, at most 500. A queue holds numbers of "
        "markets; a symbol is named if it is known.",
    ),
    operation(
        "Bus",
        "GET /v0/markets/book",
        "marketBook",
        "The book of a market at a time",
        Answer("the book", answers.MarketBook),
        Scope.READ,
        "not_found topic_not_found invalid_request",
        parameters=(
            Parameter("queue", "string", "path of the queue below the bus directory"),
            Parameter("topic", "string", "instead: a topic to which a bridge forwards such a queue"),
            Parameter("symbol", "string", "the symbol of the exchange, or the number of the market"),
            Parameter("venue_id", "integer", "of the market, if the queue has several with its number"),
            Parameter("at_ms", "integer", "the book at this time, ms since the epoch; absent: the latest"),
            Parameter("after_ms", "integer", "columns of depth from this time on, 240 at most", 0),
            Parameter("step_ms", "integer", "how much time a column stands for, 10 to 60000", 250),
            Parameter("levels", "integer", "levels of each side, clamped to [1, 100]", 20),
        ),
        text="Built from the messages of the queue, or from what a bridge made of them in a topic: the last "
        "million records. A request works for 0.1 s at most: while `is_there` is "
        "false the book is not there yet, and the same request goes on. Going forward in time is cheap, "
        "going back begins anew. Times are those of the messages.",
    ),
)

LAKE: Final = (
    operation(
        "Lake",
        "GET /v0/lake",
        "lakeState",
        "The tables of the lake and the reports of its jobs",
        Answer("the tables", answers.LakeState),
        Scope.READ,
        text="For servers started with `--lake`; `root` is null otherwise. At most 200 tables. Sizes are "
        "those of the Parquet files on disk, with files that a vacuum would remove. A key with prefixes may "
        "not look at the lake.",
    ),
)
