"""What keys may do: the API key list, tokens as requests carry them, and the rule for open addresses.

Owns the grammar of the key list and the comparison of tokens. Knows no route, no topic and no connection;
what a route needs is for its caller to say. The key list is kept as SHA-256 digests only; `Authorization`
headers that were verified stay in memory. No error repeats any part of the list, because a misplaced colon
makes a secret look like a scope.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
import time
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Final
from urllib.parse import unquote_to_bytes

from everlog.errors import InvalidConfig


class Scope(Flag):
    """What a key may be used for; a route may need several."""

    READ = auto()
    WRITE = auto()
    DELETE = auto()
    ADMIN = auto()


ALL_SCOPES: Final = Scope.READ | Scope.WRITE | Scope.DELETE | Scope.ADMIN

SCOPE_WORDS: Final = {
    "read": Scope.READ,
    "r": Scope.READ,
    "write": Scope.WRITE,
    "w": Scope.WRITE,
    "delete": Scope.DELETE,
    "del": Scope.DELETE,
    "d": Scope.DELETE,
    "admin": Scope.ADMIN,
    "a": Scope.ADMIN,
    "rw": Scope.READ | Scope.WRITE,
}


@dataclass(frozen=True, slots=True)
class Key:
    """The rights of one API key; the secret itself is not here."""

    number: int
    """The place of its entry in the key list, from 1. Unique, so caps per key count by it."""
    scopes: Scope
    prefixes: tuple[bytes, ...]
    """The names it may touch begin with one of these; empty means any name."""
    name: str = ""
    """Only keys of a file have one."""
    expires_s: float | None = None
    """When it stops working, in seconds since the epoch."""
    max_topics: int | None = None
    max_streams: int | None = None
    max_bytes: int | None = None
    """Instead of the caps for all keys; None: those hold, and there is none on bytes."""

    @property
    def shown(self) -> str:
        """How logs and metrics call it."""
        return self.name or f"key {self.number}"

    def allows(self, scope: Scope) -> bool:
        """Whether the key has every one of the given scopes."""
        # Of plain numbers: operators of Flag are Python code, and this is asked with every request.
        return scope._value_ & self.scopes._value_ == scope._value_

    def allows_name(self, name: bytes) -> bool:
        """Whether the key may touch a topic or router of this (percent-decoded) name."""
        return not self.prefixes or name.startswith(self.prefixes)


def allows_name(key: Key | None, name: str) -> bool:
    """Whether a client with this key, or without one where none is needed, may touch this name."""
    return key is None or key.allows_name(name.encode("utf-8", "surrogatepass"))


class KeyRing:
    """All API keys of a server. An empty ring means that authentication is off."""

    __slots__ = ("_digests", "_keys", "_numbers", "_verified")

    def __init__(self, keys: dict[bytes, Key] | None = None) -> None:
        """Take the keys by the SHA-256 digest of their secret."""
        given = keys or {}
        self._digests: tuple[bytes, ...] = tuple(given)
        # Place 0 stands for "no key", so that `find` can add up places instead of branching.
        self._keys: tuple[Key | None, ...] = (None, *given.values())
        self._verified: dict[bytes, Key] = {}
        self._numbers = max((key.number for key in given.values()), default=0)

    def with_file(self, keys: dict[bytes, Key]) -> KeyRing:
        """A ring of these keys and those of a file."""
        own = dict(zip(self._digests, self._keys[1:], strict=True))
        return KeyRing({**{digest: key for digest, key in own.items() if key is not None}, **keys})

    @property
    def keys(self) -> tuple[Key, ...]:
        """All of them; those that have expired are there until the file is read again."""
        return tuple(key for key in self._keys if key is not None)

    @property
    def next_number(self) -> int:
        """The first number that no key of this ring has had."""
        return self._numbers + 1

    def replace_file_keys(self, keys: dict[bytes, Key]) -> None:
        """Exchange the keys of the file, which have names, for these; one that stays keeps its number."""
        known = dict(zip(self._digests, self._keys[1:], strict=True))
        current = {digest: key for digest, key in known.items() if key is not None and not key.name}
        for digest, key in keys.items():
            before = known.get(digest)
            if before is not None:
                same = replace(key, number=before.number)
                current[digest] = before if same == before else same
            else:
                self._numbers += 1
                current[digest] = replace(key, number=self._numbers)
        self._digests = tuple(current)
        self._keys = (None, *current.values())
        self._verified.clear()

    def is_valid(self, key: Key) -> bool:
        """Whether a key that was found before still works."""
        return key in self._keys and not _is_expired(key)

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """Read a comma separated list of `secret[:scopes[:prefixes]]`; blank entries are skipped."""
        keys: dict[bytes, Key] = {}
        for number, entry in enumerate(text.split(","), start=1):
            if not entry.strip():
                continue
            digest, key = _key_of(number, entry)
            if digest in keys:
                raise InvalidConfig(
                    f"entries {keys[digest].number} and {number} of the API key list have the same secret; "
                    "keep one of them, with all scopes and prefixes it needs"
                )
            keys[digest] = key
        return cls(keys)

    @property
    def enabled(self) -> bool:
        """Whether requests need a token at all."""
        return bool(self._digests)

    def find(self, token: bytes) -> Key | None:
        """Return the key of a presented token, or None.

        The time taken reveals nothing about the stored secrets: digests are compared, each in constant time,
        and always all of them.
        """
        presented = hashlib.sha256(token).digest()
        place = 0
        for candidate, digest in enumerate(self._digests, start=1):
            place += candidate * hmac.compare_digest(presented, digest)
        key = self._keys[place]
        return None if key is None or _is_expired(key) else key

    def find_header(self, header: bytes | None) -> Key | None:
        """Return the key of an `Authorization` header, or None.

        Headers whose token was found before are looked up. That reveals nothing about them: only headers that
        passed `find` are remembered, and the lookup compares bytes only if a keyed hash of all of them is
        equal, so that a guess that is partly right takes as long as any other.
        """
        if header is None:
            return None
        key = self._verified.get(header)
        if key is None:
            token = bearer_token(header)
            key = None if token is None else self.find(token)
            if key is not None:
                if len(self._verified) >= VERIFIED_MAX:
                    self._verified.clear()
                self._verified[header] = key
        elif key.expires_s is not None and _is_expired(key):
            return None
        return key

    def __len__(self) -> int:
        return len(self._digests)

    def __repr__(self) -> str:
        # Not even digests: those of weak secrets can be guessed.
        return f"<KeyRing of {len(self)} keys>"


def _is_expired(key: Key) -> bool:
    return key.expires_s is not None and time.time() >= key.expires_s


VERIFIED_MAX: Final = 1024
"""Headers that a ring remembers: one for each key, unless clients write the same token in several ways."""
NO_KEYS: Final = KeyRing()
"""Authentication is off."""


def _key_of(number: int, entry: str) -> tuple[bytes, Key]:
    """Return the digest and the rights that one entry of the key list describes."""
    secret, scopes, prefixes = [*entry.split(":", 2), "", ""][:3]
    if not secret.strip():
        raise InvalidConfig(
            f"entry {number} of the API key list has no secret before its first colon; "
            "write secret, secret:scopes, secret:scopes:prefixes or secret::prefixes"
        )
    digest = hashlib.sha256(_encoded(number, secret.strip())).digest()
    return digest, Key(number, _scopes_of(number, scopes), _prefixes_of(number, prefixes))


def _scopes_of(number: int, part: str) -> Scope:
    """Read the scopes of an entry; nothing at all means every scope."""
    if not part.strip():
        return ALL_SCOPES
    scopes = Scope(0)
    for place, word in enumerate(part.split("+"), start=1):
        lowered = word.strip().lower()
        if not lowered:
            continue
        if lowered not in SCOPE_WORDS:
            raise InvalidConfig(
                f"scope {place} in entry {number} of the API key list is unknown (it is not shown: it may be "
                f"part of a secret, which cannot contain a colon); known are {', '.join(SCOPE_WORDS)}"
            )
        scopes |= SCOPE_WORDS[lowered]
    if not scopes:
        # Skipping every word would leave "empty", which means all scopes: not what `+` alone asks for.
        raise InvalidConfig(
            f"the scopes in entry {number} of the API key list name none; leave them out for all scopes, "
            f"or name some of {', '.join(SCOPE_WORDS)}"
        )
    return scopes


def _prefixes_of(number: int, part: str) -> tuple[bytes, ...]:
    """Read the name prefixes of an entry; nothing at all means any name."""
    if not part.strip():
        return ()
    prefixes = tuple(_encoded(number, word.strip()) for word in part.split("|") if word.strip())
    if not prefixes:
        raise InvalidConfig(
            f"the prefixes in entry {number} of the API key list name none; leave them out for any name"
        )
    return prefixes


def _encoded(number: int, text: str) -> bytes:
    """Return the bytes a client sends for `text`, also when the environment held bytes that are not UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        pass
    # Raised outside the handler: the encoding error carries the secret.
    raise InvalidConfig(f"entry {number} of the API key list is not valid text; use UTF-8")


def bearer_token(header: bytes | None) -> bytes | None:
    """Return the token of an `Authorization` header, or None if it does not carry a bearer token."""
    if header is None:
        return None
    scheme, _, token = header.strip(b" \t").partition(b" ")
    if scheme.lower() != b"bearer":
        return None
    return token.strip(b" \t") or None


def token_of_query(query: bytes) -> bytes | None:
    """Return the form-decoded value of the first `token` in a query string; None if absent or empty."""
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if _form_decoded(name) == b"token":
            return _form_decoded(value) or None
    return None


def _form_decoded(text: bytes) -> bytes:
    """Decode `+` and `%XX`; an escape that is none stays as it is."""
    return unquote_to_bytes(text.replace(b"+", b" "))


def check_bind(host: str, has_keys: bool, allow_insecure: bool) -> None:
    """Refuse an address that others can reach while there are no keys, unless that was asked for.

    A name is resolved, which may block: call this before the event loop runs.
    """
    if has_keys or allow_insecure or is_loopback(host):
        return
    raise InvalidConfig(
        f"the server would listen on {host!r}, which is not a loopback address, and no API keys are set: "
        "any client that reaches it could read and delete everything. Set TOPICS_API_KEYS, listen on "
        "127.0.0.1, or set TOPICS_ALLOW_INSECURE_NO_AUTH=1 if something else guards it"
    )


def is_loopback(host: str) -> bool:
    """Whether every address that `host` stands for is reachable from this machine only."""
    try:
        return _is_loopback_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return bool(found) and all(_is_loopback_address(str(address[4][0])) for address in found)
    except (OSError, ValueError):
        return False


def _is_loopback_address(text: str) -> bool:
    """Whether a numeric address is a loopback one; ValueError if it is not numeric."""
    address = ipaddress.ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
