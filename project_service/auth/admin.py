"""What an operator may do with users, with the service key or at the command line."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import frozen

from project_service import base64url, whole_numbers
from project_service.auth import errors, passwords
from project_service.auth.accounts import checked
from project_service.auth.passwords import Hashes
from project_service.auth.repository import Actor, Attempts, Event, Sessions, Users
from project_service.auth.values import Account, Email, Origin, email_of
from project_service.errors import ApiError, refuse_unknown, validation_failed
from project_service.lifecycle import shield

PAGE, LARGEST_PAGE = 50, 1000
# With a higher cost each login would keep a core busy for minutes.
HIGHEST_IMPORTED_COST = 16
CHANGEABLE = ("disabled", "metadata", "password")


@frozen
class Page:
    accounts: list[Account]
    next_cursor: str | None


@frozen
class Administration:
    """``ended`` is called with the id of each session that is ended here, and the Unix time until which access tokens
    of it may be valid. ``actor`` is who the audit says has done it."""

    users: Users
    sessions: Sessions
    attempts: Attempts
    hashes: Hashes
    now: Callable[[], datetime]
    password_min_bytes: Callable[[], int]
    ended: Callable[[str, float], None]
    actor: Actor

    async def page(self, cursor: str | None, limit: str | None) -> Page:
        """A page of the users, in the order in which they were created. ``cursor`` is the ``next_cursor`` of the page
        before. Raises ``validation_failed``."""
        size = page_size(limit)
        found = await self.users.page(None if cursor is None else read_cursor(cursor), size + 1)
        if len(found) <= size:
            return Page(found, None)
        return Page(found[:size], cursor_after(found[size - 1]))

    async def find(self, id_or_email: str) -> Account:
        """Raises ``user_not_found``."""
        if "@" in id_or_email:
            return _there(await self.users.find_by_email(_email(id_or_email)))
        return _there(await self.users.find(user_id(id_or_email)))

    async def create(self, wanted: Mapping[str, Any], origin: Origin) -> Account:
        """Create a user with a ``password``, with an imported bcrypt ``password_hash``, or with neither; then he sets
        one by "forgotten password". An imported user may keep his ``id``.

        ``email_confirmed`` is true by default. Raises ``email_taken``, ``id_taken``, ``weak_password`` and
        ``validation_failed``.
        """
        known = ("id", "email", "password", "password_hash", "metadata", "email_confirmed")
        refuse_unknown(wanted, known)
        key = _imported_id(wanted["id"]) if "id" in wanted else None
        email = Email.parse_new(wanted.get("email"))
        confirmed = wanted.get("email_confirmed", True)
        if not isinstance(confirmed, bool):
            raise validation_failed({"email_confirmed": "must be true or false"})
        metadata = checked(wanted.get("metadata"))
        account = await self.users.create(
            user_id=key,
            email=email,
            password_hash=await self._hash(wanted, email),
            metadata=metadata,
            confirmed=confirmed,
            session=None,
            event=self._event("create_user", None, origin, email.address),
        )
        if account is None:
            raise errors.email_taken()
        return account

    async def change(self, identity: str, wanted: Mapping[str, Any], origin: Origin) -> Account:
        """Set ``disabled`` or ``password``, both of which end all sessions, or ``metadata``.

        Raises ``user_not_found``, ``weak_password`` and ``validation_failed``.
        """
        refuse_unknown(wanted, CHANGEABLE)
        # Shielded, so that of several changes not only some are made if the client hangs up.
        return await shield(self._change(identity, wanted, origin))

    async def _change(self, identity: str, wanted: Mapping[str, Any], origin: Origin) -> Account:
        account = await self.find(identity)
        key, email = account.user.id, email_of(account.user)
        metadata = checked(wanted["metadata"]) if "metadata" in wanted else None
        disabled = wanted.get("disabled")
        if "disabled" in wanted and not isinstance(disabled, bool):
            raise validation_failed({"disabled": "must be true or false"})
        hashed = await self._hash(wanted, email) if "password" in wanted else None
        if hashed is not None:
            event = self._event("set_password", key, origin, email.address)
            account = _there(await self.users.set_password(key, hashed, None, event))
        if metadata is not None:
            event = self._event("set_metadata", key, origin, email.address)
            account = _there(await self.users.set_metadata(key, metadata, event))
        if disabled is not None:
            event = self._event("disable_user" if disabled else "enable_user", key, origin, email.address)
            account = _there(await self.users.set_disabled(key, disabled, event))
        return account

    async def delete(self, identity: str, origin: Origin) -> None:
        """Raises ``user_not_found``, and ``user_in_use`` if rows of the project's own tables refer to the user."""
        account = await self.find(identity)
        event = self._event("delete_user", account.user.id, origin, account.user.email)
        if not await self.users.delete(account.user.id, event):
            raise errors.user_not_found()

    async def end_sessions(self, identity: str, origin: Origin) -> int:
        """End all sessions of a user and return their number. Raises ``user_not_found``."""
        account = await self.find(identity)
        event = self._event("end_sessions", account.user.id, origin, account.user.email)
        gone = await self.sessions.end(account.user.id, event)
        for session_id, until in gone:
            self.ended(session_id, until)
        return len(gone)

    async def unlock(self, identity: str, origin: Origin) -> Account:
        """Let a user log in again after too many wrong passwords. Raises ``user_not_found``."""
        account = await self.find(identity)
        event = self._event("unlock_user", account.user.id, origin, account.user.email)
        await self.attempts.unlock(account, event)
        return account

    async def _hash(self, wanted: Mapping[str, Any], email: Email) -> bytes | None:
        if "password_hash" in wanted:
            if "password" in wanted:
                raise validation_failed({"password_hash": "cannot go with a password"})
            return _imported(wanted["password_hash"])
        if "password" not in wanted:
            return None
        raw = passwords.acceptable(wanted["password"], email, self.password_min_bytes())
        return await self.hashes.hash(raw)

    def _event(self, action: str, about: str | None, origin: Origin, email: str) -> Event:
        return Event(self.now(), action, actor=self.actor, user_id=about, email=email, origin=origin)


def user_id(text: str) -> str:
    """A user's id in the form in which it is stored. Raises ``user_not_found`` for a text that is no UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise errors.user_not_found() from None


def _imported_id(value: object) -> str:
    """Raises ``validation_failed``."""
    try:
        return str(uuid.UUID(value if isinstance(value, str) else ""))
    except ValueError:
        raise validation_failed({"id": "must be a UUID"}) from None


def _email(text: str) -> Email:
    """The address. Raises ``user_not_found`` for a text that is none, since nobody has it."""
    try:
        return Email.parse(text)
    except ApiError:
        raise errors.user_not_found() from None


def _there(account: Account | None) -> Account:
    if account is None:
        raise errors.user_not_found()
    return account


def _imported(value: object) -> bytes:
    cost = passwords.cost_of(value.encode("utf-8", "replace")) if isinstance(value, str) else None
    if cost is None or cost > HIGHEST_IMPORTED_COST:
        raise validation_failed(
            {
                "password_hash": f"must be a bcrypt hash ($2a$, $2b$, $2y$) of a cost up to {HIGHEST_IMPORTED_COST}"
            }
        )
    assert isinstance(value, str)
    return value.encode("ascii")


def page_size(limit: str | None) -> int:
    """How many entries a page has. Raises ``validation_failed``."""
    if limit is None:
        return PAGE
    size = whole_numbers.from_digits(limit)
    if size is None or not 1 <= size <= LARGEST_PAGE:
        raise validation_failed({"limit": f"must be a number from 1 to {LARGEST_PAGE}"})
    return size


def cursor_after(last: Account) -> str:
    """The cursor for the page that begins after this account."""
    text = f"{last.user.created_at.isoformat()} {last.user.id}"
    return base64url.encode(text.encode())


def read_cursor(cursor: str) -> tuple[datetime, str]:
    """The inverse of ``cursor_after``: (created, id) of the account. Raises ``validation_failed`` for anything
    else."""
    try:
        text = base64url.decode(cursor).decode("ascii")
        moment, _, key = text.partition(" ")
        when = datetime.fromisoformat(moment)
        if when.tzinfo is None:
            raise ValueError
        # In UTC, because PostgreSQL does not accept all of Python's offsets. The conversion also fails for a moment
        # that is outside Python's calendar in UTC.
        return when.astimezone(UTC), str(uuid.UUID(key))
    except (ValueError, OverflowError):
        raise validation_failed({"cursor": "is not one that was handed out"}) from None
