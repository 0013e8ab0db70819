"""The topics server: the topics plane over HTTP, server-sent events and WebSocket."""
