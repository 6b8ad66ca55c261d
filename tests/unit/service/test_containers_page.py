"""docs/howto/containers.rst agrees with the program and with itself. Nothing is built or started."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import yaml
from twisted.python import usage
from twisted.trial.unittest import TestCase

from project_service.cli import main
from project_service.settings.model import Settings
from project_service.settings.reading import Source
from project_service.tap import Options
from project_service.workers.supervisor import STOP_MARGIN_SECONDS
from tests.live.service.documented import blocks

BLOCKS = blocks("howto/containers.rst")
FILES = {block.file: block.text for block in BLOCKS if block.file}
SECRETS = dict(re.findall(r"^(\w+)=(.*)$", FILES["secrets.env"], re.MULTILINE))
COMMANDS = "".join(block.text for block in BLOCKS if block.language == "console")
CONFIG = "/etc/project-service/project-service.toml"


def port(endpoint: str) -> int:
    return int(endpoint.split(":")[1])


class Containers(TestCase):
    def setUp(self) -> None:
        self.deployment, self.service = (dict(one) for one in yaml.safe_load_all(FILES["deployment.yaml"]))
        self.pod: dict[str, Any] = self.deployment["spec"]["template"]["spec"]
        self.container: dict[str, Any] = self.pod["containers"][0]

    def config(self) -> Path:
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        config = Path(folder.name) / "project-service.toml"
        config.write_text(FILES["project-service.toml"])
        return config

    def settings(self) -> Settings:
        """Those of the file and of the secrets."""
        return Source(self.config()).read(SECRETS)

    def test_the_configuration_is_valid_and_complete(self) -> None:
        settings = self.settings()
        self.assertIsNotNone(settings.database.dsn)
        self.assertEqual(set(settings.stages), {"prod"})

    def test_the_service_takes_the_images_command_line(self) -> None:
        found = re.search(r"^CMD (.*)$", FILES["Dockerfile"], re.MULTILINE)
        assert found is not None
        command = json.loads(found[1])
        self.assertEqual(command[:4], ["twistd", "--nodaemon", "--pidfile=", "project-service"])
        self.assertEqual(command[4:], ["--config", CONFIG])
        for name, value in SECRETS.items():
            self.patch(os, "environ", {**os.environ, name: value})
        options = Options()
        options.parent = usage.Options()  # twistd's own
        options.parseOptions(["--config", str(self.config())])

    def test_ports_and_probes_are_where_the_service_listens(self) -> None:
        server = self.settings().server
        assert server.admin_listen is not None
        ports = {one["name"]: one["containerPort"] for one in self.container["ports"]}
        self.assertEqual(ports, {"http": port(server.listen[0]), "admin": port(server.admin_listen)})
        self.assertEqual(self.service["spec"]["ports"][0]["targetPort"], ports["http"])
        probes = {name: self.container[f"{name}Probe"]["httpGet"] for name in ("readiness", "liveness")}
        self.assertEqual(probes["readiness"], {"path": "/ready", "port": ports["admin"]})
        self.assertEqual(probes["liveness"], {"path": "/live", "port": ports["admin"]})

    def test_requests_under_way_have_time_to_end(self) -> None:
        waits = int(self.container["lifecycle"]["preStop"]["exec"]["command"][1])
        needed = waits + self.settings().server.shutdown_seconds + STOP_MARGIN_SECONDS
        self.assertGreater(self.pod["terminationGracePeriodSeconds"], needed)

    def test_files_are_mounted_where_the_configuration_looks(self) -> None:
        mounts = {one["name"]: one["mountPath"] for one in self.container["volumeMounts"]}
        self.assertEqual(f"{mounts['config']}/project-service.toml", CONFIG)
        self.assertEqual(f"{mounts['keys']}/jwt-keys.json", self.settings().auth.jwt_keys_file)
        secrets = {volume["secret"]["secretName"] for volume in self.pod["volumes"] if "secret" in volume}
        secrets |= {one["secretRef"]["name"] for one in self.container["envFrom"]}
        self.assertEqual(secrets, set(re.findall(r"create secret generic (\S+)", COMMANDS)))

    def test_the_commands_exist(self) -> None:
        shown = re.findall(r"-- project-service (.*)$", COMMANDS, re.MULTILINE)
        self.assertGreater(len(shown), 2)
        for line in shown:
            command: click.Command = main
            words = line.split()
            while isinstance(command, click.Group):
                inner = command.get_command(click.Context(command), words.pop(0))
                assert inner is not None, line
                command = inner
            command.make_context("project-service", words)
