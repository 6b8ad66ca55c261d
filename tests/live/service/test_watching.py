"""The dashboard and the alerts, by Prometheus itself: each alert fires when it should and not just below, and all
that they ask for is there in a real service."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from attrs import field, frozen
from prometheus_client.parser import text_string_to_metric_families

from tests.live.daemon import ROOT, Daemon, eventually
from tests.live.programs import PATH, program
from tests.live.service.documented import blocks
from tests.live.services import WithDatabase
from tests.live.sql import run_sql
from tests.temporary import free_port

ETC = ROOT / "etc"
ALERTS = ETC / "alerts.yaml"
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    for rule in group["rules"]
}
PANELS = json.loads((ETC / "grafana-dashboard.json").read_text("utf-8"))["panels"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel.get("targets", ())]

# How the simulated series are scraped, in seconds, and for how many minutes.
STEP = 15
MINUTES = 25
BASE = {"job": "project-service", "instance": "a:8080"}


def series(name: str, **labels: str) -> str:
    """A series as a rule's test names it; "up" is Prometheus' own."""
    name = name if name == "up" else f"project_service_{name}"
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in {**BASE, **labels}.items()) + "}"


def failures(code: str) -> str:
    return series("failures_total", code=code)


def bucket(le: str) -> str:
    return series("request_seconds_bucket", method="GET", route="/x", le=le)


def slow_requests(within: float, each: float = 100) -> dict[str, str]:
    """``each`` requests in a step, of which so many are answered ``within`` a second."""
    count = series("request_seconds_count", method="GET", route="/x")
    return {
        bucket("1.0"): f"0+{within}",
        **dict.fromkeys((bucket("2.5"), bucket("+Inf"), count), f"0+{each}"),
    }


def answered(status: str) -> str:
    return series("requests_total", method="GET", route="/x", status=status)


@frozen
class Case:
    """``fires`` are series by which the alert fires at the time ``at``, with ``labels`` beside those of ``BASE``, but
    not a step before its time, ``early``. By none of the ``quiet`` ones it ever does. Values go on to the end, by
    their last step."""

    fires: Mapping[str, str]
    early: int
    at: int
    quiet: tuple[Mapping[str, str], ...]
    labels: Mapping[str, str] = field(factory=dict)
    base: Mapping[str, str] = field(factory=lambda: BASE)


JOB = {"job": "project-service"}
IN_FLIGHT = series("requests_in_flight")
# Times in seconds. "_" in a series means that nothing was scraped.
CASES = {
    "ProjectServiceDown": Case(
        {series("up"): "0"}, 45, 60, ({series("up"): "1"}, {series("up"): "0 0 0 1+0"})
    ),
    "ProjectServiceAbsent": Case(
        {series("up", job="other"): "1"}, 285, 300, ({series("up"): "0"}, {series("up"): "1"}), base=JOB
    ),
    "ProjectServiceNotReady": Case(
        {failures("not_ready"): "0+1"},
        60,
        75,
        ({failures("not_ready"): "7"}, {failures("database_unavailable"): "0+1"}),
        {"code": "not_ready"},
    ),
    **{
        f"ProjectServicePartAway {code}": Case(
            {failures(code): "0+1"},
            120,
            135,
            # A single failure, and one of another kind again and again.
            ({failures(code): "0 0 0 1+0"}, {failures("overloaded"): "0+1", failures("hook_failed"): "0+1"}),
            {"code": code},
        )
        for code in (
            "database_unavailable",
            "store_unavailable",
            "PGRST000",
            "PGRST001",
            "PGRST002",
            "PGRST003",
        )
    },
    "ProjectServiceFailures": Case(
        {failures("hook_failed"): "0+1"},
        300,
        315,
        (
            {failures("hook_failed"): "0 0 0 1+0"},
            {
                failures(code): "0+1"
                for code in ("overloaded", "other", "internal_error", "not_ready", "PGRST003")
            },
        ),
        {"code": "hook_failed"},
    ),
    "ProjectServiceInternalError": Case(
        {failures("internal_error"): "0 0 1+0"},
        15,
        30,
        ({failures("internal_error"): "3"}, {failures("other"): "0+1"}),
        {"code": "internal_error"},
    ),
    "ProjectServiceErrorRate": Case(
        {answered("200"): "0+9899", answered("503"): "0+101"},
        300,
        315,
        (
            {answered("200"): "0+9901", answered("503"): "0+99"},
            {answered("200"): "0+1", answered("404"): "0+1"},
        ),
        base=JOB,
    ),
    "ProjectServiceOverloaded": Case(
        {
            series("requests_refused_total", part="auth", reason="late"): "0+0.8",
            series("requests_refused_total", part="auth", reason="full"): "0+0.8",
        },
        # At first there are not yet as many as make up the rate.
        570,
        585,
        ({series("requests_refused_total", part="auth", reason="late"): "0+1.4"},),
        {"part": "auth"},
    ),
    "ProjectServiceQueueing": Case(
        {series("requests_waiting", part="auth"): "1"},
        285,
        300,
        (
            {series("requests_waiting", part="auth"): "1x15 0 1x15 0"},
            {series("requests_waiting", part="auth"): "0"},
        ),
        {"part": "auth"},
    ),
    "ProjectServiceConnectionsExhausted": Case(
        {
            series("database_connections_used", pool="dev/main"): "10",
            series("database_connections_max", pool="dev/main"): "10",
        },
        285,
        300,
        (
            {
                series("database_connections_used", pool="dev/main"): "9",
                series("database_connections_max", pool="dev/main"): "10",
            },
        ),
        {"pool": "dev/main"},
    ),
    "ProjectServiceClientsNearLimit": Case(
        {series("connections"): "901", series("connections_max"): "1000"},
        285,
        300,
        ({series("connections"): "900", series("connections_max"): "1000"},),
    ),
    "ProjectServiceProcessAway": Case(
        {series("processes"): "2 2 1"}, 135, 150, ({series("processes"): "2"}, {series("processes"): "1 1 2"})
    ),
    "ProjectServiceRestarting": Case(
        {answered("200"): "5 1 5 1 5 5 1+1"}, 75, 90, ({answered("200"): "5 1 5 1 5 5 6+1"},)
    ),
    "ProjectServiceStuck": Case(
        {
            IN_FLIGHT: "11",
            answered("200"): "5",
            series("requests_total", route="/metrics", status="200"): "0+1",
        },
        180,
        195,
        (
            {IN_FLIGHT: "10", answered("200"): "5"},
            {IN_FLIGHT: "11", answered("200"): "0+1"},
            {IN_FLIGHT: "20x9 0 20x9 0", answered("200"): "5"},
        ),
    ),
    "ProjectServiceReaderStale": Case(
        {series("reader_staleness_seconds", pool="dev/main", reader="b:5432"): "61 Inf 61"},
        285,
        300,
        (
            {series("reader_staleness_seconds", pool="dev/main", reader="b:5432"): "60"},
            {series("reader_staleness_seconds", pool="dev/main", reader="b:5432"): "900x18 1 Inf Inf 1"},
            # Promoted: for a moment it is not known that it is the primary now.
            {series("reader_staleness_seconds", pool="dev/main", reader="b:5432"): "1 Inf Inf 0"},
        ),
        {"pool": "dev/main", "reader": "b:5432"},
    ),
    "ProjectServiceMailsFail": Case(
        {
            series("mails_total", outcome="sent"): "0+1",
            series("mails_total", outcome="refused"): "0+0.6",
            series("mails_total", outcome="given_up"): "0+0.6",
        },
        600,
        615,
        (
            {series("mails_total", outcome="sent"): "0+1", series("mails_total", outcome="refused"): "0+0.9"},
            {series("mails_total", outcome="sent"): "0", series("mails_total", outcome="refused"): "0"},
        ),
        base=JOB,
    ),
    "ProjectServiceSlow": Case(
        slow_requests(1.518, 1.6),
        1155,
        1170,
        (slow_requests(95.1), slow_requests(0, 1.4)),
        {"route": "/x"},
        JOB,
    ),
    "ProjectServiceSlowStatements": Case(
        {series("slow_statements_total", pool="system"): "0+1.6"},
        1155,
        1170,
        ({series("slow_statements_total", pool="system"): "0+1.4"},),
        {"pool": "system"},
        JOB,
    ),
}


def lasting(values: str) -> str:
    """``values`` with its last one, or its last step, going on for ``MINUTES``."""
    *before, last = values.split(" ")
    count = MINUTES * 60 // STEP
    return " ".join([*before, f"{last}x{count}" if "+" in last else f"{last}+0x{count}"])


def run(
    alert: str, simulated: Mapping[str, str], expected: Mapping[int, list[dict[str, str]]]
) -> dict[str, Any]:
    """A test for promtool: by the ``simulated`` series, which of ``alert`` fire at which times, with their labels."""
    rule = {"alertname": alert, "alertstate": "firing", **RULES[alert]["labels"]}
    query = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    return {
        "name": f"{alert} by {json.dumps(simulated)}",
        "interval": f"{STEP}s",
        "input_series": [{"series": name, "values": lasting(values)} for name, values in simulated.items()],
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": f"{seconds}s",
                "exp_samples": [
                    {"labels": f"ALERTS{json_labels({**rule, **labels})}", "value": 1} for labels in firing
                ],
            }
            for seconds, firing in expected.items()
        ],
    }


def json_labels(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def promtool(folder: Path, alert: str, tests: list[dict[str, Any]]) -> str:
    """What promtool says against ``alert`` by these tests; "" if nothing."""
    # Without the other alerts, which it would evaluate each time.
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [RULES[alert]]}]}))
    (folder / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": f"{STEP}s", "tests": tests})
    )
    command = [program("promtool"), "test", "rules", str(folder / "tests.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{alert}: {done.stdout}{done.stderr}"


def test_prometheus_takes_the_alerts() -> None:
    command = [program("promtool"), "check", "rules", "--lint-fatal", str(ALERTS)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_prometheus_takes_what_the_page_shows(tmp_path: Path) -> None:
    program("promtool")
    shown = blocks("operating/watching.rst", **{"/etc/prometheus": str(tmp_path)})
    (tmp_path / "prometheus.yml").write_text("".join(one.text for one in shown if one.language == "yaml"))
    commands = "".join(one.text for one in shown if one.language == "sh")
    assert commands.count("\n") == 3
    printed = subprocess.run(
        ["sh", "-euc", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{PATH}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert printed.returncode == 0, printed.stdout + printed.stderr
    found = f"SUCCESS: {len(RULES)} rules found"
    assert found in printed.stdout
    assert f"``{found}``" in (ROOT / "docs" / "operating" / "watching.rst").read_text("utf-8")
    made = (tmp_path / "project-service-dashboard.json").read_text("utf-8")
    assert json.loads(made)["panels"] == PANELS


def test_every_alert_fires_when_it_should_and_no_earlier(tmp_path: Path) -> None:
    assert {name.partition(" ")[0] for name in CASES} == set(RULES)
    for name, case in CASES.items():
        alert = name.partition(" ")[0]
        test = run(alert, case.fires, {case.early: [], case.at: [{**case.base, **case.labels}]})
        assert promtool(tmp_path, alert, [test]) == ""


def test_no_alert_fires_just_below(tmp_path: Path) -> None:
    times: dict[int, list[dict[str, str]]] = {seconds: [] for seconds in range(0, MINUTES * 60, 60)}
    for name, case in CASES.items():
        alert = name.partition(" ")[0]
        assert promtool(tmp_path, alert, [run(alert, quiet, times) for quiet in case.quiet]) == ""


# What a real service shows


SCHEMA = """
create table items (id int primary key, name text);
create function slow() returns int language sql stable as $$ select 1 from pg_sleep(0.15) $$;
create function fails() returns int language plpgsql as $$ begin raise sqlstate 'PT500'; end $$;
grant select on items to anon;
"""


# What is counted of them, by either of two workers.
COUNTED = {
    f"project_service_{name}"
    for name in ("reads_total", "failures_total", "slow_statements_total", "requests_total")
}


@frozen
class Watched:
    url: str
    key: str

    def use(self) -> None:
        """Requests of every kind that the dashboard shows."""
        ours = {"X-Service-Key": self.key}
        for path, status in (
            ("/dev/db/main/rest/items?id=eq.5", 200),
            ("/dev/db/main/rest/rpc/slow", 200),
            ("/dev/db/main/rest/rpc/fails", 500),
            ("/storage/buckets/public/objects/none", 404),
            ("/auth/user", 401),
            ("/live", 200),
        ):
            assert requests.get(self.url + path, headers=ours, timeout=30).status_code == status, path

    def metrics(self) -> dict[str, set[str]]:
        """The labels of each series that the service shows."""
        text = requests.get(f"{self.url}/metrics", timeout=30).text
        found: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
        return found


@pytest.fixture(scope="module")
def watched(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("watching")
    config = directory / "config.toml"
    # Nothing answers there, so that every read is one that a standby does not answer.
    away = "postgresql://nobody@127.0.0.1:1/none"
    config.write_text(
        f'[database]\nslow_query_seconds = 0.1\nread_dsn = "{away}"\n[stages.dev.databases.main]\n'
    )
    with Daemon(with_database(directory / "var"), "--config", str(config), "--workers", "2") as daemon:
        url = daemon.wait_until_ready()
        credentials = json.loads((directory / "var" / "credentials.json").read_text())
        run_sql(credentials["dsn"], SCHEMA)
        watched = Watched(url, credentials["anon_key"])
        path = f"{url}/dev/db/main/rest/rpc/slow"
        ours = {"X-Service-Key": watched.key}
        eventually(
            lambda: requests.get(path, headers=ours, timeout=30).ok, "the schema cache knows the function"
        )
        watched.use()
        # Workers see each other's numbers a second later.
        eventually(lambda: set(watched.metrics()) >= COUNTED, "the numbers of both workers")
        yield watched


SELECTOR = re.compile(r"\b(project_service_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|on) \(([^)]*)\)")
# Those that Prometheus adds.
ADDED = {"job", "instance"}


def wrong_names(expr: str, shown: Mapping[str, set[str]], templates: str) -> list[str]:
    """What ``expr`` names that the service does not show: series, labels that are compared and by which is grouped;
    and labels that ``templates`` of texts show and that its result has not."""
    wrong, labels = [], set(ADDED)
    for name, matchers in SELECTOR.findall(expr):
        if name not in shown:
            wrong.append(name)
        labels |= shown.get(name, set())
        compared = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', '""', matchers)))
        wrong += [f"{name}: {label}" for label in sorted(compared - shown.get(name, set()) - ADDED)]
    grouped = [one.strip() for found in GROUPED.findall(expr) for one in found.split(",")]
    wrong += [f"by {label}" for label in grouped if label not in labels]
    left = set(grouped) if " by (" in expr else labels
    told = re.findall(r"\{\{\s*(?:\$labels\.)?([a-z]\w*)\s*\}\}", templates)
    return wrong + [f"shown: {label}" for label in told if label not in left]


def test_every_metric_and_label_that_is_asked_for_is_there(watched: Watched) -> None:
    shown = watched.metrics()
    asked = [(title, target["expr"], target["legendFormat"]) for title, target in TARGETS]
    asked += [(name, rule["expr"], json.dumps(rule["annotations"])) for name, rule in RULES.items()]
    wrong = {title: found for title, expr, texts in asked if (found := wrong_names(expr, shown, texts))}
    assert wrong == {}
    used = {name for _, expr, _ in asked for name, _ in SELECTOR.findall(expr)}
    assert len(used) > 15
    assert {"project_service_request_seconds_bucket", "project_service_rendition_seconds_bucket"} <= used


def test_a_wrong_name_is_found(watched: Watched) -> None:
    shown = watched.metrics()
    for expr, texts, wrong in (
        ("sum(project_service_request_total)", "", "project_service_request_total"),
        ('rate(project_service_requests_total{code="200"}[5m])', "", "project_service_requests_total: code"),
        ("sum by (part) (project_service_connections)", "", "by part"),
        ("sum by (code) (project_service_failures_total)", "{{ $labels.instance }}", "shown: instance"),
        ("project_service_request_seconds", "", "project_service_request_seconds"),
        ("project_service_connections", "{{pool}}", "shown: pool"),
    ):
        assert wrong_names(expr, shown, texts) == [wrong]


@pytest.fixture
def prometheus(watched: Watched, tmp_path: Path) -> Iterator[str]:
    """Prometheus with the alerts, which reads the service every second; its address."""
    host = watched.url.removeprefix("http://")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "project-service", "static_configs": [{"targets": [host]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [
        program("prometheus"),
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(60)


def test_every_panel_has_something_to_show(watched: Watched, prometheus: str) -> None:
    missing = dict.fromkeys(range(len(TARGETS)), "")

    def all_shown() -> bool:
        watched.use()
        for number in list(missing):
            expr = TARGETS[number][1]["expr"].replace("$__rate_interval", "1m")
            expr = re.sub(r"\$(job|instance)", ".*", expr)
            try:
                answer = requests.get(f"{prometheus}/api/v1/query", params={"query": expr}, timeout=30)
            except requests.ConnectionError:
                return False
            if answer.status_code == 503:  # it has just been started
                return False
            if answer.status_code != 200:
                raise AssertionError(f"{TARGETS[number][0]}: {answer.text}")
            if answer.json()["data"]["result"]:
                del missing[number]
            else:
                missing[number] = TARGETS[number][0]
        return not missing

    try:
        eventually(all_shown, "every panel shows something")
    except AssertionError as fault:
        raise AssertionError(f"{fault}; nothing in {sorted(missing.values())}") from fault

    def health() -> dict[str, str]:
        rules = requests.get(f"{prometheus}/api/v1/rules", timeout=60).json()["data"]["groups"]
        return {rule["name"]: rule["health"] for group in rules for rule in group["rules"]}

    eventually(lambda: "unknown" not in health().values(), "an evaluation of each rule")
    assert health() == dict.fromkeys(RULES, "ok")
