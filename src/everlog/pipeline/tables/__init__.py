"""Tables that people query: market data with names, times and prices in place of ids and integers.

`schemas` says which tables there are and what their columns mean; `rows` makes their rows of decoded
messages; `payloads` decodes events that are in no queue, as importers have them; `views` is for SQL.
"""

from everlog.pipeline.tables.schemas import SCHEMAS, TableSchema

__all__ = ["SCHEMAS", "TableSchema"]
