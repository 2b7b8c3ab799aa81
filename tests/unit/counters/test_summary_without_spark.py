"""What the summary says where something is missing, and its ratios."""

from __future__ import annotations

import builtins
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent.cli import run_cli
from agent.counters import spark
from agent.counters.derived import _PACKETS, _SET, derive
from agent.counters.registry import CONN_OBJECT, SET_OBJECT, counter_types


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "s.jsonl"
    path.write_text("{}\n")
    return path


def said(capsys: pytest.CaptureFixture[str], samples: Path, *options: str) -> tuple[int, str]:
    code = run_cli(["summarize", str(samples), "--output", str(samples.parent / "out"), *options])
    return code, capsys.readouterr().err


def test_without_java_it_says_what_to_install(
    samples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    code, text = said(capsys, samples)
    assert code == 4
    assert "openjdk-17-jre-headless" in text


def test_without_pyspark_it_says_what_to_install(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real_import = builtins.__import__

    def no_pyspark(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "pyspark":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(builtins, "__import__", no_pyspark)
    code, text = said(capsys, samples)
    assert code == 4
    assert "frs-agent[spark]" in text


def test_a_missing_path_is_told_before_spark_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, tmp_path / "nowhere")
    assert code == 2
    assert "nowhere" in text
    assert "starting" not in text


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("file:///nowhere", (), "no such file or folder: /nowhere"),
        ("s3://me:hidden@bucket/x", (), "a URL of samples must hold no user name and no password"),
        ("s3://bucket/x?endpoint_override=127.0.0.1:1&scheme=http&region=x", (), "s3://bucket/x: cannot be read: "),
        ("nothing://bucket", (), "nothing://bucket: cannot be reached: "),
        ("s3://bucket/x", ("--follow",), "--follow takes folders"),
    ],
)
def test_a_place_that_cannot_be_read_is_told_before_spark_starts(
    samples: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    url: str, options: tuple[str, ...], text: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    code = run_cli(["summarize", str(samples), url, "--output", str(samples.parent / "out"), *options])
    said_there = capsys.readouterr().err
    assert code == 2
    assert text in said_there
    assert "starting" not in said_there
    assert "hidden" not in said_there


def test_a_master_that_is_not_there(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    code, text = said(capsys, samples, "--master", f"spark://127.0.0.1:{port},nowhere.invalid:1")
    assert code == 4
    assert f"127.0.0.1:{port}: [Errno 111] Connection refused; nowhere.invalid:1: " in text


def test_all_that_is_waited_for_ends_within_a_minute() -> None:
    assert spark.CONNECT_S + spark.CLUSTER_S < 60


def test_a_master_that_does_not_answer() -> None:
    """The session is given up, though Spark itself still waits."""
    never = threading.Event()

    class Builder:
        def getOrCreate(self) -> None:
            never.wait()

    try:
        with pytest.raises(spark.ClusterUnreachable, match=r"spark://b:7077 takes connections and does not answer"):
            spark._begin(Builder(), "spark://b:7077", 0.05)
    finally:
        never.set()


def test_a_cluster_without_workers() -> None:
    asked: list[int] = []

    class Session:
        sparkContext = property(lambda self: self)
        _jsc = property(lambda self: self)

        def sc(self) -> Session:
            return self

        getExecutorMemoryStatus = sc

        def size(self) -> int:
            asked.append(1)
            return 1

    with pytest.raises(spark.ClusterUnreachable, match=r"reaches this host at 192.0.2.1 \(see --driver-host\)"):
        spark._await_worker(Session(), "spark://b:7077", "192.0.2.1", time.monotonic(), 50)
    assert asked


def test_ratios_use_counters_that_exist() -> None:
    for object_name, ratios in ((SET_OBJECT, _SET), (CONN_OBJECT, _PACKETS)):
        for above, below in ratios.values():
            assert {*above, *below} <= set(counter_types()[object_name])


def test_ratios() -> None:
    derived = derive(SET_OBJECT, {"Files Installed": 3, "Files Installed with Error": 1}, {})
    assert derived["install_error_ratio"] == 0.25
    assert derived["bytes_per_file_installed"] == 0
    assert derived["packet_send_error_ratio"] is None
    assert "staging_use" not in derived
    zero = {"last": 0, "min": 0, "max": 0}
    nothing = {"KB of Staging Space In Use": zero, "KB of Staging Space Free": zero}
    assert derive(SET_OBJECT, {}, nothing)["staging_use"] is None


def test_members_of_equal_names_have_a_line_each(tmp_path: Path) -> None:
    chart = pytest.importorskip("agent.counters.chart", reason="needs matplotlib: pip install 'frs-agent[spark]'")
    rows = [
        {"fleet": fleet, "member": "a", "member_guid": guid, "set": "docs", "set_guid": "s", "values": [number, 0]}
        | {"counter": "Files Installed"}
        for number, (fleet, guid) in enumerate((("hq", "1"), ("hq", "2"), ("lab", "1")), 1)
    ]
    courses = chart._courses({"bucket_s": 1, "rows": rows}, "Files Installed")
    assert courses == {"hq/a": [1, 0], "hq/a'": [2, 0], "lab/a": [3, 0]}
    assert chart._courses({"bucket_s": 1, "rows": rows[:1]}, "Files Installed") == {"a": [1, 0]}
