"""Events and messages of a real server have the shapes that the AsyncAPI document gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.api_documents import Judge
from tests.support.server_clients import EventStream, JsonSocket, PlainClient
from tests.support.server_processes import running_server
from tools.reference_pages.asyncapi import COMMANDS, asyncapi
from tools.reference_pages.documents import registered_routes
from tools.reference_pages.messages import EVENTS, PUSHES, REPLIES, WORK_EVENTS

RECORD = {"data": {"id": 1}, "tag": "t", "node": "n", "meta": {"m": 1}}


@pytest.fixture
def judge() -> Judge:
    return Judge(asyncapi(registered_routes()))


def test_every_event_of_a_watch_stream_is_as_described(tmp_path: Path, judge: Judge) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.ask("PUT", "/topics/a", {"cap_records": 2})
        client.append("a", [RECORD] * 5)
        client.append("b", [RECORD])
        client.ask("PUT", "/topics/a/consumers/c", {"start": {"seq": 1}})
        wanted = {
            "topics": {"a": {"consumer": "c"}, "b": {}, "c*": {}},
            "include_tags": True,
            "include_data": False,
        }
        made = client.ask("POST", "/watch", wanted)
        with EventStream(server.url, made.json["stream_url"]) as stream:
            for frame in stream.frames():
                if frame.event in EVENTS:
                    judge.check(EVENTS[frame.event].__name__, frame.data)
                if frame.event == "caught-up" and frame.data["topic"] == "b":
                    client.append("c1", [RECORD])
                if frame.event == "topic-created":
                    client.ask("DELETE", "/topics/a")
                if frame.event == "topic-deleted":
                    assert server.stop()[0] == 0
    assert {kind.__name__ for kind in EVENTS.values()} <= judge.seen


def test_every_event_of_a_work_stream_is_as_described(tmp_path: Path, judge: Judge) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.ask("PUT", "/topics/jobs", {"type": "queue"})
        client.append("jobs", [RECORD])
        with EventStream(server.url, "/v0/topics/jobs/work?node=worker") as stream:
            for frame in stream.frames():
                if frame.event in WORK_EVENTS:
                    judge.check(WORK_EVENTS[frame.event].__name__, frame.data)
                if frame.event == "job":
                    client.ask("DELETE", "/topics/jobs")
    assert {kind.__name__ for kind in WORK_EVENTS.values()} <= judge.seen


def test_every_command_reply_and_push_of_a_socket_is_as_described(tmp_path: Path, judge: Judge) -> None:
    commands = {kind.__struct_config__.tag: kind.__name__ for kind in COMMANDS}
    answers = {kind.__struct_config__.tag: kind.__name__ for kind in (*REPLIES, *PUSHES)}
    with (
        running_server(tmp_path) as server,
        PlainClient(server.url) as client,
        JsonSocket(server.url) as socket,
    ):

        def say(**message: object) -> None:
            judge.check(commands[str(message["op"])], message)
            socket.send(**message)

        def hear(*ops: str) -> None:
            """Take messages until there was one of each of these kinds."""
            missing = set(ops)
            while missing:
                message = socket.receive()
                judge.check(answers[message["op"]], message)
                missing.discard(message["op"])

        say(op="publish", topic="a", records=[RECORD] * 5, config={"cap_records": 2}, request_id=[1])
        hear("ack")
        say(op="subscribe", topic="a", from_seq=0, include_tags=True, node="x", request_id="s")
        hear("subscribed", "tombstone", "record", "caught_up")
        client.ask("PUT", "/topics/a/consumers/c", {})
        say(op="subscribe", topics={"a": {"consumer": "c"}})
        hear("subscribed", "consumer_at_risk")
        say(op="publish", topic="b", records=[RECORD], return_seqs=False)
        hear("ack")
        say(op="subscribe", topics={"b": {"tail": True}}, include_data=False)
        say(op="unsubscribe", topics=["b"])
        hear("unsubscribed")
        say(op="subscribe", topics={"c*": {"filter": ["tag", "Eq", "x"]}})
        hear("subscribed")
        client.append("c1", [RECORD])
        hear("topic_created")
        say(op="ping", request_id={"x": 1})
        socket.send(op="nothing")
        hear("pong", "error")
        client.ask("DELETE", "/topics/a")
        hear("topic_deleted")
    assert set(commands.values()) | set(answers.values()) <= judge.seen
