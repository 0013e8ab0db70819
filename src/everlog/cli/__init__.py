"""The commands `everlog` and `chron-cli`. Knows the layers below; nothing below knows it."""
