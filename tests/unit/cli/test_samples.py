"""The commented settings and the systemd unit that the command line prints."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from twisted.trial.unittest import TestCase

from project_service.cli import main
from project_service.cli.samples import CONFIG, unit_of
from project_service.settings.reading import Source

ETC = Path(__file__).parents[3] / "etc"
UNIT = (ETC / "project-service.service").read_text("utf-8")
START = "ExecStart=/opt/x/bin/twistd --nodaemon --pidfile= project-service"


class Samples(TestCase):
    def unit(self, programs: str, config: str | None, data_dir: str | None = None) -> list[str]:
        source = Source(Path(config) if config else None, data_dir=Path(data_dir) if data_dir else None)
        return unit_of(UNIT, Path(programs), source).splitlines()

    def test_the_settings_are_printed_as_they_are(self) -> None:
        printed = CliRunner().invoke(main, ["config"])
        self.assertEqual(printed.output, (ETC / "project-service.toml").read_text("utf-8"))

    def test_the_dashboard_and_the_alerts_are_printed_as_they_are(self) -> None:
        for command, name in (("dashboard", "grafana-dashboard.json"), ("alerts", "alerts.yaml")):
            printed = CliRunner().invoke(main, [command])
            self.assertEqual(printed.output, (ETC / name).read_text("utf-8"))

    def test_the_unit_starts_this_installation(self) -> None:
        unit = self.unit("/opt/x/bin", "/etc/x.toml")
        self.assertIn(f"{START} --config /etc/x.toml", unit)
        self.assertIn("ProtectHome=yes", unit)
        self.assertFalse(
            [line for line in unit if "/opt/project-service" in line or "ReadWritePaths" in line]
        )

    def test_with_nothing_named_the_configuration_is_where_the_documentation_has_it(self) -> None:
        printed = CliRunner().invoke(main, ["unit"]).output
        self.assertIn(f"twistd --nodaemon --pidfile= project-service --config {CONFIG}\n", printed)

    def test_a_data_directory_may_be_written(self) -> None:
        unit = self.unit("/opt/x/bin", None, "/srv/notes/var")
        self.assertIn(f"{START} --data-dir /srv/notes/var", unit)
        self.assertIn("ReadWritePaths=/srv/notes/var", unit)

    def test_an_installation_in_a_home_can_be_read(self) -> None:
        self.assertIn("ProtectHome=read-only", self.unit("/home/ada/venv/bin", "/etc/x.toml"))

    def test_paths_with_blanks_and_signs_stay_one_argument(self) -> None:
        unit = self.unit("/opt/x/bin", '/srv/50% "off"/x.toml')
        self.assertIn(f'{START} --config "/srv/50%% \\"off\\"/x.toml"', unit)
