"""`everlog router` against a real server: what its commands do and print."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.command_lines import TopicCommands
from tests.support.server_processes import running_server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server that all tests of this file share; each uses its own names."""
    with running_server(tmp_path_factory.mktemp("server"), "--memory") as server:
        yield server.url


@pytest.fixture
def router(url: str) -> TopicCommands:
    """The commands about routers."""
    return TopicCommands(url, "router")


def test_a_router_is_put_shown_listed_and_removed(router: TopicCommands, url: str) -> None:
    put = router.json(
        "put", "a>b", "a", "b", "--create", "--filter", "eu*", "--exactly-once", "--no-preserve-node"
    )
    assert put["created"] is True
    TopicCommands(url).json("append", "a", "--data", "1", "--tag", "eu")
    shown = router.json("show", "a>b")
    assert (shown["filter"], shown["guarantee"]) == (["tag", "Glob", "eu*"], "exactly_once")
    assert (shown["preserve_node"], shown["forwarded_total"]) == (False, 1)
    listed = router.json("ls", "--source", "a")["routers"]
    assert [(each["router"], each["dest"]) for each in listed] == [("a>b", "b")]
    assert router.json("rm", "a>b")["deleted"] is True
    assert router.json("ls", "--prefix", "a>")["routers"] == []


def test_people_get_tables_and_sentences(router: TopicCommands) -> None:
    assert router("put", "r", "from", "to", "--create") == "r: created, from -> to\n"
    assert router("put", "r", "from", "to") == "r: changed, from -> to\n"
    assert "from" in router("ls", "--dest", "to")
    shown = router("show", "r")
    assert "node and tag" in shown
    assert "at_least_once" in shown
    assert router("rm", "r") == "r: deleted\n"
    assert router.error("rm", "r")["code"] == "router_not_found"
    assert router("ls", "--prefix", "nothing").startswith("no routers like that on ")


def test_what_the_server_refuses_is_an_error(router: TopicCommands) -> None:
    router("put", "xy", "x", "y", "--create")
    refusal = router.error("put", "yx", "y", "x")
    assert (refusal["code"], refusal["detail"]["cycle"]) == ("router_cycle", ["y", "x", "y"])
    assert router.error("show", "absent")["code"] == "router_not_found"
    assert router.json("put", "yx", "y", "x", "--allow-cycle")["allow_cycle"] is True


@pytest.mark.parametrize(("made", "missing"), [("sp.dest", "sp.source"), ("sp.source", "sp.dest")])
def test_a_misspelt_topic_is_refused_and_nothing_is_made(
    router: TopicCommands, url: str, made: str, missing: str
) -> None:
    TopicCommands(url)("create", made)
    error = router.error("put", "sp", "sp.source", "sp.dest")
    assert error["code"] == "topic_not_found"
    assert missing in error["message"] and "--create" in error["message"]
    assert router.json("ls", "--prefix", "sp")["routers"] == []
    assert TopicCommands(url).error("show", missing)["code"] == "topic_not_found"
    TopicCommands(url)("rm", made, "--yes")
