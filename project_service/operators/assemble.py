"""The endpoints of operators, put together. A module for each idea; the parts keep their own (``/admin/users``,
``/admin/buckets``)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from project_service.auth.mail import MailFolder
from project_service.auth.tokens import Verifier
from project_service.database.connecting import Connector
from project_service.database.pool import Pool
from project_service.dsn import read_dsn
from project_service.http.health import Health
from project_service.http.routing import Policy, Router
from project_service.kept_log import ReadLog
from project_service.lifecycle import InThread
from project_service.operators.databases import Databases, Source
from project_service.operators.history import History
from project_service.operators.keys import ProjectKeyRoutes, SigningKeyRoutes
from project_service.operators.log import Log
from project_service.operators.mail import Mails
from project_service.operators.migrations import MigrationRoutes
from project_service.operators.overview import Overview, Sizes
from project_service.operators.settings import SettingRoutes
from project_service.operators.sql import Audited, Connectors, SqlRoutes
from project_service.settings.model import Settings, Smtp
from project_service.storage.buckets import Buckets


@frozen
class Operators:
    """Has routes. ``endpoints`` are objects with methods that are declared by ``http.routing.endpoint``."""

    endpoints: Sequence[object]

    def mount(self, router: Router) -> None:
        # Pages of other origins have no business with the service key, hence no CORS headers.
        part = router.of_part(Policy(cors=False))
        for each in self.endpoints:
            part.mount(each, key="service")


@frozen
class Running:
    """What endpoints show of the running service. ``databases`` are pools by the names of the databases that they
    lead to, ``system`` that of the system database, ``sources`` the databases of the table API, by stage and name.
    ``read_log`` reads the log of all processes, ``reload`` has all of them read their configuration again, and
    ``configured`` returns the settings of all of them together. ``in_thread`` runs what blocks."""

    health: Health
    history: History
    databases: Mapping[str, Pool]
    system: Pool
    buckets: Buckets
    sources: Mapping[tuple[str, str], Source]
    read_log: ReadLog
    in_thread: InThread
    verifier: Verifier
    reload: Callable[[], None]
    configured: Callable[[], Settings]


def assemble(reactor: Any, settings: Callable[[], Settings], running: Running) -> Operators:
    """``settings`` returns those that are in force."""
    sizes = Sizes(running.databases, running.buckets.all, reactor, time.time)
    connectors = connectors_of(reactor, settings())
    audited = Audited(running.system, time.time)
    return Operators(
        (
            Overview(running.health, running.history, sizes, reactor, time.time),
            Log(settings, running.read_log),
            Mails(lambda: _mail_folder(reactor, settings().smtp), running.in_thread),
            Databases(running.sources),
            SqlRoutes(connectors, lambda: settings().server.console_sql is True, reactor.seconds, audited),
            ProjectKeyRoutes(running.system, audited, secrets.token_bytes),
            SigningKeyRoutes(
                lambda: settings().auth,
                lambda: running.verifier.issuer.keys,
                running.in_thread,
                running.reload,
                audited,
            ),
            SettingRoutes(running.configured),
            MigrationRoutes(connectors, lambda: settings().server.migrations_dir, audited),
        )
    )


def _mail_folder(reactor: Any, smtp: Smtp) -> MailFolder | None:
    if smtp.host is not None or smtp.mail_dir is None:
        return None
    return MailFolder(reactor, Path(smtp.mail_dir), smtp.sender)


def connectors_of(reactor: Any, settings: Settings) -> Connectors:
    """What connects to each database of the table API, for one request alone."""
    found = {}
    for stage, name, database in settings.stage_databases():
        timeout = settings.database.statement_timeout_seconds
        found[stage, name] = Connector(reactor, read_dsn(settings.session_dsn(database).reveal()), timeout)
    return found
