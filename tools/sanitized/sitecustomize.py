"""Write reports of UBSan to files, in every Python process that `tools.sanitize` starts.

ASan reads where to write from ASAN_OPTIONS; the UBSan of gcc writes to stderr, which many tests discard.
"""

import ctypes
import os

ctypes.CDLL("libubsan.so.1").__sanitizer_set_report_path(os.fsencode(os.environ["UBSAN_REPORTS"]))
