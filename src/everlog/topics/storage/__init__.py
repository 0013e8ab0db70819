"""What the topics engine keeps on disk: the log, segments, snapshots and their byte layout."""
