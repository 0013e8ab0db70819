"""Routers: records of one topic are copied to others, off the path of the writer."""
