"""The jobs as a program for `spark-submit`: the commands of `everlog pipeline` with the session it gives.

`spark-submit --master ... everlog_submit.py archive --queue feed --lake lake`. It is beside the package,
because Python first looks for modules in the directory of the program.
"""

from __future__ import annotations

from everlog.cli.pipeline import app

if __name__ == "__main__":
    app(prog_name="everlog pipeline")
