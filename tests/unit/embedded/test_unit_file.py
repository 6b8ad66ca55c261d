"""The systemd unit fits the service it runs."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

from twisted.trial.unittest import TestCase

from project_service.settings.model import Settings
from project_service.workers.supervisor import STOP_MARGIN_SECONDS

UNIT = Path(__file__).parents[3] / "etc" / "project-service.service"


class UnitFile(TestCase):
    def setUp(self) -> None:
        # systemd allows a key twice; only the last is of interest here.
        self.unit = ConfigParser(strict=False, interpolation=None)
        self.unit.optionxform = str  # type: ignore[assignment, method-assign]  # configparser's documented way
        self.unit.read(UNIT)

    def test_the_stop_timeout_covers_the_services_own(self) -> None:
        # A worker that does not leave is killed by its parent, which then ends what it embeds.
        longest = Settings().server.shutdown_seconds + STOP_MARGIN_SECONDS
        self.assertGreater(float(self.unit["Service"]["TimeoutStopSec"]), longest)
        self.assertEqual(self.unit["Service"]["KillSignal"], "SIGTERM")

    def test_it_runs_in_the_foreground_and_reloads_by_hup(self) -> None:
        service = self.unit["Service"]
        self.assertIn("twistd --nodaemon --pidfile= project-service --config", service["ExecStart"])
        self.assertEqual(service["Type"], "exec")
        self.assertIn("-HUP", service["ExecReload"])
        self.assertEqual(service["ProtectSystem"], "strict")
        self.assertEqual(service["StateDirectory"], "project-service")

    def test_a_reload_that_comes_too_early_leads_to_a_restart(self) -> None:
        # systemd takes an end by SIGHUP for a clean one.
        self.assertEqual(self.unit["Service"]["RestartForceExitStatus"], "SIGHUP")

    def test_the_runtime_directory_is_that_of_the_documented_socket(self) -> None:
        page = (UNIT.parents[1] / "docs" / "operations.rst").read_text("utf-8")
        self.assertIn(f"unix:/run/{self.unit['Service']['RuntimeDirectory']}/", page)

    def test_a_worker_killed_for_memory_does_not_end_the_service(self) -> None:
        # systemd's own default is "stop".
        self.assertEqual(self.unit["Service"]["OOMPolicy"], "continue")
