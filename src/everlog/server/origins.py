"""Which hosts a server answers for, and which web pages may call it.

Owns the rules against DNS rebinding (by `Host`) and against requests that a page of another site makes a
browser send (by `Origin` and `Sec-Fetch-Site`). Knows no route and no key.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from everlog.server.errors import ApiError

KNOWN_HOSTS_MAX: Final = 1024
"""Values of `Host` that are remembered as allowed; clients write few different ones."""
ANY: Final = "*"
_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})
_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:@,]*))(?::[0-9]*)?")
_FOREIGN_SITES: Final = frozenset({b"cross-site", b"same-site"})


class OriginGuard:
    """Decides by the headers of a request whether it is answered at all."""

    def __init__(self, bound_host: str, allowed_hosts: tuple[str, ...], origins: tuple[str, ...]) -> None:
        self._names = {"localhost", bound_host.lower().strip("[]"), *map(str.lower, allowed_hosts)}
        self._takes_any_host = ANY in allowed_hosts
        # All addresses of the machine are bound then. A numeric one cannot be rebound by DNS.
        self._takes_addresses = bound_host in _WILDCARDS
        self._origins = frozenset(origins)
        self._known: set[bytes] = set()

    def check(self, headers: dict[bytes, bytes]) -> None:
        """Raise the error for a request to another host (421), or from a page of another site (403)."""
        host = headers.get(b"host")
        if host not in self._known and host is not None:
            self._check_host(host)
        if b"origin" in headers or b"sec-fetch-site" in headers:
            self._check_page(headers)

    def _check_host(self, host: bytes) -> None:
        name = _name_of(host)
        if not self._is_allowed(name):
            raise ApiError(
                421,
                "misdirected_request",
                f"this server does not answer for the host {name[:255]}; TOPICS_ALLOWED_HOSTS can allow it",
                {"host": name[:255]},
            )
        if len(self._known) >= KNOWN_HOSTS_MAX:
            self._known.clear()
        self._known.add(host)

    def _is_allowed(self, name: str) -> bool:
        if self._takes_any_host or name in self._names or name.endswith(".localhost"):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._takes_addresses

    def _check_page(self, headers: dict[bytes, bytes]) -> None:
        if ANY in self._origins:
            return
        header = headers.get(b"origin")
        if header is not None:
            origin = header.decode("latin-1")
            if origin not in self._origins and _authority(origin) != headers.get(b"host", b"").lower():
                raise _foreign(f"pages of {origin[:255]} may not call this server")
        elif headers.get(b"sec-fetch-site", b"").lower() in _FOREIGN_SITES:
            raise _foreign("pages of other sites may not call this server")


def check_state_changing_get(headers: dict[bytes, bytes]) -> None:
    """Refuse a browser that does not say which site a request comes from; pages cannot leave that out.

    For GET routes that change something and need no key. Browsers that send `Sec-Fetch-Site` or `Origin` were
    checked by these; an old one would load the route as an image of any page.
    """
    if b"sec-fetch-site" in headers or b"origin" in headers:
        return
    if headers.get(b"user-agent", b"").startswith(b"Mozilla/"):
        raise ApiError(
            403, "forbidden", "this browser does not say which page asks; use a newer one, or set keys"
        )


def _foreign(message: str) -> ApiError:
    return ApiError(403, "forbidden", f"{message}; add the origin to TOPICS_CORS_ORIGINS if they should")


def _name_of(host: bytes) -> str:
    """The name or address in a `Host` header, without port and brackets; all of one that is malformed."""
    text = host.decode("latin-1").strip().lower()
    found = _HOST.fullmatch(text)
    return text if found is None else found[1] or found[2]


def _authority(origin: str) -> bytes:
    try:
        return urlsplit(origin).netloc.lower().encode("latin-1", "replace")
    except ValueError:
        return b""
