"""What the summary says where something is missing, and its ratios."""

from __future__ import annotations

import builtins
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.cli.summarize_cmd import summarize as command
from agent.counters.derived import _PACKETS, _SET, derive
from agent.counters.registry import CONN_OBJECT, SET_OBJECT, counter_types


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "s.jsonl"
    path.write_text("{}\n")
    return path


def test_without_java_it_says_what_to_install(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    result = CliRunner().invoke(command, [str(samples), "--output", str(tmp_path / "out")])
    assert result.exit_code == 3
    assert "openjdk-17-jre-headless" in result.stderr


def test_without_pyspark_it_says_what_to_install(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def no_pyspark(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "pyspark":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(builtins, "__import__", no_pyspark)
    result = CliRunner().invoke(command, [str(samples), "--output", str(tmp_path / "out")])
    assert result.exit_code == 3
    assert "frs-agent[spark]" in result.stderr


def test_a_missing_path_is_told_before_spark_starts(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(tmp_path / "nowhere"), "--output", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "nowhere" in result.stderr
    assert "starting" not in result.stderr


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
