"""The file of API keys: what may stand in it, and how it replaces the keys of a running server.

Owns the format (TOML, `[[key]]` tables) and its checks. No error repeats a secret.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tomllib
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final

from everlog.errors import InvalidConfig
from everlog.server.auth import ALL_SCOPES, SCOPE_WORDS, Key, Scope

MEMBERS: Final = (
    *("name", "sha256", "key", "scopes", "prefixes", "expires", "max_topics", "max_streams", "max_bytes"),
)
FILE_BYTES_MAX: Final = 1 << 20
RELOAD_SUFFIX: Final = ".reload"
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def read_key_file(path: str, first_number: int) -> dict[bytes, Key]:
    """The keys of the file by the digest of their secret, numbered from `first_number` on."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES_MAX:
                raise InvalidConfig(
                    f"the key file {path} is no regular file of at most {FILE_BYTES_MAX} bytes"
                )
            if status.st_mode & _OTHERS:
                raise InvalidConfig(f"the key file {path} is open to other users; set its mode to 0600")
            document = tomllib.load(file)
    except OSError as error:
        raise InvalidConfig(f"the key file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        # The message of the parser may repeat a line of the file.
        raise InvalidConfig(f"the key file {path} is not valid TOML") from None
    tables = document.get("key")
    if set(document) != {"key"} or not isinstance(tables, list) or not tables:
        raise InvalidConfig(f"the key file {path} must consist of [[key]] tables, at least one")
    keys: dict[bytes, Key] = {}
    names: set[str] = set()
    for number, table in enumerate(tables, start=1):
        where = f"key {number} of {path}"
        digest, key = _key_of(table, where, first_number + number - 1)
        if digest in keys or key.name in names:
            raise InvalidConfig(f"{where} has the name or the secret of another one; give each its own")
        names.add(key.name)
        keys[digest] = key
    return keys


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for the writer of a pipe: the server's loop does this."""
    return os.open(path, flags | os.O_NONBLOCK)


def request_reload(path: str) -> None:
    """Let every server that uses the file read it again: they look at the time of a file beside it."""
    marker = path + RELOAD_SUFFIX
    fd = os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.utime(fd)
    finally:
        os.close(fd)


def reload_time_ns(path: str) -> int:
    """When a reload was requested last; 0 if none was."""
    try:
        return os.stat(path + RELOAD_SUFFIX).st_mtime_ns
    except OSError:
        return 0


def _key_of(table: object, where: str, number: int) -> tuple[bytes, Key]:
    if not isinstance(table, dict):
        raise InvalidConfig(f"{where} is not a table; write [[key]]")
    for member in table:
        if member not in MEMBERS:
            near = get_close_matches(member, MEMBERS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(MEMBERS)}"
            raise InvalidConfig(f"{where} has the unknown member {member!r}; {hint}")
    name = _text(table, "name", where)
    return _digest(table, f"{where} ({name})"), Key(
        number,
        _scopes(table, where),
        tuple(prefix.encode() for prefix in _texts(table, "prefixes", where)),
        name=name,
        expires_s=_expires(table, where),
        max_topics=_count(table, "max_topics", where),
        max_streams=_count(table, "max_streams", where),
        max_bytes=_count(table, "max_bytes", where),
    )


def _digest(table: dict[str, Any], where: str) -> bytes:
    if ("sha256" in table) == ("key" in table):
        raise InvalidConfig(f"{where} must have either key or sha256")
    if "key" in table:
        return hashlib.sha256(_text(table, "key", where).encode()).digest()
    digest = _text(table, "sha256", where)
    if not _SHA256.fullmatch(digest):
        raise InvalidConfig(f"sha256 of {where} must be 64 hexadecimal digits")
    return bytes.fromhex(digest)


def _text(table: dict[str, Any], member: str, where: str) -> str:
    value = table.get(member)
    if not isinstance(value, str) or not value.strip():
        raise InvalidConfig(f"{member} of {where} must be text that is not empty")
    return value.strip()


def _texts(table: dict[str, Any], member: str, where: str) -> list[str]:
    value = table.get(member, [])
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        raise InvalidConfig(f"{member} of {where} must be an array of texts")
    if member in table and not value:
        raise InvalidConfig(f"{member} of {where} is empty; leave it out for no limit")
    return value


def _scopes(table: dict[str, Any], where: str) -> Scope:
    words = _texts(table, "scopes", where)
    unknown = [word for word in words if word.lower() not in SCOPE_WORDS]
    if unknown:
        raise InvalidConfig(f"scopes of {where} has {unknown[0]!r}; known are {', '.join(SCOPE_WORDS)}")
    scopes = Scope(0)
    for word in words:
        scopes |= SCOPE_WORDS[word.lower()]
    return scopes or ALL_SCOPES


def _expires(table: dict[str, Any], where: str) -> float | None:
    value = table.get("expires")
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidConfig(f"expires of {where} must be a date and time like 2027-01-31T12:00:00Z")
    return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()


def _count(table: dict[str, Any], member: str, where: str) -> int | None:
    value = table.get(member)
    if value is not None and (type(value) is not int or value < 0):
        raise InvalidConfig(f"{member} of {where} is {value!r}; it must be a whole number from 0 on")
    return value
