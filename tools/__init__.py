"""Programs for contributors; nothing here is installed with everlog."""
