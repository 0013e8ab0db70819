"""The list of the consumers of all topics: pages that meet, and what a key with prefixes sees."""

from __future__ import annotations

from tests.support.http_cases import running


def test_the_pages_of_all_consumers_hold_each_of_them_once() -> None:
    with running() as server:
        api = server.api()
        wanted = []
        for topic in ("z", "a", "m"):
            api.append(topic, [{"data": 1}])
            for name in ("c2", "c1", "c3"):
                assert api.request("PUT", f"/v0/topics/{topic}/consumers/{name}", {}).status == 201
            wanted += [(topic, name) for name in ("c1", "c2", "c3")]
        for size in (1, 2, 3, 4, 9, 100):
            found, cursor = [], ""
            while True:
                page = api.request("GET", f"/v0/consumers?page_size={size}&cursor={cursor}").json
                found += [(each["topic"], each["name"]) for each in page["consumers"]]
                assert len(page["consumers"]) <= size
                cursor = page.get("next_cursor", "")
                if not cursor:
                    break
            assert found == wanted, size
        assert api.request("GET", "/v0/consumers?cursor=eyJhZnRlciI6ImEifQ==").status == 400
        assert api.request("GET", "/v0/routers?lag=true").json["routers"] == []


def test_a_key_with_prefixes_sees_the_consumers_of_its_topics() -> None:
    with running(keys="all,some:read:own.") as server:
        api = server.api("all")
        for topic in ("own.a", "other"):
            api.append(topic, [{"data": 1}])
            api.request("PUT", f"/v0/topics/{topic}/consumers/c", {})
        seen = server.api("some").request("GET", "/v0/consumers").json["consumers"]
        assert [each["topic"] for each in seen] == ["own.a"]
