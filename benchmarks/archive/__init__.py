"""Speed of the archive beside plain `zstd -3` and `cp` of the same bytes."""
