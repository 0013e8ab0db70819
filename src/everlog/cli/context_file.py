"""Named servers: which address and key a command uses when none is given.

Owns the file `contexts.json` in the user's configuration directory, mode 0600 because it holds keys, and the
order in which address and key are chosen. Talks to no server.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from everlog.client.wire import DEFAULT_URL, ServerAddress
from everlog.errors import CorruptMetadata, InvalidConfig, InvalidName

FILE_NAME: Final = "contexts.json"
CONTEXTS_MAX: Final = 1000
FILE_BYTES_MAX: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """A server that has a name here."""

    url: str
    key: str | None = None


class Contexts(msgspec.Struct, forbid_unknown_fields=True):
    """All named servers; `selected` is used where no other is asked for."""

    contexts: dict[str, Context] = {}
    selected: str | None = None

    def named(self, name: str) -> Context:
        """The context of this name; raises InvalidConfig if there is none."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise InvalidConfig(
                f"there is no context {name!r} (known: {known}); `everlog context add` makes one"
            )
        return self.contexts[name]


@dataclass(frozen=True, slots=True)
class Target:
    """The server of a command, and where address and key come from."""

    url: str
    url_from: str
    key: str | None
    key_from: str


def contexts_path() -> Path:
    """Where the file is: below XDG_CONFIG_HOME, or ~/.config."""
    base = os.environ.get("XDG_CONFIG_HOME") or ""
    # A relative path is to be ignored, says the specification of these directories.
    root = Path(base) if os.path.isabs(base) else Path("~/.config").expanduser()
    return root / "everlog" / FILE_NAME


def load() -> Contexts:
    """Read the file; none is no contexts. Raises InvalidConfig if other users can read it."""
    path = contexts_path()
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Contexts()
    if stat.S_IMODE(mode) & 0o077:
        raise InvalidConfig(f"{path} holds keys, and others may read it; chmod 600 {path}")
    try:
        return msgspec.json.decode(text, type=Contexts)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptMetadata(f"{path} cannot be read ({error}); repair or remove it") from None


def save(contexts: Contexts) -> None:
    """Write the file as a whole, so that another command sees the old one or the new one."""
    if len(contexts.contexts) > CONTEXTS_MAX:
        raise InvalidConfig(f"{len(contexts.contexts)} contexts; at most {CONTEXTS_MAX} are possible")
    path = contexts_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{FILE_NAME}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(contexts)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def checked_name(name: str) -> str:
    """The name, if it can be one."""
    if not _NAME.fullmatch(name):
        raise InvalidName(f"{name!r} cannot name a context; use up to 64 letters, digits, '.', '_' and '-'")
    return name


def target(url: str | None, key: str | None, context: str | None) -> Target:
    """The server to talk to: a given URL, the context asked for, the selected one, or the default.

    The key of a context goes to the server of that context only, never to a URL that was given.
    """
    if url is not None and context is not None:
        raise InvalidConfig("both a URL and a context are given; give one of them")
    given_key = "given" if key is not None else "none"
    if url is not None:
        return Target(url, "given", key, given_key)
    contexts = load()
    name = context or contexts.selected
    if name is None:
        return Target(DEFAULT_URL, "default", key, given_key)
    found = contexts.named(name)
    if key is not None or found.key is None:
        return Target(found.url, f"context {name}", key, given_key)
    return Target(found.url, f"context {name}", found.key, f"context {name}")


def checked_context(url: str, key: str | None) -> Context:
    """A context for this server; raises InvalidConfig for a URL that is none."""
    return Context(str(ServerAddress.parse(url)), key or None)
