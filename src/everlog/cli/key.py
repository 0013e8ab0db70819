"""The commands of `everlog key`: new, ls, revoke, reload. Owns how they change the file of API keys.

The file keeps digests; a secret is printed once, when it is made, and stored nowhere. Comments and tables of
other keys stay as they are.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tomllib
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
import typer

from everlog.cli.options import AsJson
from everlog.cli.output import Table, counted, group, print_json, print_table, printable, reporting
from everlog.errors import InvalidConfig
from everlog.fs import OsFs, replace_file
from everlog.server.auth import ALL_SCOPES, Key, Scope
from everlog.server.key_file import read_key_file, request_reload

app = group(
    "API keys in a file that servers read.", "everlog key new till --scopes read+write --file keys.toml"
)

KeyFile = Annotated[
    str,
    typer.Option(
        "--file",
        metavar="FILE",
        envvar="TOPICS_API_KEYS_FILE",
        show_default=False,
        help="The file of keys, TOML with mode 0600.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key.", show_default=False)]
_TABLE: Final = re.compile(r"^\[\[key\]\]", re.MULTILINE)
_LOADED: Final = "servers read the file again within 2 s"


@app.command(
    "new", epilog="Example: everlog key new till --scopes read+write --prefix till. --file keys.toml"
)
def new_command(
    name: Name,
    file: KeyFile,
    scopes: Annotated[
        str, typer.Option(metavar="WORDS", help="What it may do, like read+write. Default: everything.")
    ] = "",
    prefix: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Only names that begin with this; may be repeated."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="When it ends, like 2027-01-31T12:00:00Z.")
    ] = None,
    max_topics: Annotated[int | None, typer.Option(min=0, help="Topics it may create.")] = None,
    max_streams: Annotated[int | None, typer.Option(min=0, help="Streams it may have open.")] = None,
    max_bytes: Annotated[int | None, typer.Option(min=0, help="Bytes that its topics may hold.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key, add its digest to the file, and print its secret, once. The file is created if missing."""
    with reporting(as_json=as_json):
        secret = secrets.token_urlsafe(32)
        fields: dict[str, object] = {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest()}
        if scopes:
            fields["scopes"] = [word.strip() for word in scopes.split("+") if word.strip()]
        if prefix:
            fields["prefixes"] = prefix
        given = {"max_topics": max_topics, "max_streams": max_streams, "max_bytes": max_bytes}
        fields |= {word: value for word, value in given.items() if value is not None}
        table = "[[key]]\n" + "".join(f"{word} = {_toml(value)}\n" for word, value in fields.items())
        if expires is not None:
            table += f"expires = {_time(expires)}\n"
        text = _text(file) if os.path.exists(file) else ""
        _write(file, f"{text.rstrip()}\n\n{table}".lstrip())
        answer = {"name": name, "key": secret, "file": file}
        print_json(answer) if as_json else print(f"{secret}\n{printable(name)}: added; {_LOADED}")


@app.command("ls", epilog="Example: everlog key ls --file keys.toml")
def ls_command(file: KeyFile, as_json: AsJson = False) -> None:
    """List the keys of a file: names, scopes, prefixes, expiry, caps. Secrets are not in it."""
    with reporting(as_json=as_json):
        keys = [_shown(key) for key in read_key_file(file, 1).values()]
        if as_json:
            print_json({"keys": keys})
            return
        columns = ("key", "scopes", "prefixes", "expires", "topics>", "streams>", "bytes>")
        rows = [
            tuple("" if value in (None, "") else printable(str(value)) for value in each.values())
            for each in keys
        ]
        print_table(Table(f"keys of {file}", columns, rows))


@app.command("revoke", epilog="Example: everlog key revoke till --file keys.toml")
def revoke_command(name: Name, file: KeyFile, as_json: AsJson = False) -> None:
    """Remove a key from the file; its streams end within 5 s."""
    with reporting(as_json=as_json):
        text = _text(file)
        starts = [found.start() for found in _TABLE.finditer(text)]
        kept = text[: starts[0]] if starts else text
        removed = 0
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
            block = text[start:end]
            (table,) = tomllib.loads(block)["key"]
            removed += table.get("name") == name
            kept += "" if table.get("name") == name else block
        if not removed:
            raise InvalidConfig(f"there is no key {name!r} in {file}; `everlog key ls` shows them")
        if removed == len(starts):
            raise InvalidConfig(f"{name!r} is the only key of {file}; make another one first")
        _write(file, kept)
        answer = {"name": name, "revoked": True, "file": file}
        print_json(answer) if as_json else print(f"{printable(name)}: revoked; {_LOADED}")


@app.command("reload", epilog="Example: everlog key reload --file keys.toml")
def reload_command(file: KeyFile, as_json: AsJson = False) -> None:
    """Check the file, and let every server that uses it read it again. A bad one changes nothing."""
    with reporting(as_json=as_json):
        keys = read_key_file(file, 1)
        request_reload(file)
        answer = {"keys": len(keys), "file": file}
        print_json(answer) if as_json else print(f"{counted(len(keys), 'key')}; {_LOADED}")


def _text(file: str) -> str:
    read_key_file(file, 1)  # a file that cannot be used is not changed
    with open(file, encoding="utf-8") as opened:
        return opened.read()


def _write(file: str, text: str) -> None:
    """Replace the file if the new text is a good one, and let servers read it."""
    trial = f"{file}.new"
    replace_file(OsFs(), trial, text.encode())
    try:
        os.chmod(trial, 0o600)
        read_key_file(trial, 1)
    except BaseException:
        os.unlink(trial)
        raise
    os.replace(trial, file)
    request_reload(file)


def _toml(value: object) -> str:
    """JSON strings, numbers and arrays are TOML."""
    return msgspec.json.encode(value).decode()


def _time(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"--expires {text!r} is not a time like 2027-01-31T12:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


def _shown(key: Key) -> dict[str, object]:
    words = [str(scope.name).lower() for scope in Scope if key.allows(scope)]
    expires = None if key.expires_s is None else datetime.fromtimestamp(key.expires_s, UTC).isoformat()
    return {
        "name": key.name,
        "scopes": "all" if key.scopes == ALL_SCOPES else "+".join(words),
        "prefixes": " ".join(prefix.decode("utf-8", "replace") for prefix in key.prefixes),
        "expires": expires,
        "max_topics": key.max_topics,
        "max_streams": key.max_streams,
        "max_bytes": key.max_bytes,
    }
