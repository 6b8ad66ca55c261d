"""What an operator is shown about users besides their accounts: who they are, their sessions, and the audit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import frozen

from project_service import base64url, whole_numbers
from project_service.audit import Event, Origin
from project_service.auth import errors
from project_service.auth.admin import (
    Administration,
    Page,
    cursor_after,
    page_size,
    parse_user_id,
    read_cursor,
)
from project_service.auth.lookups import Entry, EntryFilter, Lookups, UserFilter
from project_service.auth.values import EMAIL_MAX_BYTES, Passkey, Profile, SessionInfo, folded
from project_service.errors import validation_failed
from project_service.lifecycle import timestamp

ORDERS = ("oldest", "newest")
FLAGS = ("disabled", "email_confirmed", "anonymous")
# The longest name of an action or a subject.
_NAME_CHARACTERS = 1024


@frozen
class Details:
    """A user with their ways in, factors and passkeys."""

    profile: Profile
    passkeys: tuple[Passkey, ...]

    def view(self) -> dict[str, Any]:
        account, user = self.profile.account, self.profile.user
        return {
            "user": account.view(),
            "app_metadata": dict(user.app_metadata),
            "is_anonymous": user.is_anonymous,
            "has_password": account.password_hash != b"",
            "updated_at": _moment(user.updated_at),
            "confirmed_at": _moment(user.confirmed_at),
            "invited_at": _moment(self.profile.invited_at),
            "disabled_until": _moment(account.disabled_until),
            "identities": [
                {**one.view(), "last_sign_in_at": _moment(one.last_sign_in_at)}
                for one in self.profile.identities
            ],
            "factors": [one.view() for one in self.profile.factors],
            "passkeys": [one.view() for one in self.passkeys],
        }


def _moment(at: datetime | None) -> str | None:
    return None if at is None else timestamp(at)


@frozen
class Inspection:
    administration: Administration
    lookups: Lookups

    async def page(self, query: Mapping[str, str | None]) -> Page:
        """A page of the users that ``query`` asks for, by the parameters of ``GET /admin/users``. Raises
        ``validation_failed``."""
        size, cursor = page_size(query.get("limit")), query.get("cursor")
        wanted, order = _user_filter(query), query.get("order")
        if order is not None and (order not in ORDERS or wanted.email):
            why = "does not go with email" if wanted.email else f"must be one of {', '.join(ORDERS)}"
            raise validation_failed({"order": why})
        if wanted.email:
            after = "" if cursor is None else _read_text(cursor)
            accounts = await self.lookups.users_by_address(wanted, after, size + 1)
        else:
            behind = None if cursor is None else read_cursor(cursor)
            newest_first = order == "newest"
            accounts = await self.lookups.users(wanted, behind, size + 1, newest_first=newest_first)
        if len(accounts) <= size:
            return Page(accounts, None)
        last = accounts[size - 1]
        following = _text_cursor(folded(last.user.email)) if wanted.email else cursor_after(last)
        return Page(accounts[:size], following)

    async def details(self, id_or_email: str) -> Details:
        """Raises ``user_not_found``."""
        account = await self.administration.find(id_or_email)
        repository = self.administration.repository
        profile = await repository.profile(account.user.id)
        if profile is None:
            raise errors.user_not_found()
        return Details(profile, tuple(await repository.passkeys(account.user.id)))

    async def sessions(self, id_or_email: str) -> list[SessionInfo]:
        """The newest sessions of a user that go on, up to ``MAX_LISTED_SESSIONS``. Raises ``user_not_found``."""
        account = await self.administration.find(id_or_email)
        return await self.administration.repository.list_sessions(account.user.id, self.administration.now())

    async def end_session(self, id_or_email: str, session_id: str, origin: Origin) -> None:
        """End one of the sessions that are listed. Raises ``user_not_found`` and ``session_not_found``."""
        account = await self.administration.find(id_or_email)
        session_id = session_id.lower()
        sessions = await self.sessions(account.user.id)
        if session_id not in {session.id for session in sessions}:
            raise errors.session_not_found()
        event = Event(
            self.administration.now(),
            "end_session",
            actor=self.administration.actor,
            user_id=account.user.id,
            email=account.user.email,
            origin=origin,
        )
        repository = self.administration.repository
        for ended, until in await repository.end_sessions(account.user.id, event, only=session_id):
            self.administration.on_ended(ended, until)

    async def entries(self, query: Mapping[str, str | None]) -> tuple[list[Entry], str | None]:
        """A page of the audit, the newest entry first, by the parameters of ``GET /admin/audit``; and the cursor of
        the next page. Raises ``validation_failed``, and ``user_not_found`` for an address that is nobody's."""
        size, cursor = page_size(query.get("limit")), query.get("cursor")
        wanted = EntryFilter(
            await self._user_of(query.get("user")), _name(query, "action"), _name(query, "subject")
        )
        before = None if cursor is None else _read_entry(cursor)
        entries = await self.lookups.entries(wanted, before, size + 1)
        if len(entries) <= size:
            return entries, None
        last = entries[size - 1]
        return entries[:size], base64url.encode(f"{last.at.isoformat()} {last.id}".encode())

    async def _user_of(self, id_or_email: str | None) -> str | None:
        """The id of a user, who may have been deleted if it is the id that is given."""
        if id_or_email is None or "@" not in id_or_email:
            return None if id_or_email is None else parse_user_id(id_or_email)
        return (await self.administration.find(id_or_email)).user.id


def _user_filter(query: Mapping[str, str | None]) -> UserFilter:
    email = query.get("email") or ""
    if len(email.encode("utf-8", "surrogatepass")) > EMAIL_MAX_BYTES or "\0" in email:
        raise validation_failed({"email": f"must be part of an address, at most {EMAIL_MAX_BYTES} bytes"})
    flags: dict[str, bool | None] = {}
    for name in FLAGS:
        given = query.get(name)
        if given not in (None, "true", "false"):
            raise validation_failed({name: "must be true or false"})
        flags[name] = None if given is None else given == "true"
    # Without an @ it may be of either part, which are folded differently; the domain is in lower case anyway.
    return UserFilter(folded(email) if "@" in email else folded(f"{email}@")[:-1], **flags)


def _name(query: Mapping[str, str | None], name: str) -> str | None:
    given = query.get(name)
    if given is not None and (not 0 < len(given) <= _NAME_CHARACTERS or "\0" in given):
        raise validation_failed({name: f"must have 1 to {_NAME_CHARACTERS} characters"})
    return given


def _text_cursor(text: str) -> str:
    return base64url.encode(text.encode())


def _read_text(cursor: str) -> str:
    try:
        text = base64url.decode(cursor).decode()
    except ValueError:
        text = ""
    if not text or "\0" in text:
        raise validation_failed({"cursor": "is not one that was handed out"})
    return text


def _read_entry(cursor: str) -> tuple[datetime, int]:
    try:
        moment, _, number = base64url.decode(cursor).decode("ascii").partition(" ")
        at, entry = datetime.fromisoformat(moment), whole_numbers.from_digits(number)
        if at.tzinfo is None or entry is None or not 0 <= entry < 2**63:
            raise ValueError
        return at.astimezone(UTC), entry
    except (ValueError, OverflowError):
        raise validation_failed({"cursor": "is not one that was handed out"}) from None
