"""Puts authentication together, for ``application.py``."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from attrs import evolve, frozen
from twisted.application.service import Service

from project_service.audit import Event
from project_service.auth import mail, tokens
from project_service.auth.accounts import Accounts
from project_service.auth.admin import Administration
from project_service.auth.admin_routes import AdminRoutes, TokenRoutes
from project_service.auth.challenges import Challenges, ToHook
from project_service.auth.context import Context
from project_service.auth.factors import Factors
from project_service.auth.hooks import Hooks
from project_service.auth.identities import Identities
from project_service.auth.impersonation import Impersonations
from project_service.auth.inspection import Inspection
from project_service.auth.invitations import Invitations
from project_service.auth.limits import Throttle
from project_service.auth.lookups import Lookups
from project_service.auth.mail_server import MailServer
from project_service.auth.mail_templates import Mail, MailTemplates
from project_service.auth.passkeys import Passkeys
from project_service.auth.passwords import Bcrypt, Hashes, Hashing, Rules, common_passwords
from project_service.auth.postgres import Repository
from project_service.auth.providers import Providers
from project_service.auth.routes import AuthRoutes, KeyRoutes
from project_service.auth.sessions import RevokedSessions, SessionService
from project_service.auth.tokens import Issuer, KeySetError, Verifier
from project_service.auth.values import Profile, moment
from project_service.database.acting import Actor
from project_service.database.errors import outage_of
from project_service.database.listener import Listener
from project_service.database.pool import Pool
from project_service.errors import ApiError
from project_service.http.caller import KeyDemand
from project_service.http.routing import Policy, Router
from project_service.lifecycle import Every
from project_service.outgoing import Documents, Outgoing
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
    accounts: Accounts
    challenges: Challenges
    factors: Factors
    passkeys: Passkeys
    throttle: Throttle
    sessions: SessionService
    administration: Administration
    inspection: Inspection
    invitations: Invitations
    identities: Identities
    context: Context

    def mount(self, router: Router) -> None:
        part = router.of_part(Policy(admission=ADMISSION))
        key: KeyDemand = "required" if self.context.settings.require_project_key else "optional"
        part.mount(AuthRoutes(self.accounts, self.sessions), key)
        part.mount(KeyRoutes(self.verifier))
        part.mount(AdminRoutes(self.administration, self.inspection, self.invitations))
        part.mount(TokenRoutes(Impersonations(self.administration, self.context)))

    def reload(self, settings: Settings) -> None:
        """Apply changed limits, lifetimes, keys and templates. Raises ``KeySetError`` or ``TemplateFault``; then
        nothing is changed."""
        issuer, templates = issuer_of(settings), MailTemplates.load(settings)
        self.verifier.replace(issuer)
        self.context.settings, self.context.templates = settings.auth, templates


def issuer_of(settings: Settings) -> Issuer:
    """The issuer of access tokens, with the keys in ``auth.jwt_keys_file``. Raises ``KeySetError``."""
    assert settings.auth.jwt_keys_file is not None
    name = settings.auth.issuer or settings.server.public_url or DEFAULT_ISSUER
    try:
        keys = tokens.load_keys(Path(settings.auth.jwt_keys_file))
    except KeySetError as fault:
        raise KeySetError(f"auth.jwt_keys_file: {fault}") from None
    return Issuer(keys, name, settings.auth.access_token_seconds)


def assemble(
    settings: Settings,
    pool: Pool,
    actor: Actor,
    listener: Listener,
    reactor: Any,
    processes: int,
    view: Callable[[Profile], Mapping[str, Any]],
    watched: Callable[[Hashes], Hashes] = lambda hashes: hashes,
    new_outbox: Callable[..., mail.Outbox[Mail]] = mail.Outbox,
) -> Auth:
    """Authentication with PostgreSQL, bcrypt threads, and e-mails by SMTP or in a folder.

    Ended sessions are read by ``listener``, everything else by ``pool``, but for changes that fire triggers of the
    project, which ``actor`` makes. ``view`` shows users to hooks. ``watched`` returns what hashes passwords by its
    argument, and ``new_outbox`` an ``Outbox``. It subscribes to ``listener``, so call it
    before that is started. ``processes`` is the number of workers that share this machine's CPUs. The key file must
    exist: whoever starts the workers makes it with ``tokens.load_or_create_keys`` first. Raises ``KeySetError`` and
    ``TemplateFault``.
    """
    hashing = Hashing(reactor, Bcrypt(settings.auth.bcrypt_cost), cpus(processes))

    def private_hosts() -> bool:
        return auth.context.settings.allow_private_hosts

    auth = put_together(
        settings,
        Repository(pool, listener, actor),
        Lookups(pool),
        watched(hashing),
        _mailer(settings, reactor, new_outbox),
        listener,
        reactor,
        time.time,
        Outgoing(reactor, private_hosts),
        actor,
        view,
    )
    # Read the list now, so that the first sign-up does not have to.
    common_passwords()
    return evolve(auth, services=(hashing, *auth.services))


def put_together(
    settings: Settings,
    repository: Repository,
    lookups: Lookups,
    hashes: Hashes,
    mailer: mail.Outbox[Mail] | None,
    listener: Listener,
    reactor: Any,
    clock: Callable[[], float],
    outgoing: Outgoing,
    actor: Actor,
    view: Callable[[Profile], Mapping[str, Any]],
) -> Auth:
    """Everything except threads, database, e-mail and calls to others, which tests replace. ``clock`` returns
    the Unix time."""

    def read_ended(since: float | None) -> Awaitable[list[tuple[str, float]]]:
        return repository.ended_sessions(context.now(), None if since is None else moment(since))

    revoked = RevokedSessions(read_ended, listener, clock)
    verifier = Verifier(issuer_of(settings), revoked.is_revoked, clock)
    templates = MailTemplates.load(settings)
    hooks = Hooks(lambda: context.settings.hooks, outgoing, actor, lambda: moment(clock()), _new_id)
    context = Context(settings.auth, templates, verifier, clock, os.urandom, _new_id, hooks, view)

    async def send_by_hook(one: ToHook) -> None:
        await hooks.send_email(one.user, one.email_data)

    throttle = Throttle(repository, context, reactor)
    challenges = Challenges(repository, mailer, mail.Outbox(send_by_hook, reactor), context)
    accounts = Accounts(repository, throttle, hashes, challenges, context)
    administration = Administration(
        repository=repository,
        hashes=hashes,
        now=context.now,
        password_rules=lambda: Rules.of(context.settings),
        on_ended=revoked.add,
        actor="service",
    )
    invitations = Invitations(administration, challenges)
    providers = Providers(lambda: context.settings, outgoing, Documents(outgoing, clock), clock)
    identities = Identities(repository, providers, challenges, throttle, context)
    upkeep = Every(CLEAN_SECONDS, lambda: clean(repository, context), reactor, "auth-upkeep", outage_of)
    sessions = SessionService(repository, revoked, context)
    return Auth(
        verifier,
        revoked,
        (upkeep,),
        accounts,
        challenges,
        Factors(repository, throttle, revoked.add, context),
        Passkeys(repository, throttle, context),
        throttle,
        sessions,
        administration,
        Inspection(administration, lookups),
        invitations,
        identities,
        context,
    )


def _new_id() -> str:
    return str(uuid.uuid4())


async def clean(repository: Repository, context: Context) -> None:
    """Delete what has expired, unless another worker is doing so."""
    now = context.now()
    is_ours = await repository.delete_expired(
        now,
        salt_before=now - 2 * context.reuse_window(),
        tokens_before=now - context.refresh_lifetime(),
        audit_before=now - timedelta(days=context.settings.audit_days),
    )
    if not is_ours:
        return
    before = now - timedelta(days=context.settings.anonymous_days)
    for user_id in await repository.unused_anonymous_users(before):
        event = Event(now, "delete_anonymous_user", actor="service", user_id=user_id)
        try:
            await repository.delete_user(user_id, event, unused_since=before)
        except ApiError as refusal:
            # Rows of the project's own keep the user, or a trigger of its does.
            if refusal.code not in ("user_in_use", "refused_by_project"):
                raise


def _mailer(
    settings: Settings, reactor: Any, new_outbox: Callable[..., mail.Outbox[Mail]]
) -> mail.Outbox[Mail] | None:
    smtp = settings.smtp
    if smtp.host is not None and smtp.sender is not None:
        return new_outbox(MailServer(reactor, smtp, settings.server.public_url).send, reactor)
    if smtp.host is None and smtp.mail_dir is not None:
        return new_outbox(mail.MailFolder(reactor, Path(smtp.mail_dir), smtp.sender).send, reactor)
    return None
