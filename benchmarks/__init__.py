"""Benchmarks: each package below prints one table, everlog side by side with its peers."""
