"""The command `everlog`: nouns, then verbs. Owns the top level only; each noun has its own module."""

from __future__ import annotations

from typing import Annotated

import typer

import everlog
from everlog.cli import (
    audit,
    book,
    bridge,
    import_,
    jobs,
    output,
    pipeline,
    queue,
    router,
    serve,
    topic,
    verify,
)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(book.app, name="book")
app.add_typer(queue.app, name="queue")
app.add_typer(topic.app, name="topic")
app.add_typer(jobs.app, name="jobs")
app.add_typer(router.app, name="router")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(bridge.app, name="bridge")
app.add_typer(audit.app, name="audit")
app.command("import", epilog="Example: everlog import tardis-book BTCUSDT.csv.gz --queue ./history")(
    import_.import_command
)
app.command("simulate", epilog="Example: everlog simulate --queue ./queue --symbols 100 --events 1000000")(
    import_.simulate_command
)
app.command("serve", epilog="Example: everlog serve --data-dir ./topics-data")(serve.serve_command)
app.command("verify", epilog="Example: everlog verify ./topics-data")(verify.verify_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"everlog {everlog.__version__}")
        raise typer.Exit


@app.callback(epilog="Example: everlog queue tail -f ./queue")
def everlog_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Work with everlog's queues and topics from the command line."""


def main() -> None:
    """Run `everlog`."""
    output.run(app)
