"""Object stores, as a seam: immutable objects and conditional puts on S3, GCS, Azure or in a directory.

Owns URLs, credentials, time limits, retries and errors; knows nothing of what the objects mean. Archive, cold
tier, backup and standby reach object stores through `open_store` only. Every call blocks and belongs on a
worker thread; a store may be used by several threads. `file://` needs no library and is durable when a call
returns; the others need the extra `objects` (obstore).

An object appears whole or not at all. `put_new` and `swap` decide which writer is first: of several one
succeeds, the others get `ObjectExists` or `ObjectChanged`. A writer that repeats a put whose answer was lost
finds its own bytes and succeeds, so what decides a race must contain something only its writer has written.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import xxhash

from everlog.clock import Clock, SystemClock
from everlog.errors import (
    InvalidConfig,
    InvalidRequest,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    ObjectStoreFailed,
    ObjectTooShort,
    Unsupported,
)
from everlog.fs import Fs, OsFs, close_locked, create_directory, opened, read_file

if TYPE_CHECKING:
    from typing_extensions import Buffer

SCHEMES: Final = ("s3", "gs", "az", "file")
VARIABLES: Final = {
    "endpoint": "EVERLOG_OBJECTS_ENDPOINT",
    "region": "EVERLOG_OBJECTS_REGION",
    "path_style": "EVERLOG_OBJECTS_PATH_STYLE",
    "timeout_ms": "EVERLOG_OBJECTS_TIMEOUT_MS",
}
"""The environment variable of each option."""

PROBE_MS: Final = 3000
"""How long `probe` waits for one answer: a start need not wait for a store that is away."""
_RETRIES: Final = 3
_DELETE_BATCH: Final = 500
_LOCK_FILE: Final = ".lock"
_WRITES: Final = frozenset({"store", "replace"})
_LOCK_POLL_NS: Final = 2_000_000
_REASON_MAX: Final = 200
_NO_CREDENTIALS: Final = (
    *("/latest/api/token", "/latest/meta-data", "/computeMetadata/", "/metadata/identity/"),
    *("loading credentials", "no credentials found", "credential provider was not enabled"),
)
"""What the libraries ask the machine for if the environment has no credentials, and what they say then."""
_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a store is reached. What is not set is left to the environment of the store's own SDK."""

    endpoint: str | None = None
    """Address of a server that speaks the store's protocol, such as `http://127.0.0.1:9000`."""
    region: str | None = None
    path_style: bool | None = None
    """Whether the bucket is part of the path, not of the host name; by default so if an endpoint is set."""
    timeout_ms: int = 20_000
    """How long one request may take; a call with its retries takes at most twice that."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> StoreOptions:
        """Read `EVERLOG_OBJECTS_*`; an empty variable counts as not set, a wrong value is refused."""
        given = {name: environment.get(variable, "").strip() for name, variable in VARIABLES.items()}
        options: dict[str, Any] = {name: given[name] for name in ("endpoint", "region") if given[name]}
        if word := given["path_style"].lower():
            if word not in ("1", "true", "0", "false"):
                raise InvalidConfig(f"{VARIABLES['path_style']} is {word!r}; it must be true or false")
            options["path_style"] = word in ("1", "true")
        if digits := given["timeout_ms"]:
            if not digits.isdecimal() or not 1 <= int(digits) <= 3_600_000:
                raise InvalidConfig(f"{VARIABLES['timeout_ms']} is {digits!r}; it must be from 1 to 3600000")
            options["timeout_ms"] = int(digits)
        if "endpoint" not in options:
            # The SDKs of S3 read these; taken from here so that a plain http endpoint is allowed as well.
            for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
                if environment.get(variable):
                    options["endpoint"] = environment[variable]
                    break
        return cls(**options)


class StoredObject(NamedTuple):
    """What a listing says of an object."""

    key: str
    size: int


class Tagged(NamedTuple):
    """The content of an object and the tag that `swap` takes."""

    data: bytes
    tag: str


class ObjectStore(ABC):
    """The objects below one URL. Keys are relative to it, parts divided by `/`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def describe(self, key: str) -> str:
        """Name an object for a message."""
        return f"{self.url}/{key}"

    def put_new(self, key: str, data: Buffer) -> str:
        """Store an object that must not exist yet and return its tag.

        `ObjectExists` if there is another one; an existing object with these very bytes counts as ours.
        """
        try:
            return self._create(_checked(key), data)
        except ObjectExists:
            if (tag := self._tag_if_same(key, data)) is None:
                raise
            return tag

    def swap(self, key: str, data: Buffer, tag: str) -> str:
        """Replace the object that has this tag and return the new tag; `ObjectChanged` if it has another."""
        try:
            return self._replace(_checked(key), data, tag)
        except ObjectChanged:
            if (ours := self._tag_if_same(key, data)) is None:
                raise
            return ours

    @abstractmethod
    def put(self, key: str, data: Buffer) -> None:
        """Store an object, whatever there was. Not for keys that `swap` is used on."""

    @abstractmethod
    def get(self, key: str) -> Tagged:
        """Return an object whole; `ObjectNotFound` if there is none."""

    @abstractmethod
    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each half-open range; close ranges share a request.

        `ObjectNotFound` if there is no object, `ObjectStoreFailed` if it ends before a range does.
        """

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to, not including, `end`."""
        return self.get_ranges(key, [(start, end)])[0] if end > start else b""

    @abstractmethod
    def head(self, key: str) -> StoredObject:
        """Return the size of an object; `ObjectNotFound` if there is none."""

    def exists(self, key: str) -> bool:
        """Whether there is an object of this key."""
        try:
            self.head(key)
        except ObjectNotFound:
            return False
        return True

    @abstractmethod
    def list(self, folder: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield the objects below a folder in the order of their keys, those above `after` only."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are fine."""

    @abstractmethod
    def _create(self, key: str, data: Buffer) -> str: ...

    @abstractmethod
    def _replace(self, key: str, data: Buffer, tag: str) -> str: ...

    def _tag_if_same(self, key: str, data: Buffer) -> str | None:
        """Return the tag if the stored bytes are these: an earlier put succeeded, and its answer was lost."""
        try:
            if self.head(key).size != memoryview(data).nbytes:
                return None
            stored = self.get(key)
        except ObjectNotFound:
            return None
        return stored.tag if stored.data == bytes(data) else None

    def check_conditional_puts(self) -> None:
        """Refuse a store that ignores the conditions of puts: two writers could both be first."""
        key = f"everlog-probe-{secrets.token_hex(8)}"
        self.put_new(key, b"first")
        try:
            ignored = self._ignored_condition(key)
        finally:
            with suppress(ObjectStoreFailed):
                self.delete([key])
        if ignored:
            raise InvalidConfig(
                f"{self.url} ignores conditional puts ({ignored} succeeded), so it cannot decide which of "
                "two writers is first; use a store that supports If-None-Match and If-Match on PUT"
            )

    def _ignored_condition(self, key: str) -> str | None:
        stale = self.get(key).tag
        with suppress(ObjectExists):
            self._create(key, b"created twice")
            return "creating one object twice"
        self._replace(key, b"second", stale)
        with suppress(ObjectChanged):
            self._replace(key, b"replaced by a stale tag", stale)
            return "replacing an object by an outdated tag"
        return None


def open_store(url: str, options: StoreOptions | None = None, fs: Fs | None = None) -> ObjectStore:
    """Open the store of a URL: `s3://bucket/prefix`, `gs://`, `az://container/prefix` or `file:///directory`.

    Credentials come from the environment as the SDK of the store reads them; options, if none are given, from
    `EVERLOG_OBJECTS_*`. Sends nothing yet: `check_conditional_puts` is the first contact.
    """
    parts = urlsplit(url)
    if parts.username or parts.password or "@" in parts.netloc:
        # The URL is not repeated: part of it may be a secret.
        raise InvalidConfig("an object store URL has a user or password; put credentials in the environment")
    if parts.scheme not in SCHEMES or parts.query or parts.fragment:
        raise InvalidConfig(
            f"{url!r} is no object store; it must be like s3://bucket/prefix, gs:, az: or file:"
        )
    path = unquote(parts.path)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not path.startswith("/"):
            raise InvalidConfig(f"{url!r} names no directory; write file:///absolute/path")
        return DirectoryStore(path, fs or OsFs())
    if not parts.netloc:
        raise InvalidConfig(f"{url!r} names no bucket; write {parts.scheme}://bucket/prefix")
    prefix = path.strip("/")
    if prefix:
        _checked(prefix)
    return RemoteStore(
        parts.scheme, parts.netloc, prefix, options or StoreOptions.from_environment(os.environ)
    )


def probe(url: str, fs: Fs | None = None) -> ObjectStoreFailed | None:
    """Refuse a store that ignores conditional puts; return the error of one that does not answer soon."""
    options = StoreOptions.from_environment(os.environ)
    quick = replace(options, timeout_ms=min(options.timeout_ms, PROBE_MS))
    try:
        open_store(url, quick, fs).check_conditional_puts()
    except ObjectStoreFailed as error:
        return error
    return None


def _checked(key: str) -> str:
    """Return the key; refuse one that could leave the URL or that stores treat differently."""
    if not key or any(part in ("", ".", "..") or part.startswith(".") for part in key.split("/")):
        raise InvalidRequest(f"{key!r} is no object key; its parts must not be empty or begin with a dot")
    if not key.isprintable() or not key.isascii():
        raise InvalidRequest(f"{key!r} is no object key; use printable ASCII")
    return key


# --- Stores of the network -------------------------------------------------------------------------------


class RemoteStore(ObjectStore):
    """A prefix of a bucket on S3, GCS or Azure, reached by obstore."""

    def __init__(self, scheme: str, bucket: str, prefix: str, options: StoreOptions) -> None:
        super().__init__(f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else ""))
        self._scheme = scheme
        self._prefix = prefix + "/" if prefix else ""
        try:
            import obstore
        except ImportError:
            raise Unsupported(
                f"{self.url} needs the extra 'objects'; install it: pip install 'everlog[objects]'"
            ) from None
        self._obstore = obstore
        self._store = self._connect(scheme, bucket, options)

    def _connect(self, scheme: str, bucket: str, options: StoreOptions) -> Any:
        """Create the client; it connects with the first request."""
        from obstore import store as stores

        timeout = timedelta(milliseconds=options.timeout_ms)
        common: dict[str, Any] = {
            "client_options": {
                "timeout": timeout,
                "connect_timeout": min(timeout, timedelta(seconds=5)),
                "allow_http": (options.endpoint or "").startswith("http://"),
            },
            "retry_config": {
                "max_retries": _RETRIES,
                "retry_timeout": timeout,
                "backoff": {
                    "init_backoff": timedelta(milliseconds=50),
                    "max_backoff": timedelta(seconds=2),
                    "base": 2,
                },
            },
        }
        endpoint: dict[str, Any] = (
            {} if options.endpoint is None else {"endpoint": options.endpoint.rstrip("/")}
        )
        try:
            if scheme == "s3":
                region: dict[str, Any] = {} if options.region is None else {"region": options.region}
                in_path = options.path_style if options.path_style is not None else bool(endpoint)
                return stores.S3Store(
                    bucket, virtual_hosted_style_request=not in_path, **endpoint, **region, **common
                )
            if scheme == "gs":
                base: dict[str, Any] = {"base_url": endpoint["endpoint"]} if endpoint else {}
                return stores.GCSStore(bucket, **base, **common)
            return stores.AzureStore(bucket, **endpoint, **common)
        except (self._obstore.exceptions.BaseError, ValueError, TypeError) as error:
            raise InvalidConfig(f"{self.url} cannot be opened: {_reason(error)}") from error

    @contextmanager
    def _reported(self, doing: str, key: str) -> Iterator[None]:
        """Turn the library's errors into ours, which name the object."""
        known = self._obstore.exceptions
        name = self.describe(key)
        try:
            yield
        except FileNotFoundError:
            raise ObjectNotFound(f"{name} does not exist") from None
        except known.AlreadyExistsError:
            raise ObjectExists(f"{name} exists already") from None
        except known.PreconditionError:
            raise ObjectChanged(f"{name} was changed by another writer") from None
        except (known.PermissionDeniedError, known.UnauthenticatedError) as error:
            raise ObjectStoreFailed(
                f"cannot {doing} {name}: access refused; check the credentials in the environment "
                f"({_reason(error)})"
            ) from error
        except (known.BaseError, OSError, ValueError) as error:
            reason = _reason(error)
            if missing := missing_credentials(self._scheme, reason):
                raise ObjectStoreFailed(f"cannot {doing} {name}: {missing} ({reason})") from error
            raise ObjectStoreFailed(
                f"cannot {doing} {name}: {reason}; check that the store is reachable"
            ) from error

    def put(self, key: str, data: Buffer) -> None:
        """Store an object, whatever there was."""
        with self._reported("store", key):
            self._obstore.put(self._store, self._prefix + _checked(key), data, use_multipart=False)

    def _create(self, key: str, data: Buffer) -> str:
        with self._reported("store", key):
            result = self._obstore.put(self._store, self._prefix + key, data, mode="create")
            return result["e_tag"] or ""

    def _replace(self, key: str, data: Buffer, tag: str) -> str:
        try:
            with self._reported("replace", key):
                result = self._obstore.put(self._store, self._prefix + key, data, mode={"e_tag": tag})
                return result["e_tag"] or ""
        except (ObjectNotFound, ObjectExists):
            raise ObjectChanged(f"{self.describe(key)} was changed by another writer") from None

    def get(self, key: str) -> Tagged:
        """Return an object whole; `ObjectNotFound` if there is none."""
        with self._reported("read", key):
            found = self._obstore.get(self._store, self._prefix + _checked(key))
            return Tagged(bytes(found.bytes()), found.meta["e_tag"] or "")

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each half-open range; close ranges share a request."""
        starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
        with self._reported("read", key):
            found = self._obstore.get_ranges(
                self._store, self._prefix + _checked(key), starts=starts, ends=ends
            )
        return _complete(self.describe(key), ranges, [bytes(part) for part in found])

    def head(self, key: str) -> StoredObject:
        """Return the size of an object; `ObjectNotFound` if there is none."""
        with self._reported("look up", key):
            return StoredObject(key, self._obstore.head(self._store, self._prefix + _checked(key))["size"])

    def list(self, folder: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield the objects below a folder in the order of their keys, those above `after` only."""
        prefix = self._prefix + (_checked(folder) + "/" if folder else "")
        offset = self._prefix + after if after else None
        with self._reported("list", folder):
            for chunk in self._obstore.list(self._store, prefix or None, offset=offset, chunk_size=1000):
                for item in chunk:
                    yield StoredObject(item["path"][len(self._prefix) :], item["size"])

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are fine."""
        paths = [self._prefix + _checked(key) for key in keys]
        for start in range(0, len(paths), _DELETE_BATCH):
            batch = paths[start : start + _DELETE_BATCH]
            try:
                with self._reported("remove", keys[start]):
                    self._obstore.delete(self._store, batch)
            except ObjectNotFound:
                # One of them was gone: the others one by one.
                for path in batch:
                    with suppress(ObjectNotFound), self._reported("remove", path[len(self._prefix) :]):
                        self._obstore.delete(self._store, path)


def missing_credentials(scheme: str, reason: str) -> str | None:
    """Return what to do if the error of a library says that it found no credentials."""
    if not any(words in reason for words in _NO_CREDENTIALS):
        return None
    return (
        "there are no credentials in the environment, nor does this machine give any; set "
        f"{_CREDENTIALS[scheme]}"
    )


def _reason(error: BaseException) -> str:
    """The first line of a library's error, cut: the rest is for its developers."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return first[:_REASON_MAX]


def _complete(name: str, ranges: Sequence[tuple[int, int]], parts: list[bytes]) -> list[bytes]:
    """Return the parts if each has the length of its range."""
    for (start, end), part in zip(ranges, parts, strict=True):
        if len(part) != end - start:
            raise ObjectTooShort(f"{name} ends before byte {end}; it has been cut or replaced")
    return parts


# --- A directory -----------------------------------------------------------------------------------------


class DirectoryStore(ObjectStore):
    """Objects as files of a directory, durable when a call returns.

    Several processes of a host may share it. Tags are checksums of the content; a swap holds the lock file of
    the directory, which no other call waits for. Names that begin with a dot are temporary.
    """

    def __init__(self, directory: str, fs: Fs, clock: Clock | None = None) -> None:
        super().__init__("file://" + directory.rstrip("/"))
        self._root = directory.rstrip("/") or "/"
        self._fs = fs
        self._clock = clock or SystemClock()
        self._swapping = threading.Lock()

    @contextmanager
    def _reported(self, doing: str, key: str) -> Iterator[None]:
        name = self.describe(key)
        try:
            yield
        except NotADirectoryError as error:
            if doing in _WRITES:
                message = f"cannot {doing} {name}: a part of its path is not a directory"
                raise ObjectStoreFailed(message, error.errno) from error
            raise ObjectNotFound(f"{name} does not exist") from None
        except (FileNotFoundError, IsADirectoryError):
            raise ObjectNotFound(f"{name} does not exist") from None
        except FileExistsError:
            raise ObjectExists(f"{name} exists already") from None
        except OSError as error:
            raise ObjectStoreFailed(f"cannot {doing} {name}: {error.strerror}", error.errno) from error

    def _path(self, key: str) -> str:
        return os.path.join(self._root, _checked(key))

    def _write(self, key: str, data: Buffer, rename: Callable[[str, str], None]) -> str:
        """Write a temporary file and give it its name; return the tag."""
        path = self._path(key)
        folder, name = os.path.split(path)
        content = memoryview(data).cast("B")
        try:
            create_directory(self._fs, folder)
        except FileExistsError:
            # Not the object exists: from that a writer concludes that it was superseded.
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")
        try:
            with opened(self._fs, temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
                self._fs.pwrite(fd, content, 0)
                self._fs.fsync(fd)
            rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                self._fs.unlink(temporary)
            raise
        self._fs.fsync_dir(folder)
        return _tag_of(content)

    def put(self, key: str, data: Buffer) -> None:
        """Store an object, whatever there was."""
        with self._reported("store", key):
            self._write(key, data, self._fs.rename)

    def _create(self, key: str, data: Buffer) -> str:
        with self._reported("store", key):
            if self._fs.exists(self._path(key)):
                raise FileExistsError(key)
            return self._write(key, data, self._fs.rename_noreplace)

    def _replace(self, key: str, data: Buffer, tag: str) -> str:
        with self._reported("replace", key), self._swapping, self._locked():
            try:
                current = _tag_of(memoryview(read_file(self._fs, self._path(key))))
            except FileNotFoundError:
                current = ""
            if current != tag:
                raise ObjectChanged(f"{self.describe(key)} was changed by another writer")
            return self._write(key, data, self._fs.rename)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the directory; it is held for one small write, so the wait has a short bound."""
        create_directory(self._fs, self._root)
        fd = self._fs.open(os.path.join(self._root, _LOCK_FILE), os.O_RDWR | os.O_CREAT)
        deadline_ns = self._clock.monotonic_ns() + 10_000_000_000
        try:
            while not self._fs.try_lock(fd):
                if self._clock.monotonic_ns() > deadline_ns:
                    raise ObjectStoreFailed(
                        f"{self.url}/{_LOCK_FILE} is locked by another process; try again"
                    )
                self._clock.sleep_ns(_LOCK_POLL_NS)
        except BaseException:
            self._fs.close(fd)
            raise
        try:
            yield
        finally:
            close_locked(self._fs, fd)

    def get(self, key: str) -> Tagged:
        """Return an object whole; `ObjectNotFound` if there is none."""
        with self._reported("read", key):
            data = read_file(self._fs, self._path(key))
        return Tagged(data, _tag_of(memoryview(data)))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each half-open range; close ranges share a request."""
        with self._reported("read", key), opened(self._fs, self._path(key)) as fd:
            parts = [self._fs.pread(fd, end - start, start) for start, end in ranges]
        return _complete(self.describe(key), ranges, parts)

    def head(self, key: str) -> StoredObject:
        """Return the size of an object; `ObjectNotFound` if there is none."""
        with self._reported("look up", key), opened(self._fs, self._path(key)) as fd:
            return StoredObject(key, self._fs.size(fd))

    def list(self, folder: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield the objects below a folder in the order of their keys, those above `after` only."""
        start = self._path(folder) if folder else self._root
        with self._reported("list", folder):
            keys = sorted(
                os.path.relpath(os.path.join(parent, name), self._root)
                for parent, _, names in os.walk(start)
                for name in names
                if not name.startswith(".")
            )
        for key in keys:
            if key > after:
                with suppress(ObjectNotFound):  # removed meanwhile
                    yield self.head(key)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are fine."""
        for key in keys:
            path = self._path(key)
            with suppress(ObjectNotFound), self._reported("remove", key):
                self._fs.unlink(path)
                self._fs.fsync_dir(os.path.dirname(path))


def _tag_of(content: memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(content)
