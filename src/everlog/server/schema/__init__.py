"""Documents of the HTTP API, made from the code: OpenAPI, AsyncAPI and the reference page.

Owns words and shapes for readers; serves nothing and decides nothing. `python -m everlog.server.schema`
writes the documents.
"""
