"""Where the Spark jobs of the demonstration leave things: tables, progress, results.

Owns the names; imports nothing of Spark, so that a run without it needs none.
"""

from __future__ import annotations

from pathlib import Path

PROGRESS_FILE = "lake-progress.jsonl"
RESULT_FILE = "lake.json"

MESSAGES_TABLE = "messages"
RECORDS_TABLE = "records"
L2_TABLE = "top_l2"
L3_TABLE = "top_l3"
FEATURES_TABLE = "features"

FEATURE_INTERVAL_NS = 50_000_000
"""A row of features for the first event of each of these intervals."""

FEATURE_DEPTH = 5


def lake_dir(root: Path) -> Path:
    """Return the root of the lake."""
    return root / "lake"
