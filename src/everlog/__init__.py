"""everlog: an ordered log that never loses anything silently, in three planes."""

from everlog.errors import EverlogError

__all__ = ["EverlogError", "__version__"]
__version__ = "0.1.0"
