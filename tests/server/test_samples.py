"""The samples that a server keeps of itself, and the overview: bounded, cheap, and true."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from everlog.api_types import StorageHealth
from everlog.server.answers import DiskSpace
from everlog.server.overview_routes import alerts, disk_space
from everlog.server.samples import COARSE_COUNT, FIELDS, FINE_COUNT, Sampler, SampleRing, quantile_ms
from everlog.topics.delivery.delivery import DeliveryCounts
from everlog.topics.results import EngineVitals
from everlog.topics.storage.wal import WalMetrics
from tests.support.http_cases import running
from tests.support.processes import eventually

NS_PER_S = 1_000_000_000


@given(st.integers(1, 12), st.lists(st.floats(0, 1e6), max_size=40), st.floats(-1, 1e6))
def test_a_ring_is_the_end_of_a_list(count_max: int, times: list[float], after: float) -> None:
    ring = SampleRing(count_max, 2)
    for at in times:
        ring.add((at, at * 2))
    assert ring.rows(after) == [[at, at * 2] for at in times[-count_max:] if at > after]


@given(st.lists(st.sampled_from([10, 60, 200, 999, 5000]), max_size=50), st.floats(0.01, 1))
def test_a_quantile_is_the_bound_above_that_share(values: list[int], share: float) -> None:
    bounds = (50, 100, 250, 1000)
    counts = [
        sum(low < value <= high for value in values) for low, high in zip((0, *bounds), bounds, strict=False)
    ]
    counts.append(sum(value > bounds[-1] for value in values))
    got = quantile_ms(bounds, counts, share) * 1000
    above = [bound for bound in bounds if sum(value <= bound for value in values) >= share * len(values)]
    assert got == (0 if not values else (above or [bounds[-1]])[0])


def vitals(appended: int, fsyncs: int) -> EngineVitals:
    wal = WalMetrics(fsyncs=fsyncs, bytes_written=appended * 10)
    wal.fsync_micros_counts[2] = fsyncs
    return EngineVitals(topics=3, appended=appended, bytes_live=appended, wal=wal)


def test_ten_seconds_become_one_row_with_mean_rates_and_the_worst_latency() -> None:
    sampler = Sampler()
    for second in range(31):
        pressure = 0.9 if second == 5 else 0.1
        sampler.sample(
            1000 * second,
            second * NS_PER_S,
            requests=second * 4,
            connections=2,
            vitals=vitals(second * second, second),
            delivery=DeliveryCounts(pressure=pressure),
            late_ms=float(second == 7),
            latencies=[0] * 18 + [99 * second, max(0, second - 5)] + [0] * 16,
        )
    fine = [dict(zip(FIELDS, row, strict=True)) for row in sampler.fine.rows()]
    coarse = [dict(zip(FIELDS, row, strict=True)) for row in sampler.coarse.rows()]
    assert (len(fine), len(coarse)) == (30, 3)
    assert fine[0]["records_per_s"] == 1 and fine[-1]["records_per_s"] == 59
    assert fine[-1]["requests_per_s"] == 4 and fine[-1]["sync_p99_ms"] == 0.25
    assert coarse[0]["records_per_s"] == 10 and coarse[0]["pressure"] == 0.9
    # Of the 99 requests of each second up to 0.26 ms, one more of up to 0.52 ms from the sixth second on.
    assert {row["request_p50_ms"] for row in fine} == {(1 << 18) / 1e6}
    assert [row["request_p99_ms"] for row in fine[:5]] == [(1 << 18) / 1e6] * 5
    assert (coarse[0]["loop_late_ms"], coarse[1]["loop_late_ms"]) == (1, 0)
    assert [row["time_ms"] for row in coarse] == [10_000, 20_000, 30_000]


def test_the_rings_hold_an_hour_and_no_more() -> None:
    sampler = Sampler()
    for second in range(4000):
        sampler.sample(second, second * NS_PER_S, 0, 0, vitals(second, 0), DeliveryCounts())
    assert (len(sampler.fine.rows()), len(sampler.coarse.rows())) == (FINE_COUNT, COARSE_COUNT)


def test_a_server_samples_itself_and_tells_how_it_is() -> None:
    with running() as server:
        api = server.api()
        api.append("orders", [{"data": n} for n in range(7)])

        def rows() -> list[list[float]]:
            return api.request("GET", "/v0/samples?step_ms=1000").json["rows"]

        eventually("two samples", lambda: len(rows()) >= 2)
        overview = api.request("GET", "/v0/overview").json
        assert (overview["appended_total"], overview["topics"], overview["has_keys"]) == (7, 1, False)
        assert overview["storage"]["status"] == "ok"
        last = rows()[-1][0]
        later = api.request("GET", f"/v0/samples?after_ms={int(last)}").json["rows"]
        assert all(row[0] > last for row in later)
        assert api.request("GET", "/v0/samples?step_ms=7").status == 400


def test_the_latency_of_requests_leaves_out_those_that_waited_for_records() -> None:
    with running() as server:
        api = server.api()
        api.append("orders", [{"data": 1}])
        waiting = {"from_seq": 1, "wait_ms": 700}
        assert api.request("POST", "/v0/topics/orders/diff", waiting).json["records"] == []

        def rows() -> list[dict[str, float]]:
            answer = api.request("GET", "/v0/samples").json
            return [dict(zip(answer["fields"], row, strict=True)) for row in answer["rows"]]

        eventually("requests are sampled", lambda: any(row["request_p50_ms"] > 0 for row in rows()))
        assert all(row["request_p50_ms"] <= row["request_p99_ms"] for row in rows())
        answered = server.app.answered
        assert answered.of("/v0/topics/:name/diff", "POST").durations.total_ns >= 700_000_000

        def waited() -> list[int]:
            every = zip(*(each.durations.counts for each in answered.routes()), strict=True)
            return [
                sum(counts) - prompt for counts, prompt in zip(every, answered.prompt_counts(), strict=True)
            ]

        found = server.call(waited)
        assert sum(found) == 1
        assert found.index(1) >= (700_000_000).bit_length()


def test_alerts_name_what_is_wrong_the_worst_first() -> None:
    full = DiskSpace(free_bytes=1, total_bytes=1000)
    health = StorageHealth(status="failing", closed_shards={"0": "EIO"}, damage={"log": 2}, damaged_topics=1)
    delivery = DeliveryCounts(rungs=(True, False, False, True))
    found = [(alert.level, alert.code) for alert in alerts(health, delivery, full)]
    assert found == [
        ("error", "shard_read_only"),
        ("error", "topics_damaged"),
        ("warning", "recovery_damage"),
        ("error", "disk_nearly_full"),
        ("warning", "pressure_coalesce"),
        ("error", "pressure_refuse"),
    ]
    assert list(alerts(StorageHealth(), DeliveryCounts(), DiskSpace(900, 1000))) == []
    assert disk_space("/nonexistent") is None


def test_an_overview_takes_as_long_with_many_topics() -> None:
    with running() as server:
        api = server.api()
        for number in range(300):
            api.request("PUT", f"/v0/topics/t{number}")
        started = time.perf_counter()
        answer = api.request("GET", "/v0/overview").json
        assert answer["topics"] == 300
        assert time.perf_counter() - started < 5
