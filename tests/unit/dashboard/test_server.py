"""What the dashboard's server answers, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import ClientResponse, ClientSession
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from agent.counters.registry import Counters, Snapshot, described
from agent.dashboard import DashboardServer
from agent.dashboard.metrics import FAMILIES, SERVER, of_counter, page, render
from agent.engine import latency
from agent.wire.filetime import SECOND

SCRIPTS = (".js", "css")
NAME = 'odd "set"\\ of\nfiles'


class FakeAgent:
    """A provider that can fail; its status is awaited, its counters are not."""

    def __init__(self) -> None:
        self.fails = False
        self.state = "seeding"
        self.problems: list[dict[str, Any]] = []
        self.connections = [{
            "name": "a->b", "direction": "outbound", "partner": "b", "state": "vvjoin", "backlog": 7,
            "scheduled": True, "last_error": None, "last_join_time": "2026-01-01T00:00:01Z",
        }]  # fmt: skip
        self.registry = Counters()
        self.registry.add_set(NAME)
        self.registry.add_cxtion(NAME, "a->b")
        self.registry.inc_both(NAME, "a->b", "Packets Sent in Bytes", 2**40)
        self.registry.set_value(NAME, "KB of Staging Space Free", 660)
        for ms in (1500, 4000, 90_000_000):
            for counter, n in latency.counted(0, ms * SECOND // 1000).items():
                self.registry.inc_both(NAME, "a->b", counter, n)

    async def status(self) -> Mapping[str, Any]:
        if self.fails:
            raise RuntimeError("a secret that belongs into the log")
        return {
            "member": "a",
            "version": "0.1.0",
            "problems": self.problems,
            "partners": [{"set": NAME, "name": "b", "called_by": "key", "clock_offset_s": -1.5}],
            "incidents": {"mass deletion": 2},
            "sets": [
                {
                    "name": NAME,
                    "state": self.state,
                    "error": None,
                    "last_error": {"time": "2026-01-01T00:00:00Z", "text": ""},
                    "conflicts": {"kept": 17, "used_kib": 5, "quota_kib": 6, "newest": None},
                    "disk": {"free_kib": 7, "size_kib": 8},
                    "idtable": {"files": 5, "folders": 2, "tombstones": 1},
                    "pending": {"aging": 0, "local": 1, "inbound": 2, "outbound": 3},
                    "connections": list(self.connections),
                }
            ],
        }

    def counters(self) -> Snapshot:
        return self.registry.snapshot()

    def transfers(self) -> list[dict[str, Any]]:
        return [{"id": "1", "set": NAME, "partner": "b", "path": "secret plans", "received": 1, "size": 4}]

    async def changes(self) -> list[dict[str, Any]]:
        return []

    async def conflicts(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"items": [], "groups": []}


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


@pytest.fixture
async def client(agent: FakeAgent, tmp_path: Path) -> AsyncIterator[TestClient]:
    server = DashboardServer(agent, "127.0.0.1", 0, [tmp_path, tmp_path / "other"], allowed_hosts=["Files.example"])
    async with TestClient(TestServer(server.app())) as client:
        yield client


async def test_the_page_and_all_it_names_come_from_here(client: TestClient) -> None:
    response = await client.get("/")
    assert response.status == 200
    page = await response.text()
    named = set(re.findall(r'(?:src|href)="([^"#]*)"', page))
    assert "/dashboard.js" in named
    for path in named - {"/api/summary"}:
        assert path.startswith("/"), "nothing from elsewhere"
        answer = await client.get(path)
        assert answer.status == 200, path
        assert await answer.read()
    static = resources.files("agent.dashboard").joinpath("static")
    ours = [one for one in static.iterdir() if one.name[-3:] in SCRIPTS and not one.name.startswith("uPlot.")]
    assert len(ours) > 5
    for file in ours:
        text = file.read_text()
        assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval)\b", text), file.name
        assert not re.search(r"url\(|//cdn|https?://(?!www\.w3\.org/2000/svg)", text), file.name
        for path in re.findall(r'from "\./([^"]*)"', text):
            assert (await client.get(f"/{path}")).content_type == "text/javascript"
    assert not re.search(r"\sstyle=|<style|<script(?![^>]*\ssrc=)|\son\w+=", page), "the policy forbids inline"


@pytest.mark.parametrize("path", ["/", "/api/status", "/nowhere", "/healthz", "/dashboard.js"])
async def test_every_answer_has_the_security_headers(client: TestClient, path: str) -> None:
    headers = (await client.get(path)).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "127.0.0.1:9", "[::1]:80", "192.0.2.7", "files.example", "FILES.example:5000"],
)
async def test_hosts_that_are_ours_or_addresses(client: TestClient, host: str) -> None:
    assert (await client.get("/api/status", headers={"Host": host})).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[::1", "a@evil.example"]
)
async def test_a_rebound_name_is_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/api/status", "/api/counters", "/api/summary", "/metrics", "/healthz"):
        response = await client.get(path, headers={"Host": host})
        assert response.status in (400, 421)
        assert "vvjoin" not in await response.text()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_there_is_nothing_to_change(client: TestClient, method: str) -> None:
    for path in ("/", "/api/status", "/api/counters", "/metrics"):
        response = await client.request(method, path)
        assert response.status == 405
        assert response.headers["Allow"] == "GET,HEAD"


def test_what_is_not_ours_is_as_its_makers_published_it() -> None:
    """uPlot 1.6.32, of the package whose checksum script/vendor has."""
    static = resources.files("agent.dashboard").joinpath("static")
    assert {
        one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in static.iterdir() if "uPlot" in one.name
    } == {
        "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
        "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    }
    vendor = (Path(__file__).parents[3] / "script" / "vendor").read_text()
    assert "version=1.6.32\nsha512=KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy" in vendor


async def test_status_and_counters(client: TestClient, agent: FakeAgent) -> None:
    status = await (await client.get("/api/status")).json()
    assert status["sets"][0]["connections"][0]["state"] == "vvjoin"
    assert await (await client.get("/api/counters")).json() == agent.registry.snapshot()


async def told(response: ClientResponse) -> dict[str, Any]:
    """The next event of a stream."""
    assert response.content_type == "text/event-stream"
    line = await response.content.readuntil(b"\n\n")
    event: dict[str, Any] = json.loads(line.decode().removeprefix("data: "))
    return event


async def test_a_page_is_told_what_has_changed_and_nothing_else(
    client: TestClient, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.dashboard.server.FRESH_S", -1)
    monkeypatch.setattr("agent.dashboard.live.EVERY_S", 0.01)
    async with client.get("/api/live") as response:
        assert "unsafe" not in response.headers["Content-Security-Policy"]
        event = await told(response)
        assert set(event["parts"]) == {
            "member", "fleet", "matrix", "transfers", "directory", "summary", f"set/{NAME}", "partner/b",
        }  # fmt: skip
        assert "secret plans" not in str(event), "names are for those who have a token"
        assert event["parts"]["partner/b"]["connections"][0]["state"] == "vvjoin"
        assert event["parts"]["member"]["state"] == "busy", "seven change orders are on their way"
        assert event["gone"] == []
        for _ in range(3):
            event = await told(response)
            assert (event["parts"], event["gone"]) == ({}, [])
        agent.state = "online"
        while not (event := await told(response))["parts"]:
            pass
        assert list(event["parts"]) == [f"set/{NAME}"]
        agent.registry.inc_set(NAME, "Joins")
        for _ in range(3):
            assert (await told(response))["parts"] == {}, "the page does not show that one"
        agent.connections = []
        while not (event := await told(response))["parts"]:
            pass
        assert event["gone"] == ["partner/b"]


async def test_a_page_that_asks_for_the_counters_of_an_instance_has_those(client: TestClient, agent: FakeAgent) -> None:
    for asked, instance in ((f"{NAME}/a->b", f"{NAME}/a->b"), (NAME, NAME), ("none", NAME), ("", NAME)):
        async with client.get("/api/live", params={"counters": asked}) as response:
            parts = (await told(response))["parts"]
        assert parts["instances"] == [NAME, f"{NAME}/a->b"]
        kind = "FileReplicaConn" if "->" in instance else "FileReplicaSet"
        values = agent.registry.snapshot()[kind][instance]
        assert parts["counters"] == {"instance": instance, "object": kind, "values": values}


async def test_pages_are_as_many_as_are_allowed_and_end_with_the_agent(
    client: TestClient, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.dashboard.live.MOST_STREAMS", 1)
    agent.fails = True
    assert (await client.get("/api/live")).status == 503
    agent.fails = False
    async with client.get("/api/live") as response:
        await told(response)
        assert (await client.get("/api/live")).status == 503
        assert (await client.get("/healthz")).status == 200


async def test_open_pages_outlast_the_time_of_an_answer_and_end_at_the_stop(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.edge.http._PATIENCE_S", 0.05)
    monkeypatch.setattr("agent.dashboard.live.EVERY_S", 0.05)
    server = DashboardServer(agent)
    await server.start()
    async with ClientSession() as session, session.get(f"{server.url}api/live") as response:
        for _ in range(5):
            await told(response)
        await server.close()
        assert await response.content.read() == b"" or response.content.at_eof()


async def test_health_is_that_of_the_sets(
    client: TestClient, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.dashboard.server.FRESH_S", -1)
    away = {"set": "docs", "connection": "a->b", "partner": "b", "stops": False, "why": "b cannot be reached"}
    agent.problems = [away]
    response = await client.get("/healthz")
    assert response.status == 200
    assert await response.json() == {"ok": True, "member": "a", "why": []}
    agent.problems = [away | {"connection": None, "partner": None, "stops": True, "why": "its root is gone"}, away]
    response = await client.get("/healthz")
    assert response.status == 503
    assert await response.json() == {"ok": False, "member": "a", "why": ["set docs: its root is gone"]}


async def test_a_failing_agent_is_a_503_that_tells_no_secret(
    client: TestClient, agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    agent.fails = True
    for path in ("/api/status", "/healthz", "/metrics"):
        response = await client.get(path)
        assert response.status == 503
        assert "secret" not in await response.text()
    assert "secret" in caplog.text
    assert (await client.get("/api/counters")).status == 200


async def test_metrics_are_understood_by_a_foreign_parser(client: TestClient) -> None:
    response = await client.get("/metrics")
    assert response.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    families = {f.name: f for f in openmetrics(await response.text())}
    samples = {(s.name, *sorted(s.labels.items())): s.value for f in families.values() for s in f.samples}
    the_set, the_conn = ("set", NAME), ("connection", "a->b")
    assert samples["frs_set_packets_sent_bytes_total", the_set] == 2**40
    assert samples["frs_connection_packets_sent_bytes_total", the_conn, the_set] == 2**40
    assert families["frs_set_packets_sent_bytes"].unit == "bytes"
    assert samples["frs_set_staging_space_free_bytes", the_set] == 660 * 1024
    assert samples["frs_set_entries", ("kind", "folders"), the_set] == 2
    assert samples["frs_set_pending_changes", ("kind", "outbound"), the_set] == 3
    assert samples["frs_set_conflicts_kept", the_set] == 17
    assert samples["frs_set_conflicts_quota_bytes", the_set] == 6 << 10
    assert samples["frs_set_disk_free_bytes", the_set] == 7 << 10
    assert samples["frs_partner_clock_offset_seconds", ("partner", "b"), the_set] == -1.5
    assert samples["frs_set_last_error_timestamp_seconds", the_set] == 1_767_225_600
    conn = (the_conn, ("direction", "outbound"), ("partner", "b"), the_set)
    assert samples["frs_connection_backlog", *conn] == 7
    assert samples["frs_connection_joined", *conn] == 1
    assert samples["frs_connection_last_join_timestamp_seconds", *conn] == 1_767_225_601
    for name, state in (("frs_connection_state", "vvjoin"), ("frs_set_state", "seeding")):
        states = {dict(key[1:])["state"]: value for key, value in samples.items() if key[0] == name}
        assert [state for state, value in states.items() if value] == [state]
    assert samples["frs_set_replicating", the_set] == 1
    assert samples["frs_incidents_total", ("cause", "mass deletion")] == 2
    assert samples["frs_incidents_total", ("cause", "implausible number")] == 0, "there before the first one"
    assert samples["frs_agent_info", ("member", "a"), ("version", "0.1.0")] == 1
    assert samples["process_start_time_seconds",] > 1_767_225_600
    # all that is described is there, with its type and what it is, and nothing else
    always = [family for family in FAMILIES if family not in SERVER]  # without a directory server beside it
    assert {f.name: f.type for f in families.values()} == {f.name: f.kind for f in always}
    for family in always:
        assert families[family.name].documentation == family.help
        parts = ("_bucket", "_count", "_sum") if family.kind == "histogram" else ("",)
        there = {family.sample.removesuffix("_bucket") + part for part in parts}
        assert {s.name for s in families[family.name].samples} <= there
    name = "frs_connection_replication_latency_seconds"
    assert samples[f"{name}_bucket", the_conn, ("le", "5.0"), the_set] == 2, "that of up to 2 s among them"
    assert samples[f"{name}_bucket", the_conn, ("le", "+Inf"), the_set] == 3
    assert samples[f"{name}_sum", the_conn, the_set] == 1.5 + 4 + 90_000
    for one in described():
        family = of_counter(one)
        if one.counter.startswith("Replication Latency"):
            assert family.kind == "histogram"
            continue
        raw = one.type == "PERF_COUNTER_LARGE_RAWCOUNT"
        assert family.kind == ("gauge" if raw else "counter")
        assert one.counter in family.help


async def test_metrics_for_a_client_that_knows_the_older_format_only(client: TestClient) -> None:
    response = await client.get("/metrics", headers={"Accept": "text/plain;version=0.0.4"})
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    names = {s.name for f in text_string_to_metric_families(await response.text()) for s in f.samples}
    assert {"frs_set_joins_total", "frs_connection_backlog", "process_open_fds"} <= names


async def test_a_set_that_does_not_replicate_is_a_metric(client: TestClient, agent: FakeAgent) -> None:
    agent.state = "stopped"
    families = {f.name: f for f in openmetrics(await (await client.get("/metrics")).text())}
    assert [s.value for s in families["frs_set_replicating"].samples] == [0]
    assert [s.labels["state"] for s in families["frs_set_state"].samples if s.value] == ["stopped"]


def test_no_two_counters_share_a_metric() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))
    assert len(described()) == 147


def test_metrics_of_a_name_that_is_no_utf8() -> None:
    counters = Counters()
    counters.add_set("\udcff")
    assert rb'frs_set_joins_total{set="\\udcff"} 0' in render({}, counters.snapshot())[0]


def test_whether_the_directory_can_be_read_is_a_metric() -> None:
    def text(reading: dict[str, object] | None) -> bytes:
        return render({"directory": {"reading": reading}}, Counters().snapshot())[0]

    assert b"frs_directory_readable 1.0\n" in text({"problem": "", "notified": 3})
    assert b"frs_directory_notifications_total 3.0\n" in text({"problem": "", "notified": 3})
    assert b"frs_directory_readable 0.0\n" in text({"problem": "it is of another enterprise", "notified": 0})
    assert b"\nfrs_directory_readable " not in text(None)


def test_the_page_of_all_counters_and_metrics_is_up_to_date() -> None:
    docs = Path(__file__).parents[3] / "docs" / "counters.md"
    assert docs.read_text() == page(), "python -m agent.dashboard.metrics > docs/counters.md"


async def test_no_summary_then_the_newest_one_and_its_charts(client: TestClient, tmp_path: Path) -> None:
    assert (await client.get("/api/summary")).status == 404
    assert (await client.get("/summary/chart-light.svg")).status == 404
    for name, age in (("old", 100), ("new", 50)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps({"generated": name}))
        (folder / "chart-light.svg").write_text(f"<svg>{name}</svg>")
        (folder / "chart-dark.svg").write_text(f"<svg>{name}</svg>")
        (folder / "secret.txt").write_text("secret")
        os.utime(folder / "summary.json", (1_700_000_000 - age, 1_700_000_000 - age))
    assert await (await client.get("/api/summary")).json() == {"generated": "new"}
    chart = await client.get("/summary/chart-dark.svg?2026")
    assert await chart.text() == "<svg>new</svg>"
    assert chart.content_type == "image/svg+xml"
    assert "sandbox" in chart.headers["Content-Security-Policy"]
    for path in ("/summary/secret.txt", "/summary/..%2fnew%2fsecret.txt", "/summary/../old/secret.txt"):
        assert (await client.get(path)).status == 404
    (tmp_path / "summary.json").write_text('{"generated": "newest"}')
    assert await (await client.get("/api/summary")).json() == {"generated": "newest"}
    (tmp_path / "other" / "summary").mkdir(parents=True)
    (tmp_path / "other" / "summary" / "summary.json").write_text('{"generated": "newest of all"}')
    later = (tmp_path / "summary.json").stat().st_mtime_ns + 1
    os.utime(tmp_path / "other" / "summary" / "summary.json", ns=(later, later))
    assert await (await client.get("/api/summary")).json() == {"generated": "newest of all"}
    (tmp_path / "other" / "summary" / "summary.json").write_text('{"generated": "torn')
    os.utime(tmp_path / "other" / "summary" / "summary.json", ns=(later, later))
    assert (await client.get("/api/summary")).status == 503


async def test_it_listens_and_stops(agent: FakeAgent) -> None:
    server = DashboardServer(agent)
    port = await server.start()
    assert server.url == f"http://127.0.0.1:{port}/"
    async with ClientSession() as session:
        async with session.get(f"{server.url}healthz") as response:
            assert response.status == 200
        await server.close()
        await server.close()
        with pytest.raises(OSError):
            await session.get(f"{server.url}healthz")


async def test_a_taken_port_is_an_error(agent: FakeAgent) -> None:
    server = DashboardServer(agent)
    port = await server.start()
    try:
        with pytest.raises(OSError):
            await DashboardServer(agent, "127.0.0.1", port).start()
    finally:
        await server.close()


def test_texts_have_the_contrast_of_wcag_aa() -> None:
    css = resources.files("agent.dashboard").joinpath("static", "dashboard.css").read_text()
    themes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in re.findall(r":root \{(.*?)\}", css, re.S)
    ]
    assert len(themes) == 2

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for theme in themes:
        pairs = [(kind, f"{kind}-back") for kind in ("good", "busy", "bad", "idle")]
        pairs += [(text, back) for text in ("text", "muted", "link") for back in ("page", "card")]
        for text, back in pairs:
            dark, light = sorted((luminance(theme[text]), luminance(theme[back])))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, back)
        dark, light = sorted((luminance(theme["bar"]), luminance(theme["bar-back"])))
        assert (light + 0.05) / (dark + 0.05) >= 3, "graphics"


def hours(folder: Path) -> None:
    """A table as `frs summarize` writes it: two hours of a fleet."""
    texts = ("level", "fleet", "member", "set", "connection", "counter")
    numbers = ("total", "peak_minute", "last", "min", "max")
    rows = [
        dict.fromkeys(texts, "") | {"level": "fleet", "fleet": "hq", "counter": "Joins", "per_second": 0.5}
        | {"time": datetime(2026, 1, 10, hour, tzinfo=UTC)} | dict.fromkeys(numbers) | {"total": 7, "peak_minute": 30}
        for hour in (0, 1)
    ]  # fmt: skip
    schema = pa.schema(
        [*((name, pa.string()) for name in texts), *((name, pa.int64()) for name in numbers),
         ("per_second", pa.float64()), ("time", pa.timestamp("us", "UTC"))]
    )  # fmt: skip
    path = folder / "hours" / "date=2026-01-10" / "part.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path)


async def test_history_is_read_from_the_tables_of_the_newest_summary(client: TestClient, tmp_path: Path) -> None:
    question = "/api/history?table=hours&level=fleet&counter=Joins&since=2026-01-10T01:00:00Z"
    assert (await client.get(question)).status == 404
    hours(tmp_path)
    (tmp_path / "summary.json").write_text("{}")
    answer = await client.get(question)
    assert await answer.json() == {
        "table": "hours",
        "rows": [
            {"level": "fleet", "fleet": "hq", "member": "", "set": "", "connection": "", "counter": "Joins"}
            | {"time": "2026-01-10T01:00:00Z", "total": 7, "per_second": 0.5, "peak_per_second": 0.5}
            | {"last": None, "min": None, "max": None}
        ],
        "more": False,
    }
    shutil.rmtree(tmp_path / "hours")
    assert (await client.get(question)).status == 200, "it is known"
    for wrong, why in (
        ("table=hours", "holds no table 'hours'"),
        ("table=weeks", "invalid choice: 'weeks'"),
        ("output=/etc", "what can be asked is table, level"),
        ("since=yesterday", "invalid moment value: 'yesterday'"),
        ("counter=%00", "what can be asked is"),
    ):
        answer = await client.get(f"/api/history?{wrong}")
        assert answer.status == 400, wrong
        assert why in (await answer.json())["error"]
