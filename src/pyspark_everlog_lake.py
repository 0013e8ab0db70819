"""Found by Spark itself: a module whose name begins with `pyspark_` makes its format known."""

from everlog.pipeline.sources.lake import LakeFormat as DefaultSource

__all__ = ["DefaultSource"]
