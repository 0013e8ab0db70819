"""The commands of `everlog symbols`: ls, show, refresh, import.

Owns what they print. The catalogue is `everlog.market.symbols`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import typer

from everlog.cli import output
from everlog.cli.options import AsJson
from everlog.cli.output import Table, counted, group, printable, reporting
from everlog.clock import SystemClock
from everlog.errors import InvalidConfig, InvalidSource

if TYPE_CHECKING:
    from everlog.market.symbols import SymbolCatalogue, SymbolVersion

app = group("Names, tick sizes and versions of the symbols in queues.", "everlog symbols ls ./queue")

Place = Annotated[
    str, typer.Argument(metavar="DIR", help="A queue, or the root of a bus or archive.", show_default=False)
]
EXCHANGE_INFO = "exchangeInfo"


@app.command(epilog="Example: everlog symbols ls ./queue")
def ls(
    directory: Place,
    everything: Annotated[bool, typer.Option("--all", help="Earlier versions too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the symbols of a queue, with those that its bus or archive knows."""
    from everlog.market.symbols import load_nearby

    with reporting(as_json=as_json):
        found = [one for one in load_nearby(directory).versions if everything or one.is_current]
        if as_json:
            output.print_json({"symbols": [_document(one) for one in found]})
        else:
            output.print_table(_table(f"symbols of {printable(directory)}", found))
            if lacking := sum(one.tick_size is None for one in found):
                print(
                    f"the sources of {counted(lacking, 'symbol')} say no tick size; 'everlog symbols import' "
                    "adds what an exchange says"
                )


@app.command(epilog="Example: everlog symbols show ./queue BTCUSDT")
def show(
    directory: Place,
    symbol: Annotated[str, typer.Argument(metavar="SYMBOL", help="The exchange's symbol, or a market id.")],
    as_json: AsJson = False,
) -> None:
    """Show every version of a symbol, its ids, and when each was valid."""
    from everlog.market.symbols import load_nearby

    with reporting(as_json=as_json):
        versions = load_nearby(directory).versions
        found = [one for one in versions if symbol in (one.exchange_symbol, str(one.market_id))]
        if not found:
            raise InvalidConfig(
                f"no symbol {symbol!r} is known at {directory}; 'everlog symbols ls' lists what is, and "
                "'everlog symbols import' adds more"
            )
        if as_json:
            output.print_json({"symbol": symbol, "versions": [_document(one) for one in found]})
            return
        for one in found:
            shown = {"valid_from_ts": _time(one.valid_from_ts), "valid_until_ts": _until(one) or "now"}
            fields = {**_document(one), **shown}.items()
            output.print_fields(
                [
                    (name.removesuffix("_ts").replace("_", " "), "unknown" if value is None else str(value))
                    for name, value in fields
                ]
            )


@app.command(epilog="Example: everlog symbols refresh ./bus")
def refresh(directory: Place, as_json: AsJson = False) -> None:
    """Bring the catalogue of a queue, bus or archive up to date with the queues in it.

    Takes in what imports have noted in their ledgers and what the catalogues of the queues below say. If
    that fails the catalogue stays as it was.
    """
    with reporting(as_json=as_json):
        from everlog.market.symbol_sources import refresh_symbols

        changed, catalogue = refresh_symbols(directory)
        _report(directory, changed, catalogue, as_json=as_json)


@app.command("import", epilog="Example: everlog symbols import exchangeInfo.json --to ./bus --venue binance")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Rows as JSON lines, or Binance exchangeInfo.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="A queue, or the root of a bus or archive.")],
    venue: Annotated[str, typer.Option(help="Whose exchangeInfo it is.")] = "binance",
    as_json: AsJson = False,
) -> None:
    """Add symbols from a file: rows of a catalogue, or the exchange's own list.

    Rows without a key, with a negative one, or that end before they begin are skipped and counted.
    """
    with reporting(as_json=as_json):
        from everlog.market.symbols import changing_symbols, read_symbols
        from everlog.market.venues.binance_info import exchange_info

        now_ts = SystemClock().wall_ns() // 1000
        if not Path(file).is_file():
            raise InvalidSource(f"cannot read {file}: there is no such file", file)
        body = Path(file).read_bytes()
        with changing_symbols(to) as catalogue:
            if b'"symbols"' in body[:1_000_000] and body.lstrip().startswith(b"{"):
                try:
                    definitions = exchange_info(body, venue)
                except msgspec.MsgspecError as error:
                    raise InvalidSource(f"{file} is not {EXCHANGE_INFO} of Binance: {error}", file) from None
                changed = catalogue.record(definitions, now_ts)
            else:
                rows = read_symbols(file)
                before = set(catalogue.versions)
                catalogue.versions = rows.completed_by(catalogue).versions
                changed = len(set(catalogue.versions) - before)
                catalogue.skipped = rows.skipped
        _report(to, changed, catalogue, as_json=as_json)


def _report(directory: str, changed: int, catalogue: SymbolCatalogue, *, as_json: bool) -> None:
    counts = {"changed": changed, "versions": len(catalogue), "skipped": catalogue.skipped}
    skipped = f", {counted(catalogue.skipped, 'row')} skipped" if catalogue.skipped else ""
    text = (
        f"{counted(changed, 'version')} new or changed, {counted(len(catalogue), 'version')} at "
        f"{printable(directory)}{skipped}"
    )
    output.print_result({"directory": directory, **counts}, text, as_json=as_json)


def _document(one: SymbolVersion) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(one)
    return {**document, "market_id": one.market_id, "symbol_version_id": one.symbol_version_id}


def _table(title: str, versions: list[SymbolVersion]) -> Table:
    columns = ("venue", "symbol", "market>", "tick size>", "lot size>", "from>", "until>")
    rows = [
        (
            printable(one.exchange),
            printable(one.exchange_symbol),
            str(one.market_id),
            _tick_size(one),
            _shown(one.lot_size),
            _time(one.valid_from_ts),
            _until(one),
        )
        for one in versions
    ]
    return Table(title, columns, rows)


def _time(at_ts: int) -> str:
    """Return a time of the catalogue, in microseconds, in UTC; years may be beyond those of `datetime`."""
    return str(np.datetime64(at_ts, "us")).replace("T", " ")


def _until(one: SymbolVersion) -> str:
    return "" if one.is_current else _time(one.valid_until_ts)


def _tick_size(one: SymbolVersion) -> str:
    """What the exchange says; the finest price seen is a hint at most."""
    if one.tick_size is None and one.price_increment is not None:
        return f"unknown, prices by {_shown(one.price_increment)}"
    return _shown(one.tick_size) or "unknown"


def _shown(size: float | None) -> str:
    return "" if size is None else f"{size:.12f}".rstrip("0").rstrip(".")
