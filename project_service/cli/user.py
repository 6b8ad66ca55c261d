"""``project-service user``: create, set password, list, disable, enable, unlock, delete, end sessions."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click
from attrs import frozen

from project_service.auth.admin import MAX_PAGE_SIZE, Administration, imported_hash
from project_service.auth.passwords import MAX_CHARACTERS, Bcrypt, Candidates
from project_service.auth.postgres import Repository
from project_service.auth.values import Account, Origin
from project_service.cli import project_options
from project_service.cli.invocation import Invocation, Project, common_options, on_project
from project_service.lifecycle import timestamp

HERE = Origin(user_agent="project-service user")
_USER = click.argument("user", metavar="EMAIL_OR_ID")


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
    invocation.show([account.view() for account in accounts], *map(_line, accounts))


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
        password_min_bytes=lambda: settings.password_min_bytes,
        on_ended=lambda session_id, until: None,
        actor="operator",
    )


def _line(account: Account) -> str:
    state = "disabled" if account.disabled_at is not None else "active"
    return f"{account.user.id}  {state:<8}  {timestamp(account.user.created_at)}  {account.user.email}"
