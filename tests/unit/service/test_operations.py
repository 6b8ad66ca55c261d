"""``docs/operations.rst`` agrees with the program: metrics, commands, settings and the configuration that it
shows."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

from twisted.trial.unittest import TestCase

from project_service.http.metrics import Metrics
from project_service.settings.model import Settings
from project_service.settings.reading import Source

DOCUMENT = (Path(__file__).parents[3] / "docs" / "operations.rst").read_text("utf-8")


class Documented(TestCase):
    def test_every_metric_is_documented_and_no_other(self) -> None:
        shown = set(re.findall(r"^# TYPE (\S+) ", Metrics().exposition().decode(), re.MULTILINE))
        # When a counter began is the library's own addition, and says nothing of the service.
        shown = {name for name in shown if not name.endswith("_created")}
        self.assertGreater(len(shown), 4)
        self.assertEqual(set(re.findall(r"^``(project_service_\w+)``", DOCUMENT, re.MULTILINE)), shown)

    def test_every_command_that_is_named_exists(self) -> None:
        named = set(re.findall(r"project-service (storage|keys|jwt-keys|user|bucket) ([a-z]+)", DOCUMENT))
        self.assertGreater(len(named), 3)
        for noun, verb in named:
            group = import_module(f"project_service.cli.{noun.replace('-', '_')}").command
            self.assertIn(verb, group.commands)

    def test_the_configuration_that_is_shown_is_valid(self) -> None:
        """The secrets come from the environment variables that the page shows."""
        shown = re.search(r"\.\. code-block:: toml\n   :name: configuration\n\n((?:   .*\n|\n)+)", DOCUMENT)
        secrets = dict(re.findall(r"^    (PROJECT_SERVICE__\w+)='(.*)'$", DOCUMENT, re.MULTILINE))
        assert shown is not None
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        config = Path(folder.name) / "project-service.toml"
        config.write_text(dedent(shown[1]))
        settings = Source(config).read({name: value.replace("…", "x") for name, value in secrets.items()})
        self.assertEqual(set(settings.stages), {"prod"})
        self.assertEqual(settings.server.public_url, "https://project.example.com")

    def test_every_setting_that_is_named_exists(self) -> None:
        settings = Settings()
        named = re.findall(r"``(server|database|store|auth|storage)\.(\w+)``", DOCUMENT)
        self.assertGreater(len(named), 5)
        for section, name in named:
            self.assertTrue(hasattr(getattr(settings, section), name), f"{section}.{name}")
