"""What an operator may do with users, with the service key or at the command line."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import evolve, frozen

from project_service import base64url, whole_numbers
from project_service.audit import Actor, Event, Origin
from project_service.auth import errors, passwords
from project_service.auth.passwords import Hashes
from project_service.auth.postgres import Repository
from project_service.auth.values import (
    APP_METADATA,
    Account,
    Email,
    Profile,
    User,
    check_app_metadata,
    check_metadata,
    email_of,
    merged,
)
from project_service.errors import ApiError, validation_failed
from project_service.lifecycle import shielded

PAGE_SIZE, MAX_PAGE_SIZE = 50, 1000
# With a higher cost each login would keep a core busy for minutes.
MAX_IMPORTED_COST = 16


@frozen
class Page:
    accounts: list[Account]
    next_cursor: str | None


@frozen
class Administration:
    """``on_ended`` is called with the id of each session that is ended here, and the Unix time until which access
    tokens of it may be valid. ``actor`` is who has done it according to the audit."""

    repository: Repository
    hashes: Hashes
    now: Callable[[], datetime]
    password_rules: Callable[[], passwords.Rules]
    on_ended: Callable[[str, float], None]
    actor: Actor

    async def page(self, cursor: str | None, limit: str | None) -> Page:
        """A page of the users, in the order in which they were created. ``cursor`` is the ``next_cursor`` of the page
        before. Raises ``validation_failed``."""
        size = page_size(limit)
        after = None if cursor is None else read_cursor(cursor)
        accounts = await self.repository.list_users(after, size + 1)
        if len(accounts) <= size:
            return Page(accounts, None)
        return Page(accounts[:size], cursor_after(accounts[size - 1]))

    async def numbered_page(self, page: int, size: int) -> tuple[list[Profile], int]:
        """The users of a page, which are counted from 1, the newest first; and how many users there are at all."""
        return await self.repository.users_from((page - 1) * size, size)

    async def find(self, id_or_email: str) -> Account:
        """The account of an id or an address. Raises ``user_not_found``."""
        if "@" not in id_or_email:
            return _existing(await self.repository.find_user(parse_user_id(id_or_email)))
        try:
            email = Email.parse(id_or_email)
        except ApiError:
            raise errors.user_not_found() from None
        return _existing(await self.repository.find_user_by_email(email))

    async def profile(self, user_id: str) -> Profile:
        """The account of an id, with the user's ways in. Raises ``user_not_found``."""
        profile = await self.repository.profile(parse_user_id(user_id))
        if profile is None:
            raise errors.user_not_found()
        return profile

    async def create(
        self,
        email: str | None,
        origin: Origin,
        *,
        user_id: str | None = None,
        password: str | None = None,
        password_hash: bytes | None = None,
        metadata: Mapping[str, Any] | None = None,
        app_metadata: Mapping[str, Any] | None = None,
        confirmed: bool = True,
        invited: bool = False,
        is_anonymous: bool = False,
    ) -> Account:
        """Create a user with a ``password``, with an imported bcrypt ``password_hash``, or with neither; then the
        user sets one by "forgotten password". An imported user may keep a ``user_id``, and have no ``email``.

        Raises ``email_taken``, ``id_taken``, ``weak_password`` and ``validation_failed``.
        """
        address = None if email is None else Email.parse_new(email)
        if password is not None:
            if password_hash is not None:
                raise validation_failed({"password_hash": "cannot go with a password"})
            password_hash = await self._hash(password, address or Email("", ""))
        account = await self.repository.create_user(
            user_id=user_id,
            email=address,
            password_hash=password_hash,
            metadata=metadata or {},
            app_metadata=merged({} if address is None else APP_METADATA, app_metadata or {}),
            confirmed=confirmed,
            invited=invited,
            is_anonymous=is_anonymous,
            session=None,
            event=self._event("create_user", None, origin, None if address is None else address.address),
        )
        if account is None:
            raise errors.email_taken()
        return account

    # Shielded, so that of several changes not only some are made if the client hangs up.
    @shielded
    async def change(
        self,
        id_or_email: str,
        origin: Origin,
        *,
        disabled: bool | None = None,
        until: datetime | None = None,
        password: str | None = None,
        keep_sessions: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> Account:
        """Set ``disabled``, for good or ``until`` then, or ``password``, both of which end all sessions, or
        ``metadata``. With ``keep_sessions`` a new password ends none.

        Raises ``user_not_found`` and ``weak_password``.
        """
        account = await self.find(id_or_email)
        key, address = account.user.id, account.user.email
        if password is not None:
            hashed = await self._hash(password, email_of(account.user))
            event = self._event("set_password", key, origin, address)
            account = _existing(
                await self.repository.set_password(key, hashed, None, event, keep_sessions=keep_sessions)
            )
        if metadata is not None:
            event = self._event("set_metadata", key, origin, address)
            account = _existing(await self.repository.set_metadata(key, metadata, event))
        if disabled is not None:
            event = self._event("disable_user" if disabled else "enable_user", key, origin, address)
            account = _existing(await self.repository.set_disabled(key, disabled, event, until))
        return account

    @shielded
    async def revise(
        self,
        user_id: str,
        origin: Origin,
        *,
        metadata: Mapping[str, Any],
        app_metadata: Mapping[str, Any],
        confirm: bool,
        password: str | None,
        disabled: bool | None,
        until: datetime | None = None,
        email: str = "",
    ) -> Account:
        """As ``change``, but ``metadata`` and ``app_metadata`` are merged into the user's (``values.merged``), and
        with ``confirm`` the address counts as confirmed, ``email`` if it is given. If one of several changes is
        refused none is made, but that another address may be taken is found out only when the rest is done.

        Raises ``user_not_found``, ``weak_password``, ``validation_failed`` and ``email_taken``.
        """
        account = await self.find(user_id)
        address = Email.parse_new(email) if email else None
        if address is not None and address.key == email_of(account.user).key:
            address = None
        if address is not None and await self.repository.find_user_by_email(address) is not None:
            raise errors.email_taken()
        event = self._event("change_user", account.user.id, origin, account.user.email)

        def revised(user: User) -> User:
            # What SQL made larger than allowed may stay as it is.
            if metadata:
                user = evolve(user, metadata=check_metadata("user_metadata", merged(user.metadata, metadata)))
            if app_metadata:
                both = merged(user.app_metadata, app_metadata)
                user = evolve(user, app_metadata=check_app_metadata("app_metadata", both))
            return evolve(user, confirmed_at=user.confirmed_at or (event.at if confirm else None))

        revised(account.user)
        account = await self.change(user_id, origin, password=password, disabled=disabled, until=until)
        if address is not None:
            changed = self._event("change_email", account.user.id, origin, address.address)
            account = _existing(await self.repository.change_email(account.user.id, address, changed))
        if metadata or app_metadata or confirm:
            account = _existing(await self.repository.revise(account.user.id, revised, event))
        return account

    async def delete(self, id_or_email: str, origin: Origin) -> None:
        """Raises ``user_not_found``, and ``user_in_use`` if rows of the project's own tables refer to the user."""
        account = await self.find(id_or_email)
        event = self._event("delete_user", account.user.id, origin, account.user.email)
        if not await self.repository.delete_user(account.user.id, event):
            raise errors.user_not_found()

    async def end_sessions(self, id_or_email: str, origin: Origin) -> int:
        """End all sessions of a user and return their number. Raises ``user_not_found``."""
        account = await self.find(id_or_email)
        event = self._event("end_sessions", account.user.id, origin, account.user.email)
        ended = await self.repository.end_sessions(account.user.id, event)
        for session_id, until in ended:
            self.on_ended(session_id, until)
        return len(ended)

    async def delete_factors(
        self, id_or_email: str, origin: Origin, factor_id: str | None = None
    ) -> tuple[Account, int]:
        """Delete a user's second factors, or only that of ``factor_id``; the account, and how many there were. Raises
        ``user_not_found``."""
        account = await self.find(id_or_email)
        event = self._event("delete_factors", account.user.id, origin, account.user.email)
        return account, await self.repository.delete_factors(account.user.id, event, factor_id)

    async def delete_passkey(self, user_id: str, passkey_id: str, origin: Origin) -> None:
        """Raises ``user_not_found`` and ``passkey_not_found``."""
        account = await self.find(user_id)
        event = self._event("delete_passkey", account.user.id, origin, account.user.email)
        if not await self.repository.delete_passkey(account.user.id, passkey_id, event):
            raise errors.passkey_not_found()

    async def unlock(self, id_or_email: str, origin: Origin) -> Account:
        """Let a user log in again after too many wrong passwords; their account. Raises ``user_not_found``."""
        account = await self.find(id_or_email)
        event = self._event("unlock_user", account.user.id, origin, account.user.email)
        await self.repository.unlock(account, event)
        return account

    async def _hash(self, password: str, email: Email) -> bytes:
        return await self.hashes.hash(passwords.check_new(password, email, self.password_rules()))

    def _event(self, action: str, about: str | None, origin: Origin, email: str | None) -> Event:
        return Event(self.now(), action, actor=self.actor, user_id=about, email=email, origin=origin)


def _existing(account: Account | None) -> Account:
    if account is None:
        raise errors.user_not_found()
    return account


def parse_user_id(text: str) -> str:
    """A user's id in the form in which it is stored. Raises ``user_not_found`` for a text that is no UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise errors.user_not_found() from None


def imported_id(name: str, value: object) -> str:
    """The id that an imported user keeps. Raises ``validation_failed`` for the member ``name``."""
    try:
        return str(uuid.UUID(value if isinstance(value, str) else ""))
    except ValueError:
        raise validation_failed({name: "must be a UUID"}) from None


def imported_hash(name: str, value: object) -> bytes:
    """The hash of an imported user's password. Raises ``validation_failed`` for the member ``name``."""
    stored = value.encode("utf-8", "replace") if isinstance(value, str) else b""
    cost = passwords.cost_of(stored)
    if cost is None or cost > MAX_IMPORTED_COST:
        raise validation_failed(
            {name: f"must be a bcrypt hash ($2a$, $2b$, $2y$) of a cost up to {MAX_IMPORTED_COST}"}
        )
    return stored


def page_size(limit: str | None) -> int:
    """How many entries a page has. Raises ``validation_failed``."""
    if limit is None:
        return PAGE_SIZE
    size = whole_numbers.from_digits(limit)
    if size is None or not 1 <= size <= MAX_PAGE_SIZE:
        raise validation_failed({"limit": f"must be a number from 1 to {MAX_PAGE_SIZE}"})
    return size


def cursor_after(last: Account) -> str:
    """The cursor for the page that begins after this account."""
    text = f"{last.user.created_at.isoformat()} {last.user.id}"
    return base64url.encode(text.encode())


def read_cursor(cursor: str) -> tuple[datetime, str]:
    """The inverse of ``cursor_after``: (created, id) of the account. Raises ``validation_failed`` for anything
    else."""
    try:
        moment, _, key = base64url.decode(cursor).decode("ascii").partition(" ")
        created = datetime.fromisoformat(moment)
        if created.tzinfo is None:
            raise ValueError
        # In UTC, because PostgreSQL does not accept all of Python's offsets. The conversion also fails for a moment
        # that is outside Python's calendar in UTC.
        return created.astimezone(UTC), str(uuid.UUID(key))
    except (ValueError, OverflowError):
        raise validation_failed({"cursor": "is not one that was handed out"}) from None
