"""The jobs as a program for `spark-submit`: the commands of `everlog pipeline` with the session it gives.

Owns nothing but the entry: `spark-submit --master ... everlog_submit.py archive --queue feed --lake lake`.
It lies beside the package, because Python looks for modules in the folder of the program it runs first.
"""

from __future__ import annotations

from everlog.cli.pipeline import app

if __name__ == "__main__":
    app(prog_name="everlog pipeline")
