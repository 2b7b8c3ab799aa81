"""contrib/: alerts and a dashboard ask for metrics and labels that there are, and promtool has no complaint."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.dashboard.metrics import FAMILIES
from agent.reporting.causes import Cause

CONTRIB = Path(__file__).parents[3] / "contrib"
ALERTS = CONTRIB / "prometheus" / "frs-alerts.yml"
TESTS = ALERTS.with_name("frs-alerts-test.yml")
LABELS = {family.sample: {*family.labels, "instance", "job"} for family in FAMILIES} | {"up": {"instance", "job"}}
PROMTOOL = os.environ.get("FRS_TEST_PROMTOOL") or shutil.which("promtool")
NAME = re.compile(r"\b((?:frs|process)_\w+|up)\b(?:\{([^}]*)\})?")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CONTRIB / "grafana" / "frs.json").read_text())
    return found


def asked() -> Iterator[tuple[str, str, str]]:
    """Where, an expression, and the texts that name its labels."""
    for rule in rules():
        yield rule["alert"], rule["expr"], " ".join(rule["annotations"].values())
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    for variable in dashboard()["templating"]["list"][1:]:
        yield variable["name"], variable["definition"], ""


def names_in(expression: str) -> list[tuple[str, str]]:
    return NAME.findall(expression)


@pytest.mark.parametrize(("where", "expression", "text"), list(asked()))
def test_every_metric_and_label_is_there(where: str, expression: str, text: str) -> None:
    named = names_in(expression)
    assert named, expression
    for name, matchers in named:
        assert name in LABELS, f"{where}: there is no metric {name}"
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= LABELS[name], f"{where}: {name}"
    told = set(re.findall(r"\$labels\.(\w+)|\{\{(\w+)\}\}", text))
    assert {a or b for a, b in told} <= set.union(*(LABELS[name] for name, _ in named)), where


def test_causes_that_are_named_are_there() -> None:
    named = {cause for _, expression, _ in asked() for cause in re.findall(r'cause!?="([^"]*)"', expression)}
    assert named == {"mass deletion"} <= {cause.value for cause in Cause}


def test_readme_and_rules_have_the_same_alerts() -> None:
    told = re.findall(r"^\| (Frs\w+) \| \S", (CONTRIB / "README.md").read_text(), re.MULTILINE)
    assert told == [rule["alert"] for rule in rules()]


def test_every_series_that_the_rules_are_tried_with_is_there() -> None:
    series = [one["series"] for test in yaml.safe_load(TESTS.read_text())["tests"] for one in test["input_series"]]
    for name, matchers in (named for one in series for named in names_in(one)):
        assert name in LABELS
        assert set(re.findall(r'(\w+)="', matchers)) <= LABELS[name]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def promtool(*command: str | Path) -> None:
    if PROMTOOL is None:
        pytest.skip("no promtool (package prometheus): the rules were parsed, not tried")
    done = subprocess.run([PROMTOOL, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_rules() -> None:
    promtool("check", "rules", ALERTS)


def test_the_rules_say_what_they_should() -> None:
    promtool("test", "rules", TESTS)


def test_promtool_takes_what_the_dashboard_asks(tmp_path: Path) -> None:
    """As rules, with what Grafana puts in."""
    asks = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    put = [one.replace("$__rate_interval", "5m").replace("$instance", ".*").replace("$set", ".*") for one in asks]
    found = [{"record": f"asked:{number}", "expr": one} for number, one in enumerate(put)]
    rules_file = tmp_path / "asked.yml"
    rules_file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": found}]}))
    promtool("check", "rules", rules_file)
