"""``project-service user``: create, import, set password, list, disable, enable, unlock, delete, end sessions, reset
second factors."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import IO, Any

import click
import orjson
from attrs import field, frozen

from project_service.audit import Origin
from project_service.auth.admin import MAX_PAGE_SIZE, Administration, imported_hash, imported_id
from project_service.auth.passwords import MAX_CHARACTERS, Bcrypt, Candidates, Rules
from project_service.auth.postgres import Repository
from project_service.auth.values import Account, check_app_metadata, check_metadata
from project_service.cli import project_options
from project_service.cli.invocation import Failed, Invocation, Project, common_options, on_a_line, on_project
from project_service.errors import ApiError, validation_failed
from project_service.lifecycle import timestamp

HERE = Origin(user_agent="project-service user")
_USER = click.argument("user", metavar="EMAIL_OR_ID")
_FOR_GOOD = datetime.max.replace(tzinfo=UTC)


@click.group()
@project_options
def user() -> None:
    """The users who sign in."""


@user.command()
@click.argument("email")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option("--password-hash", help="A bcrypt hash from another system, instead of a password.")
@common_options
def create(invocation: Invocation, email: str, password_stdin: bool, password_hash: str | None) -> None:
    """Create a user. Without a password, the user cannot log in before setting one by recovery."""
    password = _password_from_stdin() if password_stdin else None

    async def operation(project: Project) -> None:
        hashed = None if password_hash is None else imported_hash("password_hash", password_hash)
        account = await _users(project).create(email, HERE, password=password, password_hash=hashed)
        invocation.show(account.view(), account.user.id)

    invocation.run(operation)


@user.command("import")
@click.argument("file", type=click.File("rb"), default="-")
@common_options
def import_(invocation: Invocation, file: IO[bytes]) -> None:
    """Create the users in FILE (default: standard input), one JSON object on each line.

    Its members are columns of auth.users in a Supabase project: id, email, encrypted_password (bcrypt), created_at,
    email_confirmed_at, last_sign_in_at, banned_until, is_anonymous, raw_user_meta_data, raw_app_meta_data; and
    identities, a list of rows of auth.identities, of which that of the e-mail address is left out, since it comes by
    itself. Others are ignored. So this makes the file, without identities:

      psql $OLD_DB -Atc 'select to_json(u) from auth.users u'

    Users without an address are anonymous (is_anonymous), or have an identity. Nobody can sign in as somebody
    anonymous any more; auth.anonymous_days count from now for them.

    The command may be repeated: a user whose id is there stays as they are. Exit code 1 if somebody could not be
    imported; the others are.
    """
    lines = file.read().splitlines()

    async def operation(project: Project) -> None:
        importing = _Import(_users(project), project)
        await importing.bring(lines)
        importing.show(invocation)

    invocation.run(operation)


# Again and again, what a command that was interrupted before has not done. A later import changes nothing.
_AS_BEFORE = """
with new as (
    select id from auth.users where id = %(id)s and created_at > %(created_at)s
), dated as (
    update auth.identities i set created_at = %(created_at)s from new
    where i.user_id = new.id and i.provider = 'email'
), linked as (
    insert into auth.identities
        (user_id, provider, provider_id, identity_data, last_sign_in_at, created_at, updated_at)
    select new.id, i.provider, i.provider_id, i.identity_data, i.last_sign_in_at, i.created_at, i.created_at
    from new, jsonb_to_recordset(%(identities)s::jsonb) i (provider text, provider_id text, identity_data jsonb,
        last_sign_in_at timestamptz, created_at timestamptz)
    on conflict (provider, provider_id) do nothing
)
update auth.users u set created_at = %(created_at)s, confirmed_at = %(confirmed_at)s,
    last_login_at = coalesce(last_login_at, %(last_login_at)s), disabled_at = coalesce(disabled_at, %(disabled_at)s),
    disabled_until = case when disabled_at is null then %(disabled_until)s else disabled_until end
from new where u.id = new.id
"""


@frozen
class _Import:
    """``refused`` has what could not be imported, and why, by the id or the number of the line."""

    users: Administration
    project: Project
    imported: list[str] = field(factory=list, init=False)
    there: list[str] = field(factory=list, init=False)
    refused: dict[str, str] = field(factory=dict, init=False)

    async def bring(self, lines: Iterable[bytes]) -> None:
        for number, line in enumerate(lines, 1):
            if line.strip():
                name = f"line {number}"
                try:
                    given = _object(line)
                    name = str(given.get("id") or name)
                    await self._bring_one(given)
                except ApiError as refusal:
                    details = refusal.details or {}
                    why = "; ".join(f"{member} {reason}" for member, reason in details.items())
                    self.refused[name] = why or refusal.message

    async def _bring_one(self, given: Mapping[str, Any]) -> None:
        user_id = imported_id("id", given.get("id"))
        now = self.users.now()
        banned, deleted = (_moment(given, name) for name in ("banned_until", "deleted_at"))
        is_disabled = deleted is not None or (banned is not None and banned > now)
        email = given.get("email") or None
        is_anonymous = email is None and given.get("is_anonymous") is True
        times = {
            "created_at": _moment(given, "created_at"),
            "confirmed_at": _moment(given, "email_confirmed_at"),
            # Whoever is anonymous and has not been seen for long would be deleted before their rows are here.
            "last_login_at": now if is_anonymous else _moment(given, "last_sign_in_at"),
            "disabled_at": now if is_disabled else None,
            "disabled_until": banned if is_disabled and deleted is None and banned != _FOR_GOOD else None,
        }
        identities = [_identity(one, times["created_at"]) for one in given.get("identities") or ()]
        others = [one for one in identities if one["provider"] != "email"]
        has_way_in = is_anonymous or any(one["provider"] != "phone" for one in others)
        for name, is_there in (
            ("email", email is not None or has_way_in),
            ("created_at", times["created_at"] is not None),
        ):
            if not is_there:
                raise validation_failed({name: "is missing"})
        hashed = given.get("encrypted_password") or None
        try:
            await self.users.create(
                None if email is None else str(email),
                HERE,
                user_id=user_id,
                password_hash=None if hashed is None else imported_hash("encrypted_password", hashed),
                metadata=check_metadata("raw_user_meta_data", given.get("raw_user_meta_data")),
                app_metadata=check_app_metadata("raw_app_meta_data", given.get("raw_app_meta_data")),
                confirmed=times["confirmed_at"] is not None,
                is_anonymous=is_anonymous,
            )
            self.imported.append(user_id)
        except ApiError as refusal:
            if refusal.code not in ("id_taken", "email_taken") or not await self._is_there(user_id):
                raise
            self.there.append(user_id)
        values = {**times, "id": user_id, "identities": orjson.dumps(others).decode()}
        await self.project.pool.query(_AS_BEFORE, values)

    async def _is_there(self, user_id: str) -> bool:
        return bool(await self.project.pool.query("select from auth.users where id = %s", (user_id,)))

    def show(self, invocation: Invocation) -> None:
        lines = [f"refused  {on_a_line(name)}: {on_a_line(why)}" for name, why in self.refused.items()]
        counts = len(self.imported), len(self.there), len(self.refused)
        invocation.show(
            {"imported": self.imported, "there": self.there, "refused": self.refused},
            *lines,
            "{} imported, {} there already, {} refused".format(*counts),
        )
        if self.refused:
            raise Failed("not everybody could be imported")


def _object(line: bytes) -> Mapping[str, Any]:
    """Raises ``validation_failed``."""
    try:
        given = orjson.loads(line)
    except orjson.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        raise validation_failed({"it": "is not a JSON object"})
    return given


def _identity(given: object, created_at: datetime | None) -> dict[str, Any]:
    """A way in of a user's, with a provider. Raises ``validation_failed``."""
    known = given if isinstance(given, dict) else {}
    provider, name = known.get("provider"), known.get("provider_id")
    if not (isinstance(provider, str) and isinstance(name, str) and provider and name):
        raise validation_failed({"identities": "must have a provider and a provider_id each"})
    return {
        "provider": provider,
        "provider_id": name,
        "identity_data": check_metadata("identity_data", known.get("identity_data")),
        "last_sign_in_at": _moment(known, "last_sign_in_at"),
        "created_at": _moment(known, "created_at") or created_at,
    }


def _moment(given: Mapping[str, Any], name: str) -> datetime | None:
    """A time as PostgreSQL writes it in JSON. ``infinity``, for good, is the last there is. Raises
    ``validation_failed``."""
    text = given.get(name)
    if text is None:
        return None
    if text == "infinity":
        return _FOR_GOOD
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
        return moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise validation_failed({name: "is not a time with its zone"}) from None


@user.command("set-password")
@_USER
@click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input; otherwise it is asked for."
)
@click.option("--keep-sessions", is_flag=True, help="Let the user stay signed in.")
@common_options
def set_password(invocation: Invocation, user: str, password_stdin: bool, keep_sessions: bool) -> None:
    """Give a user a new password. Unless --keep-sessions is given, all sessions end within a second."""
    if password_stdin:
        password = _password_from_stdin()
    elif sys.stdin.isatty():
        password = click.prompt("New password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise click.UsageError("there is no terminal to ask for the password; give it with --password-stdin")

    async def operation(project: Project) -> None:
        account = await _users(project).change(user, HERE, password=password, keep_sessions=keep_sessions)
        invocation.show(account.view(), f"set the password of {account.user.id}")

    invocation.run(operation)


@user.command("list")
@on_project()
async def list_(invocation: Invocation, project: Project) -> None:
    """List all users, oldest first."""
    users = _users(project)
    accounts: list[Account] = []
    cursor: str | None = None
    while True:
        page = await users.page(cursor, str(MAX_PAGE_SIZE))
        accounts += page.accounts
        cursor = page.next_cursor
        if cursor is None:
            break
    repository = Repository(project.pool)
    factors: defaultdict[str, list[Any]] = defaultdict(list)
    for factor in await repository.all_factors():
        factors[factor.user_id].append(factor.view())
    identities: defaultdict[str, list[Any]] = defaultdict(list)
    for identity in await repository.all_identities():
        identities[identity.user_id].append(identity.view())
    invocation.show(
        [
            {
                **account.view(),
                "identities": identities[account.user.id],
                "factors": factors[account.user.id],
            }
            for account in accounts
        ],
        *map(_line, accounts),
    )


@user.command()
@_USER
@on_project()
async def identities(invocation: Invocation, project: Project, user: str) -> None:
    """Show a user's ways in: the e-mail address, and accounts with providers."""
    users = _users(project)
    profile = await users.profile((await users.find(user)).user.id)
    lines = (
        f"{one.provider}  {on_a_line(one.subject)}  {on_a_line(str(one.data.get('email') or ''))}".rstrip()
        for one in profile.identities
    )
    invocation.show([one.view() for one in profile.identities], *lines)


@user.command("mfa-reset")
@_USER
@on_project()
async def mfa_reset(invocation: Invocation, project: Project, user: str) -> None:
    """Delete a user's second factors and recovery codes, for one who has lost them. Sessions go on."""
    account, count = await _users(project).delete_factors(user, HERE)
    invocation.show({"id": account.user.id, "deleted": count}, f"deleted {count} of {account.user.id}")


@user.command()
@_USER
@on_project()
async def disable(invocation: Invocation, project: Project, user: str) -> None:
    """Keep a user out: sessions end everywhere within a second, and logins are refused."""
    account = await _users(project).change(user, HERE, disabled=True)
    invocation.show(account.view(), f"disabled {account.user.id}")


@user.command()
@_USER
@on_project()
async def enable(invocation: Invocation, project: Project, user: str) -> None:
    """Let a disabled user log in again."""
    account = await _users(project).change(user, HERE, disabled=False)
    invocation.show(account.view(), f"enabled {account.user.id}")


@user.command()
@_USER
@on_project()
async def unlock(invocation: Invocation, project: Project, user: str) -> None:
    """Let a user log in again at once after too many wrong passwords, whoever entered them."""
    account = await _users(project).unlock(user, HERE)
    invocation.show({"id": account.user.id, "unlocked": True}, f"unlocked {account.user.id}")


@user.command()
@_USER
@on_project()
async def delete(invocation: Invocation, project: Project, user: str) -> None:
    """Delete a user and all sessions. Uploaded objects stay, and so do rows without a foreign key to the user."""
    users = _users(project)
    account = await users.find(user)
    await users.delete(account.user.id, HERE)
    invocation.show({"id": account.user.id, "deleted": True}, f"deleted {account.user.id}")


@user.command("end-sessions")
@_USER
@on_project()
async def end_sessions(invocation: Invocation, project: Project, user: str) -> None:
    """Log a user out everywhere, within a second."""
    count = await _users(project).end_sessions(user, HERE)
    invocation.show({"ended": count}, f"ended {count}")


def _password_from_stdin() -> str:
    # Read more than is allowed, so that a longer one is refused and not truncated.
    try:
        return sys.stdin.read(MAX_CHARACTERS + 3).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise click.UsageError("the password is not in the encoding of standard input") from None


@frozen
class _HashesHere:
    """``Hashes`` without threads, because a command has nothing else to do."""

    bcrypt: Bcrypt

    async def hash(self, password: bytes) -> bytes:
        return self.bcrypt.hash(password)

    async def matches(self, passwords: Candidates, stored: bytes | None) -> bool:
        return self.bcrypt.matches(passwords, stored)

    def outdated(self, stored: bytes) -> bool:
        return self.bcrypt.outdated(stored)


def _users(project: Project) -> Administration:
    settings = project.settings.auth
    return Administration(
        repository=Repository(project.pool),
        hashes=_HashesHere(Bcrypt(settings.bcrypt_cost)),
        now=lambda: datetime.now(UTC),
        password_rules=lambda: Rules.of(settings),
        on_ended=lambda session_id, until: None,
        actor="operator",
    )


def _line(account: Account) -> str:
    state = "disabled" if account.disabled_at is not None else "active"
    return f"{account.user.id}  {state:<8}  {timestamp(account.user.created_at)}  {account.user.email or '-'}"
