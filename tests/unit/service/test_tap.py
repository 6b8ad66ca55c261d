"""The options of ``twistd project-service``, and what is refused before the start."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from project_service.settings.reading import Launch
from project_service.tap import Options
from tests.certificates import issue
from tests.temporary import temporary_directory

NAMED = """
[server]
listen = ["tcp:1"]
workers = 3
[database]
dsn = "postgresql://localhost/x"
[store]
endpoint_url = "http://127.0.0.1:1"
access_key_id = "a"
secret_access_key = "s"
[auth]
jwt_keys_file = "/keys.json"
"""


class OptionTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.config = str(temporary_directory(self) / "c.toml")
        self.write(NAMED)
        self.addCleanup(signal.signal, signal.SIGHUP, signal.getsignal(signal.SIGHUP))
        self.twistd: dict[str, Any] = {}
        environment = patch.dict("os.environ", {"PROJECT_SERVICE__AUTH__BCRYPT_COST": "5"})
        environment.start()
        self.addCleanup(environment.stop)

    def write(self, text: str) -> None:
        Path(self.config).write_text(text)

    def launch(self, *arguments: str) -> Launch:
        options: Any = Options()
        options.parent = self.twistd
        options.parseOptions(arguments)
        launch: Launch = options.launch
        return launch

    def refused(self, *arguments: str) -> str:
        """Why wrong usage is refused; twistd prints its options before it."""
        return str(self.assertRaises(UsageError, self.launch, *arguments))

    def unusable(self, *arguments: str) -> str:
        """Why a configuration is refused, which is all that is printed."""
        return str(self.assertRaises(SystemExit, self.launch, *arguments).code)

    def test_without_a_configuration_everything_is_embedded(self) -> None:
        launch = self.launch()
        self.assertEqual((launch.source.config, launch.data_dir), (None, Path("var").absolute()))
        self.assertTrue(launch.embeds_database)
        self.assertTrue(launch.embeds_store)
        self.assertEqual(launch.settings.auth.jwt_keys_file, str(Path("var/jwt-keys.json").absolute()))
        self.assertEqual(list(launch.settings.stages["dev"].databases), ["main"])
        self.assertEqual(self.launch("--data-dir", "/elsewhere").data_dir, Path("/elsewhere"))

    def test_with_config_alone_nothing_is_embedded(self) -> None:
        launch = self.launch("-c", self.config)
        self.assertEqual((launch.source.config, launch.data_dir), (Path(self.config), None))
        self.assertFalse(launch.embeds_database)
        self.assertFalse(launch.embeds_store)
        self.assertEqual(dict(launch.settings.stages), {})
        self.write("")
        self.assertIn("database.dsn is missing", self.unusable("--config", self.config))

    def test_with_config_and_data_dir_what_is_not_configured_is_embedded(self) -> None:
        dsn = NAMED[NAMED.index("[database]") : NAMED.index("[store]")]
        self.write(f'{dsn}[auth]\njwt_keys_file = "/keys.json"\n[stages.prod.databases.shop]\n')
        launch = self.launch("--config", self.config, "-d", "/data")
        self.assertEqual(launch.data_dir, Path("/data"))
        self.assertFalse(launch.embeds_database)
        self.assertTrue(launch.embeds_store)
        # What it does configure stays.
        self.assertEqual(launch.settings.auth.jwt_keys_file, "/keys.json")
        self.assertEqual(list(launch.settings.stages), ["prod"])

    def test_templates_of_mails_that_cannot_be_used_are_refused_before_the_start(self) -> None:
        folder = temporary_directory(self)
        (folder / "mails" / "de").mkdir(parents=True)
        (folder / "mails" / "de" / "recovery.txt").write_text("Neues Passwort\n\n{{ lnik }}\n")
        # A relative path is one in the folder where the service runs.
        self.twistd = {"rundir": str(folder)}
        self.write(f'{NAMED}[smtp]\ntemplates_dir = "mails"\n')
        why = "smtp.templates_dir: mails/de/recovery.txt:3: 'lnik' is undefined"
        self.assertIn(why, self.unusable("--config", self.config))

    def test_schemas_exposed_of_the_system_database_are_those_of_databases_without_a_dsn(self) -> None:
        self.write(
            """
            [stages.dev.databases.main]
            schemas = ["public", "api"]
            [stages.dev.databases.elsewhere]
            dsn = "postgresql://elsewhere/x"
            schemas = ["theirs"]
            [stages.prod.databases.main]
            schemas = ["api", "v2"]
            service_role = "admin"
            """
        )
        launch = self.launch("--config", self.config, "--data-dir", "/data")
        self.assertEqual(launch.settings.exposed_schemas(), {"public", "api", "v2"})
        self.assertEqual(launch.settings.schemas_of_service_role(), {"public", "api"})

    def test_options_win_over_the_environment_and_the_file(self) -> None:
        plain = self.launch("--config", self.config).settings
        self.assertEqual((plain.server.listen, plain.server.workers), (("tcp:1",), 3))
        self.assertEqual(plain.auth.bcrypt_cost, 5)
        given = ("--listen", "tcp:2", "-l", "tcp:3", "-w", "2", "--admin-listen", "tcp:4")
        launch = self.launch("--config", self.config, *given)
        server = launch.settings.server
        self.assertEqual((server.listen, server.workers), (("tcp:2", "tcp:3"), 2))
        self.assertEqual(server.admin_listen, "tcp:4")
        # They are kept for a reload, and for the workers.
        names = {"server.listen": ["tcp:2", "tcp:3"], "server.workers": "2", "server.admin_listen": "tcp:4"}
        self.assertEqual(dict(launch.source.options), names)

    def test_unusable_options_are_refused_by_name(self) -> None:
        for arguments, message in (
            (("--workers", "0"), "command line: server.workers must be from 1 to 256"),
            (("--workers", "many"), "command line: server.workers must be a whole number"),
            (("--workers", "11"), "server.workers is 11 and database.pool_size is 10"),
            (("--listen", "nonsense"), "command line: server.listen must be endpoints"),
            (("--admin-listen", "nonsense"), "command line: server.admin_listen must be"),
            (("--config", "/no/such/file"), "/no/such/file: cannot be read: No such file or directory"),
        ):
            self.assertIn(message, self.unusable(*arguments))
        self.assertIn("Wrong number of arguments", self.refused("extra"))
        self.assertIn("option --nonsense not recognized", self.refused("--nonsense"))
        self.assertEqual(self.launch("--workers", "auto").settings.server.workers, "auto")

    def test_a_deleted_current_directory_is_refused(self) -> None:
        with patch("os.getcwd", side_effect=FileNotFoundError(2, "No such file or directory")):
            for arguments in ([], ["--config", "c.toml"], ["--config", self.config, "--data-dir", "var"]):
                self.assertIn("begins in the current directory, which is gone", self.unusable(*arguments))

    def test_a_path_that_is_not_utf_8_is_refused(self) -> None:
        for option in ("--data-dir", "--config"):
            message = self.unusable(option, "caf\udce9")
            self.assertIn("command line: caf\\udce9 has a name that is not UTF-8", message)

    def test_relative_names_in_the_configuration_begin_in_twistds_rundir(self) -> None:
        """As they do at a reload. Those on the command line begin where twistd was started, as its own do."""
        folder = temporary_directory(self)
        (folder / "authority.pem").write_bytes(issue("localhost").pem)
        self.write(NAMED.replace("[store]", "[store]\nca_file = 'authority.pem'"))
        started = Path.cwd()
        self.twistd["rundir"] = str(folder)
        relative = os.path.relpath(self.config)
        launch = self.launch("--config", relative, "--data-dir", "var")
        self.assertEqual(launch.settings.store.ca_file, "authority.pem")
        self.assertEqual((launch.source.config, launch.data_dir), (started / relative, started / "var"))
        self.assertEqual(Path.cwd(), started)
        self.twistd["rundir"] = str(folder / "none")
        message = self.refused("--config", self.config)
        self.assertEqual(message, f"--rundir {folder / 'none'}: No such file or directory")

    def test_an_empty_option_is_refused(self) -> None:
        """It may come from a variable that nobody has set: a production service would start on an empty embedded
        database."""
        for option in ("config", "data-dir", "workers", "admin-listen"):
            self.assertEqual(self.refused(f"--{option}", ""), f"--{option} has an empty value")
        self.assertIn("server.listen", self.unusable("--listen", ""))

    def test_the_environment_names_what_no_option_does(self) -> None:
        other = str(Path(self.config).with_name("other.toml"))
        Path(other).write_text(NAMED)
        with patch.dict("os.environ", {"PROJECT_SERVICE_CONFIG": self.config}):
            launch = self.launch()
            self.assertEqual((launch.source.config, launch.data_dir), (Path(self.config), None))
            self.assertEqual(self.launch("--config", other).source.config, Path(other))
            launch = self.launch("--data-dir", "/data")
            self.assertEqual((launch.source.config, launch.data_dir), (Path(self.config), Path("/data")))
        with patch.dict("os.environ", {"PROJECT_SERVICE_DATA_DIR": "/data"}):
            self.assertEqual((self.launch().source.config, self.launch().data_dir), (None, Path("/data")))
            self.assertEqual(self.launch("--data-dir", "/other").data_dir, Path("/other"))
        for name in ("PROJECT_SERVICE_CONFIG", "PROJECT_SERVICE_DATA_DIR"):
            with patch.dict("os.environ", {name: ""}):
                self.assertIn(f"environment: {name} is empty", self.unusable())

    def test_sighup_is_ignored_until_the_service_can_reload(self) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self.launch()
        self.assertEqual(signal.getsignal(signal.SIGHUP), signal.SIG_IGN)

    def test_the_services_own_log_is_used_unless_the_operator_names_one(self) -> None:
        self.launch()
        self.assertEqual(self.twistd["logger"], "project_service.log.make_observer")
        for own in ("logger", "syslog"):
            self.twistd = {own: "theirs"}
            self.launch()
            # No pickle of the application is left behind in either case.
            self.assertEqual(self.twistd, {own: "theirs", "no_save": True})
