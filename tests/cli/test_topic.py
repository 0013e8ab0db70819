"""`everlog topic` against a real server: what its commands do, print, and survive."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from everlog.api_types import Appended, TopicSummary
from everlog.cli.main import app
from everlog.cli.topic import parse_start
from everlog.cli.topic_reading import Last
from everlog.topics import Discard, Durability, TopicType
from tests.support.command_lines import Terminal, TopicCommands, command_line, started, with_input
from tests.support.processes import PATIENCE_S
from tests.support.server_processes import running_server
from tests.support.tcp_peers import ScriptedServer, http_answer

KEY = "sesame-open"


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicCommands]:
    """The commands against one server that all tests of this file share; each uses its own topic."""
    with running_server(tmp_path_factory.mktemp("server"), "--memory") as server:
        yield TopicCommands(server.url)


def append(topic: TopicCommands, name: str, *values: object) -> Any:
    """Append values as one batch."""
    words = [word for value in values for word in ("--data", json.dumps(value))]
    return topic.json("append", name, *words)


# --- ls, create, show, delete, rm ------------------------------------------------------------------------


def test_topics_are_listed_by_prefix_across_pages(tmp_path: Path) -> None:
    entries = [msgspec.to_builtins(TopicSummary(name, 1, 1, 1, 5, False, 0)) for name in "ab"]
    pages = [
        http_answer(200, json.dumps({"topics": entries[:1], "next_cursor": "c&d"}).encode()),
        http_answer(200, json.dumps({"topics": entries[1:]}).encode()),
    ]
    with ScriptedServer(pages) as server:
        listed = TopicCommands(server.url).json("ls", "--prefix", "x")
        assert listed == {"topics": entries}
        first, second = (request.split(b" ")[1] for request in server.requests)
    assert first == b"/v0/topics?prefix=x&page_size=1000"
    assert second == first + b"&cursor=c%26d"


def test_the_list_is_a_table_of_what_is_there(topic: TopicCommands) -> None:
    append(topic, "list.one", 1, 2)
    topic("create", "list.two", "--type", "queue", "--durability", "fsync")
    shown = topic("ls", "--prefix", "list.").splitlines()
    assert shown[0] == f"topics of {topic.url}"
    assert shown[1].split() == ["topic", "type", "class", "head", "earliest", "records", "bytes"]
    assert [line.split()[:8] for line in shown[2:]] == [
        ["list.one", "log", "disk", "2", "1", "2", "2", "B"],
        ["list.two", "queue", "fsync", "0", "1", "0", "0", "B"],
    ]
    topic("create", "list.three", "--config", '{"priority":3}')
    head, *rows = (line.split() for line in topic("ls", "--prefix", "list.").splitlines()[1:])
    assert head[-1] == "priority"
    assert [row[-1] for row in rows] == ["B", "3", "B"]  # 0 is left out
    assert topic("ls", "--prefix", "none.") == f"no topics that begin with none. on {topic.url}\n"


def test_a_created_topic_has_the_settings_asked_for(topic: TopicCommands) -> None:
    options = ("--durability", "fsync", "--cap-records", 5, "--ttl-ms", 60_000, "--discard", "reject")
    created = topic.json("create", "made", *options, "--config", '{"priority":3,"cap_records":9}')
    assert created["created"] is True
    config = topic.json("show", "made")["config"]
    wanted = {"durability": "fsync", "cap_records": 5, "ttl_ms": 60_000, "discard": "reject", "priority": 3}
    assert {name: config[name] for name in wanted} == wanted


def test_creating_a_topic_again_changes_nothing_unless_told_to_replace(topic: TopicCommands) -> None:
    assert topic("create", "again", "--cap-records", 5) == "again: created\n"
    assert topic("create", "again") == "again: exists already, unchanged\n"
    assert topic("create", "again", "--cap-records", 5) == "again: exists already, unchanged\n"
    error = topic.error("create", "again", "--cap-records", 6)
    assert error["code"] == "topic_exists_incompatible"
    assert "cap_records is 5, not 6" in error["message"]
    assert topic("create", "again", "--cap-records", 6, "--replace") == "again: replaced\n"
    assert topic.json("show", "again")["config"]["cap_records"] == 6


@pytest.mark.parametrize("config", ["{", "[1]", "1"])
def test_settings_that_are_no_object_are_wrong_usage(topic: TopicCommands, config: str) -> None:
    assert "--config is not a JSON object" in topic.run("create", "x", "--config", config, code=2)[1]


def test_show_is_for_people_and_for_programs(topic: TopicCommands) -> None:
    append(topic, "shown", {"id": 1})
    state = topic.json("show", "shown")
    assert (state["head_seq"], state["count"], state["last_read_ts"]) == (1, 1, None)
    text = topic("show", "shown")
    for words in ("topic       shown", "records     1", "last read   never", 'durability             "disk"'):
        assert words in text


def test_records_are_deleted_by_seq_and_by_tag(topic: TopicCommands) -> None:
    for tag in ("eu.1", "us.1", "eu.2"):
        topic("append", "cut", "--data", "1", "--tag", tag)
    assert topic("delete", "cut", "--match", "eu*", "--dry-run") == "2 of 3 records would be deleted\n"
    assert topic.json("delete", "cut", "--match", "us*")["deleted"] == 1
    assert topic("delete", "cut", "--before", "3", "--match", "eu.1") == "1 record deleted, 1 left\n"
    assert [record["$seq"] for record in topic.lines("read", "cut")] == [3]
    assert "--before, --match" in topic.run("delete", "cut", code=2)[1]


def test_a_topic_is_removed_without_a_question_where_there_is_no_terminal(topic: TopicCommands) -> None:
    append(topic, "gone", 1)
    error = topic.error("rm", "gone", "--if-empty")
    assert (error["code"], error["detail"]) == ("topic_not_empty", {"topic": "gone", "count": 1})
    assert topic("rm", "gone") == "gone: deleted\n"
    assert topic.error("rm", "gone") == {
        "code": "topic_not_found",
        "message": "there is no topic gone; nothing was deleted",
    }
    assert topic.error("show", "gone")["code"] == "topic_not_found"


def test_on_a_terminal_removal_asks_first(topic: TopicCommands) -> None:
    append(topic, "asked", 1)
    for typed, code, is_left in (("n\n", 1, True), ("y\n", 0, False)):
        with Terminal("everlog", "topic", "rm", "asked", "--url", topic.url) as terminal:
            assert "delete asked and all its records" in terminal.until(r"\[y/N\]")
            terminal.type(typed)
            assert terminal.wait() == code
        assert bool(topic.json("ls", "--prefix", "asked")["topics"]) == is_left
    append(topic, "asked", 1)
    with Terminal("everlog", "topic", "rm", "asked", "--yes", "--url", topic.url) as terminal:
        assert terminal.wait() == 0
        assert "asked: deleted" in terminal.shown


# --- append ----------------------------------------------------------------------------------------------


def test_lines_of_standard_input_become_records(topic: TopicCommands) -> None:
    lines = '{"id": 1}\n\n"two"\n3'
    words = ("topic", "append", "input", "--url", topic.url, "--tag", "t", "--node", "n")
    ended = with_input(lines, *words)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3 records, seq 1 to 3\n", "")
    records = topic.lines("read", "input")
    assert [record["data"] for record in records] == [{"id": 1}, "two", 3]
    assert {(record["$tag"], record["$node"]) for record in records} == {("t", "n")}


def test_files_are_cut_into_batches(topic: TopicCommands, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("4\n5\n")
    appended = topic.json("append", "files", tmp_path / "a", tmp_path / "b", "--batch", 2)
    assert appended == {
        "topic": "files",
        "count": 5,
        "first_seq": 1,
        "last_seq": 5,
        "batches": 3,
        "created": True,
        "deduped": 0,
    }


def test_a_copy_of_a_topic_is_one_pipe(topic: TopicCommands) -> None:
    topic("append", "source", "--input", "record", "--data", '{"data":{"a":1},"tag":"t","meta":{"m":2}}')
    topic("append", "source", "--input", "text", "--data", "plain text", "--node", "n")
    source = topic.run("read", "source", "--json")[0]
    assert (
        with_input(source, "topic", "append", "copy", "--input", "record", "--url", topic.url).returncode == 0
    )
    wanted = [{**record, "$ts": 0} for record in topic.lines("read", "source")]
    assert [{**record, "$ts": 0} for record in topic.lines("read", "copy")] == wanted


def test_a_record_line_with_an_unknown_member_is_refused(topic: TopicCommands) -> None:
    error = topic.error("append", "slips", "--input", "record", "--data", '{"data":1,"delay_ms":5}')
    assert error["code"] == "invalid_record" and "delay_ms" in error["message"]
    assert topic.error("show", "slips")["code"] == "topic_not_found"


def test_an_idempotency_key_makes_a_second_run_harmless(topic: TopicCommands, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("1\n2\n3\n")
    words = ("append", "once", path, "--idempotency-key", "import", "--batch", 2)
    first, second = topic.json(*words), topic.json(*words)
    assert (first["deduped"], second["deduped"]) == (0, 3)
    assert {name: first[name] for name in ("count", "last_seq")} == {"count": 3, "last_seq": 3}
    assert topic(*words) == "3 records, seq 1 to 3, 3 of them were there already\n"
    assert len(topic.lines("read", "once")) == 3


def test_a_bad_line_is_named_and_what_was_appended_before_is_told(
    topic: TopicCommands, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    path.write_text("1\n2\nthree\n")
    _, told = topic.run("append", "bad", path, "--batch", 1, code=1)
    warning, error = told.splitlines()
    assert warning == "warning: 2 records up to seq 2: already appended"
    assert error.startswith(f"error: {path}, line 3 is not a JSON value")


def test_an_absent_topic_is_not_created_if_not_wanted(topic: TopicCommands) -> None:
    error = topic.error("append", "absent", "--data", "1", "--no-create")
    assert (error["code"], error["detail"]) == ("topic_not_found", {"topic": "absent"})


def test_nothing_to_append_is_no_error(topic: TopicCommands) -> None:
    assert topic("append", "nothing", os.devnull) == "nothing to append\n"


def test_a_batch_is_handed_over_once_although_its_first_answer_was_lost() -> None:
    fine = http_answer(200, msgspec.json.encode(Appended("t", 1, 1, True, False, first_seq=1, last_seq=1)))
    busy = http_answer(503, b'{"error":{"code":"not_ready","message":"soon"}}')
    with ScriptedServer([fine], [b""], [busy, fine]) as server:
        words = ("append", "t", "--batch", 1, "--data", "1", "--data", "2")
        _, told = TopicCommands(server.url).run(*words)
        bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]
    assert "trying again" in told
    first, *repeated = bodies
    assert len(repeated) == 3
    assert all(body == repeated[0] for body in repeated)
    assert first["idempotency_key"] != repeated[0]["idempotency_key"]


def test_input_that_pauses_is_not_held_back_and_an_interrupt_tells_how_far_it_came(
    topic: TopicCommands,
) -> None:
    process = subprocess.Popen(
        command_line("everlog", "topic", "append", "slow", "--url", topic.url),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    topic("create", "slow")
    with started("everlog", "topic", "tail", "-f", "slow", "--format", "raw", "--url", topic.url) as reader:
        for text in ("1", "2"):
            process.stdin.write(f"{text}\n".encode())
            process.stdin.flush()
            assert reader.line() == text
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    # Readers may see a record before its writer has read the answer.
    assert re.search(rb"warning: [12] records? up to seq [12]: already appended", told)


# --- read, tail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "seqs"),
    [
        ((), [1, 2, 3, 4, 5]),
        (("--from", "earliest"), [1, 2, 3, 4, 5]),
        (("--from", "3"), [3, 4, 5]),
        (("--from", "0"), [1, 2, 3, 4, 5]),
        (("--from", "-2", "--exit"), [4, 5]),
        (("--from", "-99"), [1, 2, 3, 4, 5]),
        (("--from", "latest"), []),
        (("--count", "2"), [1, 2]),
        (("--from", "2", "--count", "2"), [2, 3]),
        (("--node", "odd"), [2, 4]),
        (("--node", "odd", "--node", "even"), []),
    ],
)
def test_reading_starts_and_ends_where_it_is_told(
    topic: TopicCommands, words: tuple[str, ...], seqs: list[int]
) -> None:
    if not topic.json("ls", "--prefix", "five")["topics"]:
        for number in range(1, 6):
            topic("append", "five", "--data", number, "--node", "odd" if number % 2 else "even")
    assert [record["$seq"] for record in topic.lines("read", "five", *words)] == seqs


def test_more_records_than_one_answer_holds_are_read_to_the_end(topic: TopicCommands, tmp_path: Path) -> None:
    path = tmp_path / "many"
    path.write_text("".join(f"{number}\n" for number in range(2500)))
    topic("append", "many", path, "--batch", 10_000)
    assert topic("read", "many", "--format", "%s").splitlines() == [str(number) for number in range(2500)]
    assert topic("read", "many", "--format", "%s", "--count", 1500).count("\n") == 1500


def test_tail_shows_the_last_ten(topic: TopicCommands) -> None:
    append(topic, "dozen", *range(1, 13))
    assert topic("tail", "dozen", "--format", "{data}").split() == [str(number) for number in range(3, 13)]


@pytest.mark.parametrize(
    ("text", "start"),
    [("earliest", "earliest"), ("latest", "latest"), ("7", 7), ("-7", Last(7)), ("-0", Last(0))],
)
def test_places_to_start(text: str, start: object) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("read", "t", "--from", "soon"), "neither 'earliest'"),
        (("read", "t", "--from", "--5"), "neither 'earliest'"),
        (("read", "t", "--from", "9" * 21), "neither 'earliest'"),
        (("read", "t", "--format", "{sex}"), "is not a field"),
        (("tail", "t", "-f", "--exit"), "contradict"),
        (("read", "t", "--count", "0"), "--count"),
    ],
)
def test_wrong_usage_is_exit_code_2(topic: TopicCommands, words: tuple[str, ...], told: str) -> None:
    assert told in topic.run(*words, code=2)[1]


def test_lost_records_are_told_loudly_and_with_exit_code_4(topic: TopicCommands) -> None:
    topic("create", "capped", "--cap-records", 2)
    append(topic, "capped", 1, 2, 3, 4, 5)
    shown, told = topic.run("read", "capped", "--from", 1, "--format", "raw", code=4)
    assert shown.split() == ["4", "5"]
    assert told == "warning: capped lost seq 1 to 3 (cap): about 3 records were not read\n"
    _, told = topic.run("read", "capped", "--from", 1, "--json", code=4)
    assert json.loads(told)["warning"]["code"] == "gap"
    assert json.loads(told)["warning"]["detail"] == {
        "gap_from": 1,
        "gap_to": 3,
        "reason": "cap",
        "missed_estimate": 3,
    }
    assert topic.run("read", "capped", "--from", 1, "--allow-gaps")[1] != ""


@pytest.mark.parametrize("start", ["earliest", "-4", "latest", "4"])
def test_who_asks_for_what_is_there_has_no_gap(topic: TopicCommands, start: str) -> None:
    topic("create", f"kept{start}", "--cap-records", 2)
    append(topic, f"kept{start}", 1, 2, 3, 4, 5)
    assert topic.run("read", f"kept{start}", "--from", start)[1] == ""


def test_a_setting_with_a_slip_in_its_name_creates_nothing(topic: TopicCommands) -> None:
    error = topic.error("create", "slip", "--config", '{"cap_record": 5}')
    assert error["code"] == "invalid_config"
    assert "did you mean cap_records?" in error["message"]
    assert topic.error("show", "slip")["code"] == "topic_not_found"


@pytest.mark.parametrize(
    ("name", "kind"), [("type", TopicType), ("durability", Durability), ("discard", Discard)]
)
def test_the_choices_of_create_are_those_of_the_engine(name: str, kind: type[StrEnum]) -> None:
    create = typer.main.get_command(app).commands["topic"].commands["create"]  # type: ignore[attr-defined]
    option = next(each for each in create.params if f"--{name}" in each.opts)
    assert list(get_args(option.type_descriptor.annotation)) == list(kind)


def test_a_cursor_beyond_the_end_is_told(topic: TopicCommands) -> None:
    append(topic, "young", 1)
    shown, told = topic.run("read", "young", "--from", 100, "--format", "raw", code=4)
    assert shown == "1\n"
    assert "young ends with seq 1" in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_follower_prints_what_comes_until_a_signal(topic: TopicCommands, number: signal.Signals) -> None:
    name = f"followed.{number.name}"
    append(topic, name, 0)
    words = ("tail", "-f", name, "--format", "raw", "--url", topic.url)
    with started("everlog", "topic", *words) as command:
        for value in range(3):
            assert command.line() == str(value)
            append(topic, name, value + 1)
        assert command.line() == "3"
        assert command.end(number) == (0, "", "")


def test_a_follower_ends_after_its_count(topic: TopicCommands) -> None:
    append(topic, "counted", 1, 2, 3)
    assert topic("tail", "-f", "counted", "--count", 2, "--format", "raw") == "1\n2\n"


def test_a_follower_of_a_topic_that_goes_away_says_so(topic: TopicCommands) -> None:
    append(topic, "doomed", 1)
    with started("everlog", "topic", "tail", "-f", "doomed", "--json", "--url", topic.url) as command:
        command.line()
        topic("rm", "doomed")
        code, _, told = command.wait()
    assert code == 1
    assert json.loads(told)["error"]["code"] == "topic_not_found"


def test_a_follower_survives_restarts_of_the_server(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        port = server.port
        append(TopicCommands(server.url), "orders", 1)
        command_words = ("topic", "tail", "-f", "orders", "--format", "raw", "--url", server.url)
        with started("everlog", *command_words) as command:
            assert command.line() == "1"
            server.command.process.kill()
            server.command.process.wait()
            assert "trying again until it answers" in command.line("stderr")
            with running_server(tmp_path, port=port) as again:
                append(TopicCommands(again.url), "orders", 2)
                assert command.line() == "2"
                assert "the server answers again" in command.line("stderr")
                assert command.end(signal.SIGINT) == (0, "", "")


def test_a_follower_that_never_reached_a_server_does_not_wait_for_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    error = TopicCommands(url).error("tail", "-f", "orders")
    assert error["code"] == "unreachable"
    assert "everlog serve" in error["message"]


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(topic: TopicCommands) -> None:
    append(topic, "long", *["x" * 1000] * 2000)
    reader = subprocess.Popen(
        command_line("everlog", "topic", "read", "long", "--url", topic.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert reader.stdout is not None
    reader.stdout.readline()
    reader.stdout.close()
    assert reader.wait(PATIENCE_S) == 0
    assert reader.stderr is not None
    assert reader.stderr.read() == b""
    reader.stderr.close()


# --- Keys ------------------------------------------------------------------------------------------------


def test_the_key_comes_from_the_option_or_the_environment_and_is_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_API_KEYS", f"{KEY}:read")
    with running_server(tmp_path, "--memory", key=KEY) as server:
        topic = TopicCommands(server.url)
        told = topic.error("ls")
        assert told["code"] == "unauthorized"
        assert "EVERLOG_KEY" in told["message"]
        assert topic.json("ls", "--key", KEY) == {"topics": []}
        monkeypatch.setenv("EVERLOG_KEY", KEY)
        assert topic.json("ls") == {"topics": []}
        refused = topic.run("create", "t", "--replace", code=1)
        assert "needs admin" in refused[1]
        shown = CliRunner().invoke(app, ["topic", "ls", "--help"]).output
        _, printed, logged = server.stop()
    for text in (*refused, shown, printed, logged):
        assert KEY not in text


def test_the_server_can_be_named_by_the_environment(
    topic: TopicCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(topic, "named", 1)
    monkeypatch.setenv("EVERLOG_URL", topic.url)
    result = CliRunner().invoke(app, ["topic", "ls", "--prefix", "named", "--json"])
    assert json.loads(result.stdout)["topics"][0]["topic"] == "named"
    result = CliRunner().invoke(app, ["topic", "ls", "--url", "nonsense://"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the server's URL is 'nonsense://'")
