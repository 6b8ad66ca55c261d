"""etc/kubernetes and etc/compose.yaml: valid by Kubernetes' own schemas, and in agreement with the program, the image
and each other."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import kubernetes_validate
import yaml
from psycopg2.extensions import parse_dsn
from twisted.python import usage
from twisted.trial.unittest import TestCase

from project_service.cli import main
from project_service.http.health import Health
from project_service.http.metrics import Metrics
from project_service.settings.model import Server, Settings
from project_service.settings.reading import Source
from project_service.tap import Options
from project_service.workers.supervisor import STOP_MARGIN_SECONDS
from tests.live.service.documented import blocks

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "etc" / "kubernetes"
IMAGE = (ROOT / "Containerfile").read_text("utf-8")
# The oldest whose schemas are there and that has all that the files use, and the newest.
VERSIONS = "1.30", kubernetes_validate.latest_version()
BLOCKS = blocks("howto/containers.rst")
FILES = {block.file: block.text for block in BLOCKS if block.file}
COMMANDS = "".join(block.text for block in BLOCKS if block.language == "console")


def port(endpoint: str) -> int:
    return int(endpoint.split(":")[1])


def url_of(handler: Any) -> str:
    return str(handler.endpoint.url)


def objects() -> list[dict[str, Any]]:
    return [one for path in sorted(FOLDER.iterdir()) for one in yaml.safe_load_all(path.read_text("utf-8"))]


def the(kind: str, name: str = "project-service") -> dict[str, Any]:
    (found,) = [one for one in objects() if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def image_environment() -> dict[str, str]:
    """What the image sets itself."""
    return {
        name: value.strip("'") for name, value in re.findall(r"(PROJECT_SERVICE\w+)=('[^']*'|\S+)", IMAGE)
    }


class Kubernetes(TestCase):
    def setUp(self) -> None:
        self.deployment = the("Deployment")
        self.pod: dict[str, Any] = self.deployment["spec"]["template"]["spec"]
        self.container: dict[str, Any] = self.pod["containers"][0]
        self.job: dict[str, Any] = the("Job", "project-service-migration")["spec"]["template"]["spec"]

    def config(self) -> Path:
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        config = Path(folder.name) / "project-service.toml"
        config.write_text(the("ConfigMap")["data"]["project-service.toml"])
        return config

    def settings(self) -> Settings:
        """Those of the ConfigMap, the Secret and the image together."""
        return Source(self.config()).read({**image_environment(), **the("Secret")["stringData"]})

    def test_every_object_is_what_kubernetes_takes(self) -> None:
        for version in VERSIONS:
            for one in objects():
                kubernetes_validate.validate(one, version, strict=True)

    def test_the_configuration_is_valid_and_complete(self) -> None:
        settings = self.settings()
        self.assertIsNotNone(settings.database.dsn)
        self.assertEqual(set(settings.stages), {"prod"})

    def test_the_service_takes_the_images_command_line(self) -> None:
        (command,) = re.findall(r"^CMD (\[.*\])$", IMAGE, re.M)
        self.assertEqual(json.loads(command), ["twistd", "--nodaemon", "--pidfile=", "project-service"])
        config = {"PROJECT_SERVICE_CONFIG": str(self.config())}
        self.patch(
            os, "environ", {**os.environ, **image_environment(), **the("Secret")["stringData"], **config}
        )
        options = Options()
        options.parent = usage.Options()  # twistd's own
        options.parseOptions([])

    def test_ports_and_probes_are_where_the_service_listens(self) -> None:
        server = self.settings().server
        assert server.admin_listen is not None
        ports = {one["name"]: one["containerPort"] for one in self.container["ports"]}
        self.assertEqual(ports, {"http": port(server.listen[0]), "admin": port(server.admin_listen)})
        self.assertEqual(
            set(re.findall(r"^EXPOSE (.*)$", IMAGE, re.M)[0].split()), {str(one) for one in ports.values()}
        )
        probes = {
            name: self.container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")
        }
        self.assertEqual(probes["readiness"], {"path": url_of(Health.ready), "port": "admin"})
        self.assertEqual(probes["liveness"], {"path": url_of(Health.live), "port": "admin"})
        self.assertEqual(probes["startup"], probes["liveness"])
        scraped = self.deployment["spec"]["template"]["metadata"]["annotations"]
        self.assertEqual(scraped["prometheus.io/port"], str(ports["admin"]))
        self.assertEqual(scraped["prometheus.io/path"], url_of(Health.exposition))

    def test_requests_under_way_have_time_to_end(self) -> None:
        waits = int(self.container["lifecycle"]["preStop"]["exec"]["command"][1])
        needed = waits + self.settings().server.shutdown_seconds + STOP_MARGIN_SECONDS
        self.assertGreater(self.pod["terminationGracePeriodSeconds"], needed)

    def test_both_kinds_of_container_have_the_same_image_files_and_settings(self) -> None:
        job = self.job["containers"][0]
        for name in ("image", "envFrom", "volumeMounts", "securityContext"):
            self.assertEqual(job[name], self.container[name], name)
        for name in ("volumes", "securityContext"):
            self.assertEqual(self.job[name], self.pod[name], name)
        self.assertEqual(job["args"], ["project-service", "migrate"])

    def test_files_are_mounted_where_the_image_and_the_configuration_look(self) -> None:
        mounts = {one["name"]: one["mountPath"] for one in self.container["volumeMounts"]}
        (file,) = the("ConfigMap")["data"]
        self.assertEqual(f"{mounts['configuration']}/{file}", image_environment()["PROJECT_SERVICE_CONFIG"])
        dsn = the("Secret")["stringData"]["PROJECT_SERVICE__DATABASE__DSN"]
        self.assertEqual(
            [f"{mounts['keys']}/{file}" for file in the("Secret", "project-service-keys")["stringData"]],
            [self.settings().auth.jwt_keys_file, parse_dsn(dsn)["sslrootcert"]],
        )
        self.assertEqual(mounts["temporary"], "/tmp")

    def test_the_container_has_no_rights_and_is_the_images_user(self) -> None:
        user, group = re.findall(r"^USER (\d+):(\d+)$", IMAGE, re.M)[0]
        of_pod = self.pod["securityContext"]
        self.assertEqual([of_pod[name] for name in ("runAsUser", "runAsGroup")], [int(user), int(group)])
        self.assertTrue(of_pod["runAsNonRoot"])
        closed = self.container["securityContext"]
        self.assertEqual(
            (closed["readOnlyRootFilesystem"], closed["allowPrivilegeEscalation"]), (True, False)
        )
        self.assertEqual(closed["capabilities"], {"drop": ["ALL"]})
        self.assertFalse(self.pod["automountServiceAccountToken"])

    def test_everything_that_names_the_containers_finds_them_and_not_those_of_the_job(self) -> None:
        labels = self.deployment["spec"]["template"]["metadata"]["labels"]
        of_job = the("Job", "project-service-migration")["spec"]["template"]["metadata"]["labels"]
        selectors = [
            self.deployment["spec"]["selector"]["matchLabels"],
            the("Service")["spec"]["selector"],
            the("Service", "project-service-admin")["spec"]["selector"],
            the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        ]
        for selector in selectors:
            self.assertLessEqual(selector.items(), labels.items())
            self.assertFalse(selector.items() <= of_job.items())

    def test_containers_are_added_by_numbers_that_the_service_shows(self) -> None:
        scaler = the("HorizontalPodAutoscaler")["spec"]
        self.assertEqual(scaler["scaleTargetRef"]["name"], self.deployment["metadata"]["name"])
        self.assertNotIn("replicas", self.deployment["spec"])
        self.assertGreater(scaler["minReplicas"], the("PodDisruptionBudget")["spec"]["maxUnavailable"])
        gauges = re.findall(r"^# TYPE (\S+) gauge$", Metrics().exposition().decode(), re.M)
        named = {one["pods"]["metric"]["name"] for one in scaler["metrics"] if one["type"] == "Pods"}
        self.assertEqual(len(named), 2)
        self.assertLessEqual(named, set(gauges))
        (rule,) = yaml.safe_load(FILES["values.yaml"])["rules"]["custom"]
        shown = re.compile(re.findall('__name__=~"([^"]*)"', rule["seriesQuery"])[0])
        self.assertEqual({name for name in gauges if shown.fullmatch(name)}, named)

    def test_only_prometheus_gets_to_the_admin_port(self) -> None:
        policy = the("NetworkPolicy")["spec"]
        self.assertLessEqual(
            policy["podSelector"]["matchLabels"].items(),
            self.deployment["spec"]["template"]["metadata"]["labels"].items(),
        )
        self.assertEqual(policy["policyTypes"], ["Ingress"])
        allowed = {
            entry["port"]: [one["namespaceSelector"]["matchLabels"] for one in rule["from"]]
            for rule in policy["ingress"]
            for entry in rule["ports"]
        }
        name = "kubernetes.io/metadata.name"
        self.assertEqual(allowed, {"http": [{name: "ingress-nginx"}], "admin": [{name: "monitoring"}]})
        # What the Ingress sends to has no other port.
        self.assertEqual([one["targetPort"] for one in the("Service")["spec"]["ports"]], ["http"])

    def test_the_page_makes_the_secrets_that_the_containers_ask_for(self) -> None:
        asked = {volume["secret"]["secretName"] for volume in self.pod["volumes"] if "secret" in volume}
        asked |= {one["secretRef"]["name"] for one in self.container["envFrom"]}
        self.assertEqual(asked, set(re.findall(r"create secret generic (\S+)", COMMANDS)))
        shown = dict(re.findall(r"^(\w+)=(.*)$", FILES["secrets.env"], re.M))
        self.assertEqual(shown, the("Secret")["stringData"])

    def test_the_page_names_every_file_and_commands_that_exist(self) -> None:
        page = (ROOT / "docs" / "howto" / "containers.rst").read_text("utf-8")
        listed = set(re.findall(r"^``(\S+\.yaml)``  ", page, re.M))
        self.assertEqual(listed, {path.name for path in FOLDER.iterdir()})
        self.assertLessEqual(set(re.findall(r"-f (\S+\.yaml)", COMMANDS)), listed)
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


class Compose(TestCase):
    """etc/compose.yaml; tests/live/containers starts it."""

    def setUp(self) -> None:
        self.services: dict[str, Any] = yaml.safe_load((ROOT / "etc" / "compose.yaml").read_text("utf-8"))[
            "services"
        ]
        self.service: dict[str, Any] = self.services["service"]

    def test_the_settings_are_valid_and_name_the_services(self) -> None:
        environ: dict[str, str] = self.service["environment"]
        given = {name: re.sub(r"\$\{\w+:\?[^}]*\}", "x", value) for name, value in environ.items()}
        data_dir = given.pop("PROJECT_SERVICE_DATA_DIR")
        settings = Source(data_dir=Path(data_dir)).read({**image_environment(), **given})
        assert settings.database.dsn is not None
        self.assertIn("@postgres/project", settings.database.dsn.reveal())
        self.assertIn("/store:8333", settings.store.endpoint_url or "")
        self.assertEqual(set(settings.stages["dev"].databases), {"main"})
        self.assertIn(f"service:{data_dir}", self.service["volumes"])
        self.assertEqual(Path(settings.smtp.mail_dir or ""), Path(data_dir, "mail"))
        assert settings.server.public_url is not None
        self.assertIn(
            f"127.0.0.1:{settings.server.public_url.rpartition(':')[2]}:8080", self.service["ports"]
        )

    def test_only_this_host_can_reach_it_and_nobody_the_database_and_the_store(self) -> None:
        self.assertEqual(set(self.services), {"service", "postgres", "store"})
        opened = [one for name in self.services for one in self.services[name].get("ports", [])]
        self.assertEqual(opened, self.service["ports"])
        self.assertTrue(all(one.startswith("127.0.0.1:") for one in opened))

    def test_requests_under_way_have_time_to_end(self) -> None:
        seconds = int(self.service["stop_grace_period"].removesuffix("s"))
        self.assertGreater(seconds, Server().shutdown_seconds + STOP_MARGIN_SECONDS)

    def test_no_secret_has_a_default(self) -> None:
        text = (ROOT / "etc" / "compose.yaml").read_text("utf-8")
        names = set(re.findall(r"\$\{(\w+):\?", text))
        self.assertEqual(names, {"POSTGRES_PASSWORD", "DATABASE_PASSWORD", "STORE_SECRET_KEY"})
        self.assertEqual(
            set(re.findall(r"\$\{(\w+):-", text)),
            {"PROJECT_SERVICE_IMAGE", "POSTGRES_IMAGE", "SEAWEEDFS_IMAGE"},
        )
        page = (ROOT / "docs" / "howto" / "containers.rst").read_text("utf-8")
        made = re.findall(r"for name in (.*); do", page)[0].split()
        self.assertEqual(set(made), names)

    def test_the_roles_are_those_of_the_page_on_operations(self) -> None:
        page = (ROOT / "docs" / "operations.rst").read_text("utf-8")
        block = page.split("   :name: roles\n")[1].split("\n``project_service`` must own")[0]
        made = (ROOT / "etc" / "compose-roles.sql").read_text("utf-8").replace(":'password'", "'choose one'")
        self.assertEqual(statements(made.partition("\\getenv")[2].partition("\n")[2]), statements(block))


def statements(sql: str) -> list[str]:
    without = re.sub(r"--.*", "", sql)
    return [" ".join(one.split()) for one in without.split(";") if one.strip()]
