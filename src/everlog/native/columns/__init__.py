"""The native half of `everlog.pipeline`: records of topics as columns of text and numbers."""
