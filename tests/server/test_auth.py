"""The key list, the comparison of tokens, tokens as requests carry them, and the rule for open addresses."""

from __future__ import annotations

import gc
import hmac
import ipaddress
import socket
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any
from urllib.parse import quote_from_bytes, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidConfig
from everlog.server.auth import (
    ALL_SCOPES,
    VERIFIED_MAX,
    Key,
    KeyRing,
    Scope,
    bearer_token,
    check_bind,
    is_loopback,
    token_of_query,
)

READ, WRITE, DELETE, ADMIN = Scope.READ, Scope.WRITE, Scope.DELETE, Scope.ADMIN
WORDS = {
    "read": READ,
    "r": READ,
    "write": WRITE,
    "w": WRITE,
    "delete": DELETE,
    "del": DELETE,
    "d": DELETE,
    "admin": ADMIN,
    "a": ADMIN,
    "rw": READ | WRITE,
}
SECRET = "Tr0ub4dor"


# --- The grammar -----------------------------------------------------------------------------------------


def model(text: str) -> dict[str, tuple[int, Scope, tuple[str, ...]]] | None:
    """The grammar character by character: secret -> (place, scopes, prefixes); None if it is refused."""
    keys: dict[str, tuple[int, Scope, tuple[str, ...]]] = {}
    entries = [""]
    for letter in text:
        if letter == ",":
            entries.append("")
        else:
            entries[-1] += letter
    for place, entry in enumerate(entries, start=1):
        if not entry.strip():
            continue
        parts = [""]
        for letter in entry:
            if letter == ":" and len(parts) < 3:
                parts.append("")
            else:
                parts[-1] += letter
        secret, scope_part, prefix_part = (part.strip() for part in [*parts, "", ""][:3])
        words = [word.strip().lower() for word in scope_part.split("+") if word.strip()]
        prefixes = tuple(prefix.strip() for prefix in prefix_part.split("|") if prefix.strip())
        names_nothing = bool(scope_part and not words) or bool(prefix_part and not prefixes)
        if not secret or secret in keys or names_nothing or any(word not in WORDS for word in words):
            return None
        scopes = Scope(0)
        for word in words:
            scopes |= WORDS[word]
        keys[secret] = (place, scopes if words else ALL_SCOPES, prefixes)
    return keys


def rights(key: Key | None) -> tuple[int, Scope, tuple[str, ...]] | None:
    """The parts of a key in the form of the model."""
    if key is None:
        return None
    return key.number, key.scopes, tuple(prefix.decode() for prefix in key.prefixes)


PIECES = [*WORDS, *"RWDA", "x", "y", "ö", ",", ",", ":", ":", "+", "|", " ", "\t"]


@given(st.lists(st.sampled_from(PIECES), max_size=24).map("".join))
def test_any_list_is_read_as_the_grammar_says_or_refused(text: str) -> None:
    expected = model(text)
    if expected is None:
        with pytest.raises(InvalidConfig):
            KeyRing.parse(text)
        return
    ring = KeyRing.parse(text)
    assert (len(ring), ring.enabled) == (len(expected), bool(expected))
    assert {secret: rights(ring.find(secret.encode())) for secret in expected} == expected


blanks = st.text(" \t", max_size=2)
plain = st.text(st.characters(codec="utf-8", exclude_characters=",:+| \t", categories=["L", "N"]), min_size=1)


@st.composite
def entries(draw: st.DrawFn) -> tuple[str, Scope, tuple[str, ...], str]:
    """One well-formed entry: secret, scopes, prefixes and some way to write them."""
    secret = draw(plain)
    words = draw(st.lists(st.sampled_from(sorted(WORDS)), max_size=4))
    prefixes = draw(
        st.lists(st.builds(str.__add__, plain, st.sampled_from(["", ":", ":a:", "+"])), max_size=3)
    )
    scopes = Scope(0)
    for word in words:
        scopes |= WORDS[word]
    cased = [draw(st.sampled_from([str.lower, str.upper, str.title]))(word) for word in words]
    scope_text = "+".join(draw(blanks) + word + draw(blanks) for word in cased)
    prefix_text = "|".join(draw(blanks) + prefix + draw(blanks) for prefix in prefixes)
    parts = [secret, scope_text, prefix_text] if prefixes else [secret, scope_text] if words else [secret]
    text = draw(blanks) + ":".join(parts) + draw(blanks)
    return secret, scopes or ALL_SCOPES, tuple(prefixes), text


@given(st.lists(entries() | st.none(), max_size=5, unique_by=lambda entry: entry[0] if entry else object()))
def test_every_way_to_write_an_entry_means_the_same(
    listed: list[tuple[str, Scope, tuple[str, ...], str] | None],
) -> None:
    ring = KeyRing.parse(",".join(entry[3] if entry else "  " for entry in listed))
    for number, entry in enumerate(listed, start=1):
        if entry is not None:
            assert rights(ring.find(entry[0].encode())) == (number, entry[1], entry[2])
    assert ring.enabled == any(listed)


@pytest.mark.parametrize("text", ["", " ", ",", " , ,\t"])
def test_a_list_without_entries_switches_authentication_off(text: str) -> None:
    ring = KeyRing.parse(text)
    assert not ring.enabled
    assert ring.find(b"") is None
    assert ring.find(b"x") is None


@pytest.mark.parametrize(
    ("text", "scopes", "prefixes"),
    [
        ("k", ALL_SCOPES, ()),
        ("k:", ALL_SCOPES, ()),
        ("k::", ALL_SCOPES, ()),
        ("k: : ", ALL_SCOPES, ()),
        ("k:read", READ, ()),
        ("k:RW", READ | WRITE, ()),
        ("k: r + Del +ADMIN", READ | DELETE | ADMIN, ()),
        ("k:r+", READ, ()),
        ("k::jobs:", ALL_SCOPES, (b"jobs:",)),
        ("k:r:a|b:c:d| e ||", READ, (b"a", b"b:c:d", b"e")),
    ],
)
def test_an_entry_gives_scopes_and_prefixes(text: str, scopes: Scope, prefixes: tuple[bytes, ...]) -> None:
    assert KeyRing.parse(text).find(b"k") == Key(1, scopes, prefixes)


@pytest.mark.parametrize(("word", "scope"), WORDS.items())
def test_every_scope_word_is_known_in_any_case(word: str, scope: Scope) -> None:
    for written in (word, word.upper(), word.title()):
        assert KeyRing.parse(f"k:{written}").find(b"k") == Key(1, scope, ())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"ok,,{SECRET}:read+sing", "scope 2 in entry 3 .* is unknown"),
        (f"read:{SECRET}", "scope 1 in entry 1 .* is unknown"),
        (f"{SECRET}:{SECRET}:x", "scope 1 in entry 1 .* is unknown"),
        (f"ok,:{SECRET}", "entry 2 .* has no secret"),
        (f" : r:{SECRET}", "entry 1 .* has no secret"),
        (f"{SECRET},x, {SECRET}:r", "entries 1 and 3 .* the same secret"),
        (f"{SECRET}:+", "the scopes in entry 1 .* name none"),
        (f"x,{SECRET}:r: | ", "the prefixes in entry 2 .* name none"),
        (f"{SECRET}\ud800", "entry 1 .* is not valid text"),
        (f"x::{SECRET}\ud800", "entry 1 .* is not valid text"),
    ],
)
def test_a_bad_entry_is_refused_by_its_place_and_never_shown(text: str, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint) as caught:
        KeyRing.parse(text)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None, "an inner error may carry the secret"


# --- Tokens ----------------------------------------------------------------------------------------------


@given(st.lists(plain, min_size=1, max_size=6, unique=True), st.binary(max_size=8))
def test_only_the_exact_secret_is_accepted(secrets: list[str], other: bytes) -> None:
    ring = KeyRing.parse(",".join(secrets))
    for number, secret in enumerate(secrets, start=1):
        assert rights(ring.find(secret.encode())) == (number, ALL_SCOPES, ())
    known = {secret.encode() for secret in secrets}
    for token in (other, b"", *(secret + b"x" for secret in known), *(secret[:-1] for secret in known)):
        assert (ring.find(token) is not None) == (token in known)


@pytest.mark.parametrize("token", [b"first", b"second", b"third", b"none", b""])
def test_every_digest_is_compared_whichever_token_is_presented(
    monkeypatch: pytest.MonkeyPatch, token: bytes
) -> None:
    ring = KeyRing.parse("first,second,third")
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def counting(presented: bytes, stored: bytes) -> bool:
        compared.append((presented, stored))
        return compare(presented, stored)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    ring.find(token)
    assert len({stored for _, stored in compared}) == len(compared) == 3
    assert {len(digest) for pair in compared for digest in pair} == {32}
    assert len({presented for presented, _ in compared}) == 1


def reachable(root: object) -> Iterator[object]:
    """Every object that can be reached from this one, classes and modules left aside."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        item: Any = waiting.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType):
            continue
        seen[id(item)] = item
        waiting += gc.get_referents(item)
        yield item


def test_no_object_keeps_a_secret() -> None:
    secret = "".join(reversed(SECRET))
    ring = KeyRing.parse(f"{secret}:rw:jobs,other{secret}")
    texts = [item for item in reachable(ring) if isinstance(item, str | bytes)]
    assert b"jobs" in texts, "the walk sees what is kept"
    assert not [
        text for text in texts if secret in (text if isinstance(text, str) else text.decode("latin-1"))
    ]
    assert repr(ring) == "<KeyRing of 2 keys>"
    assert secret not in repr(ring.find(secret.encode()))


def test_bytes_of_the_environment_that_are_not_utf_8_make_a_usable_secret() -> None:
    ring = KeyRing.parse(b"k\xff::\xfe".decode("utf-8", "surrogateescape"))
    assert ring.find(b"k\xff") == Key(1, ALL_SCOPES, (b"\xfe",))


@given(
    st.sampled_from([*Scope, READ | WRITE, ALL_SCOPES]), st.sampled_from([*Scope, READ | WRITE, ALL_SCOPES])
)
def test_a_key_allows_a_route_only_with_all_scopes_it_needs(held: Scope, needed: Scope) -> None:
    assert Key(1, held, ()).allows(needed) == all(scope in held for scope in needed)


@given(st.lists(st.binary(min_size=1, max_size=3), max_size=3), st.binary(max_size=5))
def test_a_name_is_allowed_by_any_of_its_prefixes(prefixes: list[bytes], name: bytes) -> None:
    expected = not prefixes or any(name[: len(prefix)] == prefix for prefix in prefixes)
    assert Key(1, ALL_SCOPES, tuple(prefixes)).allows_name(name) == expected


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (None, None),
        (b"", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Bearer   ", None),
        (b"Bearer abc", b"abc"),
        (b"bearer abc", b"abc"),
        (b"BEARER    abc", b"abc"),
        (b" Bearer abc \t", b"abc"),
        (b"Bearer a b", b"a b"),
        (b"Bearer \xff", b"\xff"),
        (b"Bearerabc", None),
        (b"Bearer\tabc", None),
        (b"Basic abc", None),
        (b"abc", None),
        (b"x Bearer abc", None),
        (b"Bearer abc, Bearer abc", b"abc, Bearer abc"),
    ],
)
def test_a_bearer_header_carries_a_token(header: bytes | None, token: bytes | None) -> None:
    assert bearer_token(header) == token


@pytest.mark.parametrize(
    ("query", "token"),
    [
        (b"", None),
        (b"&&", None),
        (b"token", None),
        (b"token=", None),
        (b"token=abc", b"abc"),
        (b"a=1&token=abc&b=2", b"abc"),
        (b"token=one&token=two", b"one"),
        (b"token=&token=two", None),
        (b"token&token=two", None),
        (b"tokens=abc", None),
        (b"Token=abc", None),
        (b"xtoken=abc", None),
        (b"token=a+b%20c", b"a b c"),
        (b"token=a%2Bb%2bc", b"a+b+c"),
        (b"token=a=b", b"a=b"),
        (b"token=a%26b", b"a&b"),
        (b"token=%C3%B6%ff%00", b"\xc3\xb6\xff\x00"),
        (b"%74oken=abc", b"abc"),
        (b"token=%", b"%"),
        (b"token=%zz%4", b"%zz%4"),
        (b"token=%%41", b"%A"),
        (b"token=% 1", b"% 1"),
        (b"token=%+1", b"% 1"),
        (b"a=token=abc", None),
    ],
)
def test_a_query_carries_a_form_encoded_token(query: bytes, token: bytes | None) -> None:
    assert token_of_query(query) == token


@given(st.binary(min_size=1), st.binary(), st.lists(st.sampled_from([b"a=1", b"", b"tok", b"x=token"])))
def test_a_token_survives_its_encoding_and_the_first_one_wins(
    token: bytes, later: bytes, before: list[bytes]
) -> None:
    pairs = [
        *before,
        b"token=" + quote_plus(token).encode(),
        b"token=" + quote_from_bytes(later, "").encode(),
    ]
    assert token_of_query(b"&".join(pairs)) == token


# --- Open addresses --------------------------------------------------------------------------------------


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The names that resolve and their addresses; no other name does."""
    known: dict[str, list[str]] = {}

    def resolve(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return known


LOOPBACK = [
    "127.0.0.1",
    "127.0.0.2",
    "127.255.255.254",
    "::1",
    "[::1]",
    "0:0:0:0:0:0:0:1",
    "::ffff:127.0.0.1",
]
OPEN = [
    "0.0.0.0",
    "::",
    "[::]",
    "10.0.0.1",
    "192.168.1.5",
    "fe80::1",
    "fe80::1%lo",
    "::ffff:10.0.0.1",
    "128.0.0.1",
]


@pytest.mark.parametrize("host", LOOPBACK)
def test_a_loopback_address_needs_no_keys(names: dict[str, list[str]], host: str) -> None:
    check_bind(host, has_keys=False, allow_insecure=False)


@pytest.mark.parametrize(
    "host", [*OPEN, "", "nowhere.invalid", "127.0.0.1.example", "a..b", "\0", "x" * 300, " "]
)
def test_any_other_address_is_refused_without_keys(names: dict[str, list[str]], host: str) -> None:
    with pytest.raises(InvalidConfig, match=r"TOPICS_API_KEYS.*TOPICS_ALLOW_INSECURE_NO_AUTH=1") as caught:
        check_bind(host, has_keys=False, allow_insecure=False)
    assert repr(host) in str(caught.value)
    check_bind(host, has_keys=True, allow_insecure=False)
    check_bind(host, has_keys=False, allow_insecure=True)


@pytest.mark.parametrize(
    ("addresses", "is_safe"),
    [
        (["127.0.0.1"], True),
        (["::1", "127.0.0.1"], True),
        (["127.0.0.1", "10.0.0.1"], False),
        (["10.0.0.1", "127.0.0.1"], False),
        (["0.0.0.0"], False),
        (["fe80::1%lo"], False),
        ([], False),
    ],
)
def test_a_name_is_loopback_only_if_all_its_addresses_are(
    names: dict[str, list[str]], addresses: list[str], is_safe: bool
) -> None:
    names["box"] = addresses
    assert is_loopback("box") == is_safe


def test_the_real_resolver_is_asked() -> None:
    assert is_loopback("localhost")
    assert is_loopback("127.1"), "the short form of 127.0.0.1"
    assert not is_loopback("0"), "the short form of 0.0.0.0"
    assert not is_loopback(""), "every interface"
    assert not is_loopback("a..b")
    assert not is_loopback("x" * 300)


@given(st.ip_addresses())
def test_numeric_addresses_are_judged_by_their_range(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if address.version == 4:
        assert is_loopback(str(address)) == str(address).startswith("127.")
        assert is_loopback(f"::ffff:{address}") == str(address).startswith("127.")
    elif address.ipv4_mapped is None:
        assert is_loopback(str(address)) == (int(address) == 1)


def test_headers_are_found_as_their_tokens_and_only_valid_ones_are_remembered() -> None:
    ring = KeyRing.parse("first,second:read")
    for _ in range(2):
        assert ring.find_header(b"Bearer first") is ring.find(b"first") is not None
        assert ring.find_header(b"bearer  second ") is ring.find(b"second") is not None
        for header in (None, b"", b"Bearer", b"Bearer third", b"Basic first", b"first"):
            assert ring.find_header(header) is None
    assert set(ring._verified) == {b"Bearer first", b"bearer  second "}
    for blanks in range(2 * VERIFIED_MAX):
        assert ring.find_header(b"Bearer " + b" " * blanks + b"first") is not None
    assert len(ring._verified) <= VERIFIED_MAX
