"""The Python clients of everlog, Redis and NATS side by side: `make bench-client`."""
