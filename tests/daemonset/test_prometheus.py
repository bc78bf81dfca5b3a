"""Rules and dashboard against what the daemon really exports: names, labels, syntax, runbooks."""

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

from swapd.metrics.metric import Kind
from swapd.metrics.registry import METRICS
from tests.fakes.source_tree import ROOT

PROMETHEUS = ROOT / "daemonset" / "prometheus"
RULES = PROMETHEUS / "rules.yaml"
DASHBOARD = json.loads((PROMETHEUS / "dashboard.json").read_text())
#: what the scraper adds
TARGET_LABELS = {"cluster", "node", "job", "instance"}


def exported() -> dict[str, set[str]]:
    """Return every series name that can be scraped, with its labels."""
    names: dict[str, set[str]] = {}
    for metric in METRICS:
        labels = {*metric.labels, *TARGET_LABELS}
        match metric.kind:
            case Kind.HISTOGRAM:
                names |= {metric.name + "_sum": labels, metric.name + "_count": labels}
                names[metric.name + "_bucket"] = labels | {"le"}
            case Kind.SUMMARY:
                names |= {metric.name + "_sum": labels, metric.name + "_count": labels}
            case _:
                names[metric.name] = labels
    return names


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]
    yield from queries_of_the_docs()


def queries_of_the_docs() -> Iterator[tuple[str, str]]:
    """Yield what the pages show as PromQL."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        for block in re.findall(r"```promql\n(.*?)```", page.read_text(), re.DOTALL):
            yield from ((page.name, line) for line in block.splitlines() if line and not line.startswith("#"))


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[f"{n}-{w}" for n, (w, _) in enumerate(EXPRESSIONS)])
def test_every_name_and_label_in_a_query_is_one_that_is_exported(where: str, expression: str) -> None:
    known = exported()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    bare = re.sub(r'"[^"]*"', '""', expression)
    assert [name for name in re.findall(r"\bswapd:[a-z0-9_:]+", bare) if name not in recorded] == []
    names = re.findall(r"\bswapd_[a-z0-9_]+", bare)
    assert [name for name in names if name not in known] == []
    for name, selector in re.findall(r"\b(swapd_[a-z0-9_]+)\{([^}]*)\}", bare):
        labels = re.findall(r"([a-z_A-Z]+)\s*[=!]", selector)
        assert [label for label in labels if label not in known[name]] == [], name
    for grouping in re.findall(r"\bby \(([^)]*)\)", bare):
        everything = set().union(*(known[name] for name in names)) | {"kind", "model", "le"}
        assert [label for label in re.split(r",\s*", grouping) if label not in everything] == []


def test_every_alert_has_a_runbook_that_exists_and_a_severity() -> None:
    text = (ROOT / "docs" / "runbooks.md").read_text()
    anchors = {heading.lower() for heading in re.findall(r"^## (\w+)$", text, re.MULTILINE)}
    alerts = [rule for rule in rules() if "alert" in rule]
    assert alerts
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert anchors == {rule["alert"].lower() for rule in alerts}


def test_every_alert_is_tested_both_ways() -> None:
    tests = yaml.safe_load((PROMETHEUS / "rules.test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == alerts
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} >= alerts - {"SwapdDown"}


def promtool(*arguments: str, cwd: Path = PROMETHEUS) -> str:
    if "SWAPD_WITHOUT_PROMTOOL" in os.environ:
        pytest.skip("SWAPD_WITHOUT_PROMTOOL is set")
    found = shutil.which("promtool")
    assert found, "promtool is needed: apt-get install --no-install-recommends prometheus"
    done = subprocess.run([found, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_rules() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", "rules.yaml")


def test_promtool_finds_the_alerts_as_expected() -> None:
    assert "SUCCESS" in promtool("test", "rules", "rules.test.yaml")


def test_promtool_accepts_every_query_of_the_dashboard_and_of_the_docs(tmp_path: Path) -> None:
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    queries += [query for _, query in queries_of_the_docs()]
    filled = [query.replace("$__rate_interval", "5m") for query in queries]
    record = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(filled)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": record}]}))
    assert f"{len(record)} rules found" in promtool("check", "rules", "queries.yaml", cwd=tmp_path)


def test_the_dashboard_has_no_data_source_baked_in_and_no_panel_of_the_past() -> None:
    assert (DASHBOARD["uid"], DASHBOARD["schemaVersion"] >= 39) == ("swapd-node-pool", True)
    names = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert names == ["datasource", "cluster", "node", "model"]
    assert {panel["type"] for panel in DASHBOARD["panels"]} == {"row", "timeseries", "heatmap"}
    sources = re.findall(r'"datasource": \{[^}]*"uid": "([^"]*)"', json.dumps(DASHBOARD))
    assert set(sources) == {"${datasource}"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_the_dashboard_shows_everything_that_is_about_swapping_and_the_cache() -> None:
    shown = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    swapping = r"thrash|promotion|load_fraction|load_ratio|loading_gpu|relapse|swapd_cache|fetch|load_time|max_wait"
    about = [m.name for m in METRICS if re.search(swapping, m.name)]
    assert [name for name in about if name not in shown] == []
