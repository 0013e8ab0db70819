"""Object stores: the same promises on S3 (moto, versitygw) and in a directory."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import (
    InvalidConfig,
    InvalidRequest,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    ObjectStoreFailed,
    Unsupported,
)
from everlog.objects import ObjectStore, RemoteStore, StoreOptions, open_store
from tests.support.object_stores import CREDENTIALS, S3Server, moto_server, versitygw_server


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def remote(server: S3Server, prefix: str, timeout_ms: int = 20_000) -> ObjectStore:
    return open_store(server.url(prefix), StoreOptions(endpoint=server.endpoint, timeout_ms=timeout_ms))


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, moto: S3Server, credentials: None) -> ObjectStore:
    if request.param == "directory":
        return open_store(f"file://{tmp_path}/objects")
    return remote(moto, f"cases/{tmp_path.name}")


def test_what_is_put_is_found_whole_and_by_ranges(store: ObjectStore) -> None:
    store.put("a/b", b"0123456789")
    assert store.get("a/b").data == b"0123456789"
    assert store.get_range("a/b", 2, 5) == b"234"
    assert store.get_range("a/b", 4, 4) == b""
    assert store.get_ranges("a/b", [(0, 1), (8, 10)]) == [b"0", b"89"]
    assert store.head("a/b").size == 10
    store.put("a/b", memoryview(b"replaced"))
    assert store.get("a/b").data == b"replaced"


def test_a_range_beyond_the_end_is_an_error_that_names_the_object(store: ObjectStore) -> None:
    store.put("short", b"abc")
    with pytest.raises(ObjectStoreFailed, match="/short"):
        store.get_range("short", 1, 9)


def test_an_object_is_created_once(store: ObjectStore) -> None:
    tag = store.put_new("once", b"first")
    with pytest.raises(ObjectExists, match=f"{store.url}/once exists"):
        store.put_new("once", b"other")
    assert store.put_new("once", b"first") == tag  # the answer of the first try was lost
    assert store.get("once") == (b"first", tag)


def test_an_object_is_replaced_only_by_the_writer_that_saw_it(store: ObjectStore) -> None:
    old = store.put_new("manifest", b"1")
    new = store.swap("manifest", b"2", old)
    with pytest.raises(ObjectChanged, match="/manifest"):
        store.swap("manifest", b"3", old)
    assert store.swap("manifest", b"2", old) == new  # the answer of the first try was lost
    assert store.get("manifest") == (b"2", new)
    with pytest.raises(ObjectChanged):
        store.swap("absent", b"3", old)
    assert not store.exists("absent")


def test_missing_objects_are_named_and_may_be_deleted_again(store: ObjectStore) -> None:
    for call in (store.get, store.head, lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(ObjectNotFound, match=f"{store.url}/no/such"):
            call("no/such")
    store.put("there", b"")
    store.delete(["no/such", "there"])
    store.delete(["no/such", "there"])
    assert not store.exists("there")


def test_a_listing_is_ordered_and_stays_in_its_folder(store: ObjectStore) -> None:
    for key in ("log/3", "log/1", "log/2", "logs/9", "top"):
        store.put(key, key.encode())
    assert [item.key for item in store.list()] == ["log/1", "log/2", "log/3", "logs/9", "top"]
    assert list(store.list("log", after="log/1")) == [("log/2", 5), ("log/3", 5)]
    assert list(store.list("none")) == []


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/.b", "a\nb", "ü"])
def test_keys_that_could_leave_the_store_are_refused(store: ObjectStore, key: str) -> None:
    for call in (store.get, store.head, lambda key: store.put(key, b""), lambda key: store.put_new(key, b"")):
        with pytest.raises(InvalidRequest):
            call(key)
    assert list(store.list()) == []


def test_a_store_with_conditional_puts_passes_the_probe_and_is_left_clean(store: ObjectStore) -> None:
    store.check_conditional_puts()
    assert list(store.list()) == []


@pytest.mark.parametrize("broken", ["_create", "_replace"])
def test_a_store_that_ignores_conditions_is_refused(
    store: ObjectStore, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ignoring(key: str, data: bytes, tag: str = "") -> str:
        store.put(key, data)
        return store.get(key).tag

    monkeypatch.setattr(store, broken, ignoring)
    with pytest.raises(InvalidConfig, match=f"{store.url} ignores conditional puts"):
        store.check_conditional_puts()
    assert list(store.list()) == []


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["new", "swap", "stale", "delete"])), max_size=20
    )
)
def test_conditional_puts_follow_a_model(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    store = open_store(f"file://{tmp_path_factory.mktemp('model')}")
    model: dict[str, tuple[bytes, str]] = {}
    for number, (key, step) in enumerate(steps):
        data = b"%d" % number
        expected = model.get(key)
        if step == "delete":
            store.delete([key])
            model.pop(key, None)
        elif step == "new" and expected is not None:
            with pytest.raises(ObjectExists):
                store.put_new(key, data)
        elif step == "new":
            model[key] = (data, store.put_new(key, data))
        elif step == "swap" and expected is not None:
            model[key] = (data, store.swap(key, data, expected[1]))
        else:
            with pytest.raises(ObjectChanged):
                store.swap(key, data, "stale")
    assert {item.key: store.get(item.key) for item in store.list()} == model


def race(store: ObjectStore, rounds: int) -> None:
    """In each round four threads create one object, then swap it: one of them succeeds, each time."""
    for number in range(rounds):
        key = f"race/{number}"
        won: list[str] = []
        barrier = threading.Barrier(4)

        def contend(
            name: str, key: str = key, won: list[str] = won, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait()
            try:
                store.put_new(key, f"created by {name}".encode())
                won.append(name)
            except ObjectExists:
                pass
            barrier.wait()
            tag = store.get(key).tag
            barrier.wait()
            try:
                store.swap(key, f"swapped by {name}".encode(), tag)
                won.append(name)
            except ObjectChanged:
                pass

        threads = [threading.Thread(target=contend, args=(str(i),)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 2, f"round {number}: {won}"
        assert store.get(key).data == f"swapped by {won[1]}".encode()


def test_of_racing_writers_of_a_directory_one_wins(tmp_path: Path) -> None:
    race(open_store(f"file://{tmp_path}/objects"), 50)


@pytest.mark.object_store
def test_of_racing_writers_of_a_real_s3_server_one_wins(tmp_path: Path, credentials: None) -> None:
    with versitygw_server(tmp_path) as server:
        store = remote(server, "races")
        store.check_conditional_puts()
        race(store, 50)


def test_a_store_that_hangs_fails_within_its_time_limit_and_works_again(
    moto: S3Server, tmp_path: Path, credentials: None
) -> None:
    store = remote(moto, f"hang/{tmp_path.name}", timeout_ms=300)
    store.put("a", b"1")
    with moto.paused():
        began = time.monotonic()
        with pytest.raises(ObjectStoreFailed, match=f"cannot read {store.url}/a: "):
            store.get("a")
        assert time.monotonic() - began < 10
    assert remote(moto, f"hang/{tmp_path.name}").get("a").data == b"1"


def test_an_error_of_the_library_is_one_line_with_the_object(credentials: None) -> None:
    store = open_store("s3://nowhere/x", StoreOptions(endpoint="http://127.0.0.1:1", timeout_ms=300))
    with pytest.raises(ObjectStoreFailed) as failed:
        store.put("key", b"1")
    assert str(failed.value).startswith("cannot store s3://nowhere/x/key: ")
    assert "\n" not in str(failed.value)


def test_missing_credentials_are_named_and_not_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ObjectStoreFailed, match=r"no credentials .* set AWS_ACCESS_KEY_ID and AWS_SECRET"):
        open_store("s3://nowhere/x", StoreOptions(region="us-east-1", timeout_ms=300)).get("key")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("/plain/path", "is no object store"),
        ("http://host/x", "is no object store"),
        ("s3://bucket/x?a=1", "is no object store"),
        ("s3:///prefix", "names no bucket"),
        ("file://host/x", "names no directory"),
    ],
)
def test_a_url_that_names_no_store_is_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        open_store(url)


def test_a_url_with_a_secret_is_refused_without_repeating_it() -> None:
    with pytest.raises(InvalidConfig) as refused:
        open_store("s3://user:hunter2@bucket/x")
    assert "hunter2" not in str(refused.value)


def test_stores_of_all_schemes_open_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "someone")
    for url in ("s3://bucket", "gs://bucket/prefix", "az://container/prefix"):
        assert open_store(url, StoreOptions()).url == url


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(Unsupported, match=r"everlog\[objects\]"):
        open_store("s3://bucket/x")


def test_options_come_from_the_environment() -> None:
    options = StoreOptions.from_environment(
        {
            "EVERLOG_OBJECTS_ENDPOINT": "http://127.0.0.1:9",
            "EVERLOG_OBJECTS_REGION": "eu-west-1",
            "EVERLOG_OBJECTS_PATH_STYLE": "false",
            "EVERLOG_OBJECTS_TIMEOUT_MS": "500",
        }
    )
    assert options == StoreOptions(
        endpoint="http://127.0.0.1:9", region="eu-west-1", path_style=False, timeout_ms=500
    )
    assert StoreOptions.from_environment({"AWS_ENDPOINT_URL": "http://127.0.0.1:8"}).endpoint
    for wrong in ({"EVERLOG_OBJECTS_PATH_STYLE": "maybe"}, {"EVERLOG_OBJECTS_TIMEOUT_MS": "0"}):
        with pytest.raises(InvalidConfig, match=next(iter(wrong))):
            StoreOptions.from_environment(wrong)


def test_a_directory_that_cannot_be_written_is_an_everlog_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in ("file", "file/below"):
        store = open_store(f"file://{tmp_path}/{folder}")
        # Not ObjectExists or ObjectNotFound, from which servers conclude who owns the store.
        for write in (store.put, store.put_new):
            for key in ("key", "log/1"):
                with pytest.raises(ObjectStoreFailed, match="a part of its path is not a directory"):
                    write(key, b"1")
    assert os.listdir(tmp_path) == ["file"]


def test_credentials_stay_out_of_what_a_store_shows(credentials: None) -> None:
    store = open_store("s3://bucket/x", StoreOptions(endpoint="http://127.0.0.1:1"))
    assert isinstance(store, RemoteStore)
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in repr(vars(store))
