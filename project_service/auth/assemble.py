"""Puts authentication together from its parts, for ``application.py``."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from attrs import evolve, frozen
from twisted.application.service import Service

from project_service.auth import mail, tokens
from project_service.auth.accounts import Accounts, Letters, Profile, Recovery
from project_service.auth.admin import Administration
from project_service.auth.context import Context
from project_service.auth.limits import Throttle
from project_service.auth.passwords import Bcrypt, Hashes, Hashing, common_passwords
from project_service.auth.postgres import (
    SqlAttempts,
    SqlEndedSessions,
    SqlHousekeeping,
    SqlOneTimeTokens,
    SqlSessions,
    SqlUsers,
)
from project_service.auth.repository import Housekeeping, Stores
from project_service.auth.routes import AdminRoutes, AuthRoutes
from project_service.auth.sessions import Currency, RevokedSessions, SessionService
from project_service.auth.tokens import Issuer, KeySetError, Verifier
from project_service.auth.values import moment
from project_service.database.errors import outage_of
from project_service.database.listener import Listener
from project_service.database.pool import Pool
from project_service.http.routing import Policy, Router
from project_service.lifecycle import Every
from project_service.process import cpus
from project_service.settings.model import Settings

# The issuer of tokens if neither auth.issuer nor server.public_url is set.
DEFAULT_ISSUER = "project-service"
CLEAN_SECONDS = 60.0
# The admission class of requests that do not hash a password.
ADMISSION = "auth"


@frozen
class Auth:
    """``verifier`` is used by the edge and by the table API; ``revoked.read_new`` has to be called regularly. The
    ``services`` have to be started."""

    verifier: Verifier
    revoked: RevokedSessions
    services: tuple[Service, ...]
    routes: AuthRoutes
    admin: AdminRoutes
    context: Context

    def mount(self, router: Router) -> None:
        part = router.of_part(Policy(admission=ADMISSION))
        self.routes.mount(part)
        self.admin.mount(part)

    def reload(self, settings: Settings) -> None:
        """Apply changed limits, lifetimes and keys. Raises ``KeySetError``; then nothing is changed."""
        self.verifier.replace(issuer_of(settings))
        self.context.settings = settings.auth


def issuer_of(settings: Settings) -> Issuer:
    """The issuer of access tokens, with the keys in ``auth.jwt_keys_file``. Raises ``KeySetError``."""
    assert settings.auth.jwt_keys_file is not None
    name = settings.auth.issuer or settings.server.public_url or DEFAULT_ISSUER
    try:
        keys = tokens.load_keys(Path(settings.auth.jwt_keys_file))
    except KeySetError as fault:
        raise KeySetError(f"auth.jwt_keys_file: {fault}") from None
    return Issuer(keys, name, settings.auth.access_token_seconds)


def assemble(settings: Settings, pool: Pool, listener: Listener, reactor: Any, processes: int) -> Auth:
    """Authentication with PostgreSQL, bcrypt threads and SMTP.

    Ended sessions are read by ``listener``, everything else by ``pool``. It subscribes to ``listener``, so call it
    before that is started. ``processes`` is the number of workers that share this machine's CPUs. The key file must
    exist: whoever starts the workers makes it with ``keyfile.load_or_create`` first. Raises ``KeySetError``.
    """
    hashing = Hashing(reactor, Bcrypt(settings.auth.bcrypt_cost), cpus(processes))
    auth = put_together(
        settings,
        sql_stores(pool, listener),
        hashing,
        _post(settings, reactor),
        listener,
        reactor,
        time.time,
    )
    # Read the list now, so that the first sign-up does not have to.
    common_passwords()
    return evolve(auth, services=(hashing, *auth.services))


def sql_stores(pool: Pool, listener: Listener | None = None) -> Stores:
    """``listener`` reads the ended sessions, if it is not ``pool`` that does."""
    return Stores(
        SqlUsers(pool),
        SqlSessions(pool),
        SqlEndedSessions(listener or pool),
        SqlAttempts(pool),
        SqlOneTimeTokens(pool),
        SqlHousekeeping(pool),
    )


def put_together(
    settings: Settings,
    stores: Stores,
    hashes: Hashes,
    post: mail.Post | None,
    listener: Currency,
    reactor: Any,
    clock: Callable[[], float],
) -> Auth:
    """Everything except threads, database and mail, which tests replace. ``clock`` returns the Unix time."""

    def read_revoked(since: float | None) -> Awaitable[list[tuple[str, float]]]:
        return stores.ended.revoked(context.now(), None if since is None else moment(since))

    revoked = RevokedSessions(read_revoked, listener, clock)
    verifier = Verifier(issuer_of(settings), revoked, clock)
    context = Context(settings.auth, verifier, clock, os.urandom, lambda: str(uuid.uuid4()))
    throttle = Throttle(stores.attempts, context, reactor)
    letters = Letters(stores.tokens, post, throttle, context)
    accounts = Accounts(stores.users, stores.sessions, throttle, hashes, letters, context)
    routes = AuthRoutes(
        accounts,
        SessionService(stores.sessions, revoked, context),
        Profile(stores.users, accounts, hashes, context),
        Recovery(letters, stores.tokens, hashes, context),
        context,
    )
    administration = Administration(
        users=stores.users,
        sessions=stores.sessions,
        attempts=stores.attempts,
        hashes=hashes,
        now=context.now,
        password_min_bytes=lambda: context.settings.password_min_bytes,
        ended=revoked.add,
        actor="service",
    )
    services = (
        Every(CLEAN_SECONDS, lambda: clean(stores.housekeeping, context), reactor, "auth-upkeep", outage_of),
    )
    return Auth(verifier, revoked, services, routes, AdminRoutes(administration), context)


async def clean(housekeeping: Housekeeping, context: Context) -> None:
    """Remove what has expired, unless another worker is doing so."""
    now = context.now()
    await housekeeping.clean(
        now,
        salt_before=now - 2 * context.reuse_window(),
        tokens_before=now - context.refresh_lifetime(),
        audit_before=now - timedelta(days=context.settings.audit_days),
    )


def _post(settings: Settings, reactor: Any) -> mail.Post | None:
    if settings.smtp.host is None or settings.smtp.sender is None:
        return None
    transport = mail.SmtpTransport(reactor, settings.smtp, time.time, lambda: str(uuid.uuid4()))
    return mail.Outbox(transport, reactor)
