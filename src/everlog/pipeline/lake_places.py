"""Where a lake is: a directory of this machine, or a prefix of an object store.

Owns what both kinds of places can do for tables and jobs. Credentials, endpoints and time limits are those of
`everlog.objects`; the options that are made of them here hold no credentials, so they may travel with tasks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from everlog.errors import InvalidConfig, ObjectStoreFailed
from everlog.fs import OsFs
from everlog.objects import DirectoryStore, ObjectStore, StoreOptions, missing_credentials, open_store

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

STORES: Final = ("s3", "gs", "az")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_REASON_MAX: Final = 300
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
"""What deltalake puts around the arrows between the causes of an error."""


@dataclass(frozen=True, slots=True)
class LakePlace:
    """A directory, as an absolute path, or the URL of an object store, with how it is reached."""

    path: str
    options: StoreOptions | None = None
    """None for a directory."""

    @classmethod
    def of(cls, place: str | os.PathLike[str] | LakePlace, what: str = "the lake") -> Self | LakePlace:
        """Return the place that a text names; an unknown scheme is refused."""
        if isinstance(place, LakePlace):
            return place
        text = os.fspath(place)
        scheme = _SCHEME.match(text)
        if scheme is None or scheme[1].lower() == "file":
            return cls(local_path(text, what))
        if scheme[1] not in STORES:
            raise InvalidConfig(
                f"{what} is {text!r}; {scheme[1]}:// is not supported: give a directory, or a URL like "
                "s3://bucket/prefix, gs:// or az://"
            )
        options = StoreOptions.from_environment(os.environ)
        return cls(open_store(text, options).url, options)

    @property
    def is_local(self) -> bool:
        """Whether it is a directory."""
        return self.options is None

    def below(self, name: str) -> LakePlace:
        """Return a place inside of it."""
        return LakePlace(os.path.join(self.path, name), self.options)

    @property
    def parent(self) -> LakePlace:
        """Return the place that it is in."""
        return LakePlace(os.path.dirname(self.path), self.options)

    def objects(self) -> ObjectStore:
        """Return what is stored there as objects; a directory gives durable files."""
        if self.options is None:
            return DirectoryStore(self.path, OsFs())
        return open_store(self.path, self.options)

    @property
    def storage_options(self) -> dict[str, str] | None:
        """Return how `deltalake` reaches it: the settings of `everlog.objects` under its names."""
        if self.options is None:
            return None
        scheme, given = self.path.partition("://")[0], self.options
        found = {"timeout": f"{given.timeout_ms}ms", "connect_timeout": f"{min(given.timeout_ms, 5000)}ms"}
        if given.endpoint is not None:
            found["allow_http"] = str(given.endpoint.startswith("http://")).lower()
        if scheme == "s3":
            in_path = given.path_style if given.path_style is not None else given.endpoint is not None
            found["aws_virtual_hosted_style_request"] = str(not in_path).lower()
            # Two writers of one version: the store decides who is first, without a lock service.
            found["aws_conditional_put"] = "etag"
            if given.region is not None:
                found["aws_region"] = given.region
        names = {"s3": "aws_endpoint", "gs": "google_base_url", "az": "azure_endpoint"}
        if given.endpoint is not None:
            found[names[scheme]] = given.endpoint.rstrip("/")
        return found

    def filesystem(self) -> FileSystem:
        """Return the files below it, for pyarrow."""
        from pyarrow import fs

        if self.options is None:
            return fs.SubTreeFileSystem(self.path, fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.path, self.storage_options))

    @contextmanager
    def reported(self, doing: str) -> Iterator[None]:
        """Turn errors of `deltalake` and pyarrow at an object store into one line that names the place."""
        from deltalake.exceptions import DeltaError, TableNotFoundError
        from pyarrow import ArrowInvalid

        try:
            yield
        except TableNotFoundError:
            raise
        except (DeltaError, OSError, ArrowInvalid) as error:
            if self.is_local:
                raise
            reason = " ".join(_COLOUR.sub("", str(error)).split())
            short = reason[:_REASON_MAX]
            if missing := missing_credentials(self.path.partition("://")[0], reason):
                raise ObjectStoreFailed(f"cannot {doing} {self.path}: {missing} ({short})") from error
            raise ObjectStoreFailed(
                f"cannot {doing} {self.path}: {short}; check that the store is reachable, and the "
                "credentials in the environment"
            ) from error


def local_path(text: str, what: str) -> str:
    """Return a directory of this machine as an absolute path; refuse any other place by its scheme."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return os.path.abspath(text)
    if scheme[1].lower() == "file":
        return os.path.abspath(text[scheme.end() :])
    raise InvalidConfig(
        f"{what} is {text!r}; {scheme[1]}:// is not supported: give a directory, or file:// with its path"
    )
