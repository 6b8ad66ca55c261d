"""``etc/grafana-dashboard.json``: what Grafana asks of a dashboard that is imported, and what people ask of its
panels; and that the page on watching has every alert. What the expressions find is in
``tests/live/service/test_watching.py``."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml
from twisted.trial.unittest import TestCase

ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads((ROOT / "etc" / "grafana-dashboard.json").read_text("utf-8"))
ALERTS = yaml.safe_load((ROOT / "etc" / "alerts.yaml").read_text("utf-8"))
PAGE = (ROOT / "docs" / "operating" / "watching.rst").read_text("utf-8")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
# Of Grafana's "Standard options", those that fit what the service measures.
UNITS = {"short", "reqps", "ops", "percentunit", "s", "Bps"}
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    at = panel["gridPos"]
    return {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}


class Dashboard(TestCase):
    def test_it_can_be_imported(self) -> None:
        # A number would be that of a dashboard in another Grafana.
        self.assertIsNone(DASHBOARD["id"])
        self.assertRegex(DASHBOARD["uid"], r"\A[a-zA-Z0-9_-]{1,40}\Z")
        self.assertGreaterEqual(DASHBOARD["schemaVersion"], 36)
        self.assertTrue(DASHBOARD["title"] and DASHBOARD["description"])
        ids = [panel["id"] for panel in DASHBOARD["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
        self.assertTrue(all(isinstance(one, int) and one > 0 for one in ids))

    def test_the_data_source_is_chosen_by_whoever_imports_it(self) -> None:
        variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
        source = variables.pop("datasource")
        self.assertEqual((source["type"], source["query"]), ("datasource", "prometheus"))
        for one in variables.values():
            self.assertEqual((one["type"], one["datasource"]), ("query", SOURCE))
        for panel in PANELS:
            self.assertEqual(panel["datasource"], SOURCE, panel["title"])
            for target in panel["targets"]:
                self.assertEqual(target["datasource"], SOURCE, panel["title"])
        # No other name is used than those that there are, and those of Grafana itself.
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
        self.assertEqual(used, {"datasource", *variables, "__rate_interval"})

    def test_every_panel_says_what_it_shows_and_in_which_unit(self) -> None:
        self.assertGreater(len(PANELS), 20)
        titles = [panel["title"] for panel in PANELS]
        self.assertTrue(all(titles))
        for panel in PANELS:
            self.assertIn(panel["type"], ("timeseries", "stat"))
            self.assertRegex(panel["description"], r"\A[A-Z9].*[.]\Z", panel["title"])
            self.assertIn(panel["fieldConfig"]["defaults"]["unit"], UNITS, panel["title"])
            references = [target["refId"] for target in panel["targets"]]
            self.assertEqual(len(references), len(set(references)), panel["title"])
            self.assertTrue(all(target["expr"] for target in panel["targets"]), panel["title"])

    def test_no_panels_overlap_and_none_leaves_the_page(self) -> None:
        for panel in DASHBOARD["panels"]:
            at = panel["gridPos"]
            self.assertTrue(at["x"] >= 0 and at["w"] > 0 and at["h"] > 0, panel["title"])
            self.assertLessEqual(at["x"] + at["w"], WIDTH, panel["title"])
        for one, other in combinations(DASHBOARD["panels"], 2):
            self.assertEqual(cells(one) & cells(other), set(), (one["title"], other["title"]))

    def test_every_panel_shows_the_hosts_that_are_chosen(self) -> None:
        for panel in PANELS:
            for target in panel["targets"]:
                for matchers in re.findall(r"project_service_\w+(\{[^}]*\}|)", target["expr"]):
                    self.assertIn('job=~"$job",instance=~"$instance"', matchers, panel["title"])


class Alerts(TestCase):
    def test_the_page_explains_each_and_no_other(self) -> None:
        named = [rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]]
        self.assertGreater(len(named), 10)
        explained = re.findall(r"^``(ProjectService\w+)``", PAGE, re.MULTILINE)
        self.assertEqual(sorted(explained), sorted(named))

    def test_each_says_how_urgent_it_is_and_what_it_means(self) -> None:
        for group in ALERTS["groups"]:
            for rule in group["rules"]:
                self.assertIn(rule["labels"]["severity"], ("critical", "warning"), rule["alert"])
                self.assertEqual(set(rule["annotations"]), {"summary", "description"}, rule["alert"])
                self.assertTrue(rule["annotations"]["description"].endswith("."), rule["alert"])
                self.assertIn(f"``{rule['alert']}`` ({rule['labels']['severity']})", PAGE)
