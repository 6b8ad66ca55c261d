"""Helpers for the contract suites of the repository of authentication."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest_twisted
from twisted.internet.defer import gatherResults

from project_service.audit import Event, Origin
from project_service.auth.postgres import Repository
from project_service.auth.values import Account, Answer, Email, Limit, NewChallenge, NewSession, User
from project_service.lifecycle import start

NOW = datetime(2026, 11, 21, 3, 4, 5, 678000, tzinfo=UTC)


HOUR = timedelta(hours=1)


MINUTE = timedelta(minutes=1)


SECOND = timedelta(seconds=1)


LONG_AGO = NOW - 1000 * HOUR


WINDOW = Limit(3, 15 * MINUTE)


HASH = b"$2b$04$" + b"a" * 53


OTHER_HASH = b"$2b$04$" + b"b" * 53


HERE = Origin("192.0.2.1", "a browser", "request-1")


def contract(test: Callable[..., Any]) -> Any:
    return pytest_twisted.ensureDeferred(test)


def address() -> Email:
    return Email.parse(f"Somebody.{uuid.uuid4().hex}@example.test")


def digest() -> bytes:
    return uuid.uuid4().bytes * 2


def session(at: datetime = NOW) -> NewSession:
    return NewSession(str(uuid.uuid4()), digest(), at, at + 30 * 24 * HOUR, at + HOUR, HERE)


def event(action: str = "test", at: datetime = NOW) -> Event:
    return Event(at, action, origin=HERE)


async def made(
    repository: Repository, email: Email | None = None, first: NewSession | None = None, at: datetime = NOW
) -> Account:
    account = await repository.create_user(
        email=email or address(),
        password_hash=HASH,
        metadata={"a": [1, None]},
        confirmed=False,
        session=first,
        event=event(at=at),
    )
    assert account is not None
    return account


async def all_of(*work: Any) -> list[Any]:
    return list(await gatherResults([start(one) for one in work]))


async def rotate(
    repository: Repository,
    old: bytes,
    new: bytes,
    at: datetime = NOW,
    salt: bytes = b"s" * 32,
    origin: Origin = HERE,
) -> Any:
    return await repository.rotate_refresh_token(
        digest=old,
        successor=new,
        salt=salt,
        now=at,
        reuse_window=10 * SECOND,
        expires_at=at + 24 * HOUR,
        access_expires_at=at + HOUR,
        origin=origin,
    )


async def issue(
    repository: Repository,
    email: Email,
    at: datetime = NOW,
    purpose: Any = "recovery",
    *,
    pause: timedelta = MINUTE,
    code_hash: bytes | None = None,
    data: Mapping[str, Any] = {},
) -> tuple[bytes, Any]:
    """A challenge by mail: the digest of its token, and whose it is if somebody gets it."""
    key = digest()
    otherwise = None if purpose == "confirmation" else purpose
    challenge = NewChallenge(
        purpose, otherwise, key, at, at + HOUR, email=email, code_hash=code_hash, data=data
    )
    issued = await repository.issue(challenge, pause, event("mail", at))
    return key, issued and issued[0]


async def confirm(repository: Repository, key: bytes, begins: NewSession, how: Event) -> User | None:
    """Who has confirmed the address by the token of ``key``."""
    redeemed = await repository.redeem(Answer(("confirmation",), key), begins, None, how)
    return None if redeemed is None else redeemed.user
