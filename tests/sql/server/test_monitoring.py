"""The files of docker/monitoring: a monitor can run their queries, and the dashboard uses their metrics."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from tests.sql.lab import eventually
from tests.sql.pages import ROOT
from tests.sql.users import Town, User, equip, fit, town

FOLDER = ROOT / "docker" / "monitoring"
COLLECTOR = yaml.safe_load((FOLDER / "sql_exporter.collector.yml").read_text())
CONFIG_MAP = yaml.safe_load((FOLDER / "cloudnative-pg.yaml").read_text())
OF_OPERATOR = yaml.safe_load(CONFIG_MAP["data"]["custom-queries"])
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
QUERIES = {query["query_name"]: query["query"] for query in COLLECTOR["queries"]}
METRICS = {metric["metric_name"]: metric for metric in COLLECTOR["metrics"]}
# A label has a value for each time series that is kept for ever: none may be a name, or a number of a run.
LABELS = {
    "status": {"created", "running", "finishing", "finished", "failed", "cancelled", "interrupted"},
    "kind": {
        *("runs", "models", "attempts", "visits", "evaluations", "epochs", "decisions", "requests"),
        *("states", "packed", "log", "segment", "recorder", "run", "waiting", "other"),
    },
}

Rows = list[dict[str, Any]]


def rows(user: User, query: str) -> Rows:
    with user.connection.cursor() as cursor:
        cursor.execute(query)
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row)) for row in cursor]


def values(user: User, metric: str) -> dict[str, float]:
    """The values of a metric by its label; by nothing where it has none."""
    (column,), labels = METRICS[metric]["values"], METRICS[metric].get("key_labels", [])
    found = rows(user, QUERIES[METRICS[metric]["query_ref"]])
    return {"".join(row[label] for label in labels): float(row[column]) for row in found}


@pytest.fixture
def place(fresh_database: str) -> Iterator[tuple[Town, User]]:
    """A database without runs, and a login that has the role of monitors and no other."""
    with town(fresh_database) as root:
        yield root, root.user("watcher", "cerebro_monitor")


# -- the files ------------------------------------------------------------------------------------------------


def test_the_collector_has_the_form_of_the_exporter() -> None:
    assert set(COLLECTOR) == {"collector_name", "min_interval", "metrics", "queries"}
    for metric in COLLECTOR["metrics"]:
        assert set(metric) <= {"metric_name", "type", "help", "key_labels", "values", "query_ref"}
        assert re.fullmatch(r"cerebro_[a-z_]+", metric["metric_name"]) and metric["help"].endswith(".")
        assert metric["type"] in ("gauge", "counter") and len(metric["values"]) == 1
        assert (metric["type"] == "counter") == metric["metric_name"].endswith("_total")
        assert set(metric.get("key_labels", [])) <= set(LABELS)
        assert metric["metric_name"] == f"{metric['query_ref']}_{metric['values'][0]}"
    assert len(METRICS) == len(COLLECTOR["metrics"]) and len(QUERIES) == len(COLLECTOR["queries"])
    assert {metric["query_ref"] for metric in METRICS.values()} == set(QUERIES)


def test_the_config_map_defines_the_same_metrics() -> None:
    assert (CONFIG_MAP["apiVersion"], CONFIG_MAP["kind"]) == ("v1", "ConfigMap")
    assert {name: query["query"] for name, query in OF_OPERATOR.items()} == QUERIES
    for name, query in OF_OPERATOR.items():
        assert set(query) == {"primary", "predicate_query", "query", "metrics"} and query["primary"] is True
        columns = {column: told for one in query["metrics"] for column, told in one.items()}
        labels = {column for column, told in columns.items() if told["usage"] == "LABEL"}
        for column, told in columns.items():
            if column not in labels:
                metric = METRICS[f"{name}_{column}"]
                assert told == {"usage": metric["type"].upper(), "description": metric["help"]}
                assert set(metric.get("key_labels", [])) == labels
        assert {f"{name}_{column}" for column in set(columns) - labels} == {
            metric for metric in METRICS if METRICS[metric]["query_ref"] == name
        }


def expressions(panels: list[dict[str, Any]]) -> list[str]:
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def test_the_dashboard_uses_metrics_and_labels_of_the_files() -> None:
    (variable,) = [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    asked = [*expressions(DASHBOARD["panels"]), variable["query"]["query"]]
    named = [name for text in asked for name in re.findall(r'__name__=~"\(cnpg_\)\?(\w+)"', text)]
    assert set(named) <= set(METRICS)
    assert set(METRICS) - set(named) == set(), "a metric that no panel shows"
    assert all(text.count("__name__") == text.count("cerebro_") for text in asked)
    for text in asked:
        metrics = re.findall(r'\(cnpg_\)\?(\w+)"[^}]*?((?:,\w+!?=~?"[^"]*")*)\}', text)
        for name, conditions in metrics:
            for label, words in re.findall(r',(\w+)!?=~?"([^"]*)"', conditions):
                if label != "instance":
                    assert label in METRICS[name]["key_labels"] and set(words.split("|")) <= LABELS[label]
        for grouped in re.findall(r"by \((\w+)\)", text):
            assert all(grouped in METRICS[name]["key_labels"] for name, _ in metrics)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


# -- the queries ----------------------------------------------------------------------------------------------


def test_an_empty_database_has_zeros(place: tuple[Town, User]) -> None:
    _, watcher = place
    for name, query in QUERIES.items():
        metrics = [metric for metric in METRICS.values() if metric["query_ref"] == name]
        labels = metrics[0].get("key_labels", [])
        found = rows(watcher, query)
        assert found and len({tuple(row[label] for label in labels) for row in found}) == len(found)
        for row in found:
            assert set(row) == {*labels, *(metric["values"][0] for metric in metrics)}
            assert all(isinstance(row[metric["values"][0]], (int, float, Decimal)) for metric in metrics)
            assert all(row[label] in LABELS[label] for label in labels)
            if name in ("cerebro_runs", "cerebro_log"):
                assert {value for column, value in row.items() if column not in labels} == {0}
    assert values(watcher, "cerebro_storage_bytes")["states"] == 0 < values(watcher, "cerebro_storage_bytes")["log"]
    assert 0 < values(watcher, "cerebro_connections_used")[""] < values(watcher, "cerebro_connections_allowed")[""]


def test_a_run_shows(place: tuple[Town, User]) -> None:
    root, watcher = place
    user = root.user("trainer", "cerebro_user")
    equip(user)
    fit(user)
    assert values(watcher, "cerebro_runs_count")["finished"] == 1
    assert values(watcher, "cerebro_runs_segments")["finished"] == 0
    assert values(watcher, "cerebro_storage_bytes")["states"] > 0 < values(watcher, "cerebro_storage_tables")["states"]

    long = fit(user, "more", function="fit", epochs=100_000, wait=False)
    eventually(lambda: rows(watcher, f"SELECT FROM cerebro.hop_timeline WHERE run = {long}"), what="a visit")
    counts, segments = values(watcher, "cerebro_runs_count"), values(watcher, "cerebro_runs_segments")
    since = values(watcher, "cerebro_runs_seconds_since_visit")
    assert (counts["running"], segments["running"]) == (1, 1)
    assert 0 < since.pop("running") < 60 and set(since.values()) == {0}
    sessions = values(watcher, "cerebro_sessions_count")
    assert sessions["segment"] >= 1 and sessions["recorder"] >= 1 and sessions["run"] >= 1
    names = set(root("SELECT application_name FROM pg_stat_activity"))
    told = {f"cerebro_db {which} of run {long}" for which in ("segment 0", "recorder")} | {f"cerebro_db run {long}"}
    assert told <= names, "an operator finds the lines of a run in the log by these names"
    # A session reports what it has done when its statements end, once a second at most.
    eventually(lambda: values(watcher, "cerebro_log_rows_total")["visits"] > 1, what="counted visits")

    user("SELECT cerebro.cancel(%s)", long)
    user("SELECT cerebro.wait(%s)", long)
    counts = values(watcher, "cerebro_runs_count")
    assert counts == {**dict.fromkeys(counts, 0), "finished": 1, "cancelled": 1}


def test_a_limit_shows(place: tuple[Town, User]) -> None:
    root, watcher = place
    user = root.user("limited", "cerebro_user")
    equip(user)
    root("SELECT cerebro.set_limits(%s, max_state_bytes => 1)", user.name)
    with pytest.raises(Exception, match="are more than the 1 that you may store"):
        fit(user)
    assert values(watcher, "cerebro_runs_limited") == {**dict.fromkeys(LABELS["status"], 0), "failed": 1}


def test_a_member_of_pg_monitor_can_ask(place: tuple[Town, User]) -> None:
    """CloudNativePG's exporter acts as pg_monitor."""
    root, _ = place
    root("GRANT cerebro_monitor TO pg_monitor; SET ROLE pg_monitor")
    try:
        for query in QUERIES.values():
            assert root(query)
        assert root(next(iter(OF_OPERATOR.values()))["predicate_query"]) == [True]
    finally:
        root("RESET ROLE; REVOKE cerebro_monitor FROM pg_monitor")


# -- the dashboard ----------------------------------------------------------------------------------------------

SAMPLES = 11  # one a minute


@pytest.fixture
def prometheus(place: tuple[Town, User], tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus with ten minutes of what both exporters give, made of the values of the queries."""
    (tmp_path / "samples").write_text("\n".join([*exposed(place[1], int(time.time())), "# EOF", ""]))
    (tmp_path / "prometheus.yml").write_text("")
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", tmp_path / "samples", tmp_path / "data"]
    subprocess.run(made, check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1:{1}".format(*free.getsockname())
    started = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen([*started, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        eventually(lambda: is_ready(address), what="Prometheus is ready")
        yield address
    finally:
        server.terminate()
        server.wait(30)


def exposed(user: User, now: int) -> Iterator[str]:
    """In OpenMetrics' form: the metrics of sql_exporter for one server, and those of CloudNativePG for another one."""
    for prefix, instance in (("", "one:9399"), ("cnpg_", "two:9187")):
        for name, metric in METRICS.items():
            counter = metric["type"] == "counter"
            yield f"# TYPE {prefix}{name.removesuffix('_total')} {metric['type']}"
            for value, found in values(user, name).items():
                label = "".join(f',{key}="{value}"' for key in metric.get("key_labels", []))
                for minute in range(SAMPLES):
                    number = found + minute if counter else found
                    yield f'{prefix}{name}{{instance="{instance}"{label}}} {number} {now - 60 * (SAMPLES - 1 - minute)}'


def is_ready(address: str) -> bool:
    with contextlib.suppress(OSError), urlopen(f"http://{address}/-/ready") as answer:
        return bool(answer.status == 200)
    return False


def asked(address: str, way: str, **arguments: str) -> Any:
    with urlopen(f"http://{address}/api/v1/{way}?{urlencode(arguments)}") as answer:
        return json.load(answer)["data"]


@pytest.mark.skipif(not shutil.which("prometheus"), reason="no Prometheus in the PATH: apt-get install prometheus")
def test_prometheus_answers_every_panel(prometheus: str) -> None:
    (variable,) = [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    ((series, label),) = re.findall(r"label_values\((\{.*\}), (\w+)\)", variable["query"]["query"])
    assert asked(prometheus, f"label/{label}/values", **{"match[]": series}) == ["one:9399", "two:9187"]
    for one in ("one:9399", "two:9187", variable["allValue"]):
        found = {
            text: asked(prometheus, "query", query=text.replace("$instance", one))["result"]
            for text in expressions(DASHBOARD["panels"])
        }
        assert [text for text, rows in found.items() if not rows] == [], one
    used = 'max({__name__=~"(cnpg_)?cerebro_connections_used",instance=~"$instance"} / '
    (share,) = [rows for text, rows in found.items() if text.startswith(used)]
    assert 0 < float(share[0]["value"][1]) < 1
    (visits,) = [rows for text, rows in found.items() if "sum by (kind) (rate(" in text]
    assert {row["metric"]["kind"]: float(row["value"][1]) for row in visits} == pytest.approx(
        dict.fromkeys(("visits", "evaluations", "epochs"), 2 / 60)
    )
