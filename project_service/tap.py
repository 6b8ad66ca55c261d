"""The ``twistd`` subcommand: reads its options and the configuration, and makes the service."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import chdir, nullcontext
from pathlib import Path
from typing import Any

from twisted.application.service import IService
from twisted.python import usage

from project_service import log
from project_service.auth.mail_templates import MailTemplates
from project_service.settings.model import Settings
from project_service.settings.reading import ConfigurationError, Launch, Source
from project_service.shares import TooManyWorkers, worker_count


class Options(usage.Options):
    """``twistd [twistd options] project-service [these options]``."""

    synopsis = "[options]"
    longdesc = (
        "Without --config everything is embedded: a PostgreSQL and an S3 store are started below --data-dir. "
        "With --config and --data-dir, what the config does not name is embedded; with --config alone it must "
        "name both. Without them, PROJECT_SERVICE_CONFIG and PROJECT_SERVICE_DATA_DIR in the environment count."
    )
    optParameters = [  # noqa: RUF012  # Twisted reads it so
        ["config", "c", None, "TOML file with the settings; `project-service config` prints them all"],
        ["data-dir", "d", None, "where embedded parts keep their state [default: ./var]"],
        ["workers", "w", None, "number of processes that serve, or auto for one per CPU"],
        [
            "admin-listen",
            None,
            None,
            "endpoint for health and metrics alone, e.g. tcp:9090:interface=127.0.0.1",
        ],
    ]

    launch: Launch

    def __init__(self) -> None:
        super().__init__()
        self["listen"] = []

    def opt_listen(self, endpoint: str) -> None:
        """endpoint to serve on, e.g. tcp:8080:interface=127.0.0.1; may be repeated"""
        self["listen"].append(endpoint)

    opt_l = opt_listen

    def postOptions(self) -> None:
        """Read the configuration, so that an invalid one is refused before anything is started."""
        for option, value in self.items():
            if value == "":
                # Probably a shell variable that is not set. It must not start the service on an embedded database.
                raise usage.UsageError(f"--{option} has an empty value")
        names = {"listen": "listen", "workers": "workers", "admin-listen": "admin_listen"}
        given = {f"server.{name}": self[option] for option, name in names.items() if self[option]}
        try:
            config, data_dir = (
                None if self[name] is None else Path(self[name]) for name in ("config", "data-dir")
            )
            source = Source.named(os.environ, config, data_dir, given)
            settings = self._settings(source)
            worker_count(settings)
        except (ConfigurationError, TooManyWorkers) as fault:
            # Not a UsageError, for which twistd would print all options before the reason.
            sys.exit(f"project-service: the configuration cannot be used\n{fault}")
        # From now on a SIGHUP that comes too early does not end the process. The daemon handles it when it runs.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.launch = Launch(settings, source)
        server = settings.server
        log.install(self.parent, server.log_format, server.log_level, keeps=bool(server.console_log))

    def _settings(self, source: Source) -> Settings:
        """Read the configuration in the directory where the service will run, to which relative paths refer, as a
        reload does."""
        twistd: Any = self.parent
        directory = twistd.get("rundir", ".")
        try:
            with chdir(directory) if directory != "." else nullcontext():
                settings = source.read(os.environ)
                MailTemplates.load(settings)
                return settings
        except OSError as fault:
            raise usage.UsageError(f"--rundir {directory}: {fault.strerror}") from None


def makeService(options: Options) -> IService:
    """The composition root. The reactor is imported here, and passed on from here."""
    from twisted.internet import reactor

    from project_service.daemon import Daemon
    from project_service.lifecycle import use_monotonic_clock

    use_monotonic_clock(reactor)
    daemon: IService = Daemon(reactor, options.launch)
    return daemon
