"""The contract of what operators look up, for the fake and for PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from attrs import evolve

from project_service.audit import Event
from project_service.auth.lookups import EntryFilter, Lookups, UserFilter
from project_service.auth.postgres import Repository
from project_service.auth.values import Account, Email
from tests.contracts.auth.users import HASH, HERE, HOUR, NOW, SECOND, contract, event, made


async def some(repository: Repository, name: str, count: int = 3) -> list[str]:
    """Users with ``name`` in their addresses, one second after another from long after all others: their ids."""
    ids = []
    for number in range(count):
        email = Email.parse(f"{number}.{name}@example.test")
        account = await made(repository, email, at=NOW + 1000 * HOUR + number * SECOND)
        ids.append(account.user.id)
    return ids


def ids(accounts: list[Account]) -> list[str]:
    return [one.user.id for one in accounts]


def place(account: Account) -> Any:
    return account.user.created_at, account.user.id


@contract
async def test_users_in_the_order_of_their_creation_or_the_newest_first(
    repository: Repository, lookups: Lookups
) -> None:
    await made(repository)
    theirs = await some(repository, uuid.uuid4().hex)
    for newest_first in (False, True):
        seen, after = [], None
        while page := await lookups.users(UserFilter(), after, 2, newest_first=newest_first):
            assert len(page) <= 2
            seen += ids(page)
            after = place(page[-1])
        assert len(seen) == len(set(seen)) > 3
        wanted = list(reversed(theirs)) if newest_first else theirs
        assert [one for one in seen if one in theirs] == wanted


@contract
async def test_users_are_found_by_a_part_of_their_address(repository: Repository, lookups: Lookups) -> None:
    name = uuid.uuid4().hex
    theirs = await some(repository, name)
    await some(repository, uuid.uuid4().hex)
    for part in (name, f".{name}", name[3:], f"{name}@exam", f"{name}@example.test"):
        found = await lookups.users_by_address(UserFilter(part), "", 9)
        assert ids(found) == theirs, part
        assert found[0] == await repository.find_user(theirs[0])
    first = await lookups.users_by_address(UserFilter(name), "", 2)
    assert ids(first) == theirs[:2]
    rest = await lookups.users_by_address(UserFilter(name), first[-1].user.email, 2)
    assert ids(rest) == theirs[2:]
    assert await lookups.users_by_address(UserFilter(name), rest[-1].user.email, 2) == []


@contract
async def test_a_part_of_an_address_is_no_pattern(repository: Repository, lookups: Lookups) -> None:
    name = uuid.uuid4().hex
    for sign in "%_x":
        await made(repository, Email.parse(f"a{sign}{name}@example.test"))
    for part in (f"a%{name}", f"a_{name}"):
        (found,) = await lookups.users_by_address(UserFilter(part), "", 9)
        assert part in found.user.email
    for part in (f"\\{name}", f"a\\%{name}", f"{name}%", "'"):
        assert await lookups.users_by_address(UserFilter(part), "", 9) == []


@contract
async def test_users_are_found_by_what_they_are(repository: Repository, lookups: Lookups) -> None:
    name, at = uuid.uuid4().hex, NOW + 2000 * HOUR

    async def make(first: str | None, confirmed: bool, **more: Any) -> str:
        account = await repository.create_user(
            email=None if first is None else Email.parse(f"{first}{name}@example.test"),
            password_hash=HASH,
            metadata={},
            confirmed=confirmed,
            session=None,
            event=event(at=at),
            **more,
        )
        assert account is not None
        return account.user.id

    plain, waits = await make("a", True), await make("b", False)
    anonymous = await make(None, False, is_anonymous=True)
    disabled = await make("c", True)
    await repository.set_disabled(disabled, True, event("disable_user"))
    everybody = {plain, waits, anonymous, disabled}
    before = (at - SECOND, str(uuid.UUID(int=0)))

    async def both(**flags: Any) -> set[str]:
        """Asserts that a search by address finds the same ones, if they have one."""
        found = set(ids(await lookups.users(UserFilter(**flags), before, 99)))
        by_address = set(ids(await lookups.users_by_address(UserFilter(name, **flags), "", 9)))
        assert by_address == (found & everybody) - {anonymous}
        return found & everybody

    assert await both() == everybody
    assert await both(disabled=True) == {disabled}
    assert await both(disabled=False) == {plain, waits, anonymous}
    assert await both(email_confirmed=True) == {plain, disabled}
    assert await both(email_confirmed=False) == {waits}
    assert await both(anonymous=True) == {anonymous}
    assert await both(anonymous=False) == {plain, waits, disabled}
    assert await both(disabled=False, email_confirmed=True) == {plain}
    assert await both(disabled=True, anonymous=True) == set()


@contract
async def test_entries_of_the_audit_are_found_by_whom_and_what_they_are_about(
    repository: Repository, lookups: Lookups
) -> None:
    about, subject, action = str(uuid.uuid4()), uuid.uuid4().hex, f"act.{uuid.uuid4().hex}"
    at = NOW + 3000 * HOUR

    async def record(number: int, action: str, **more: Any) -> None:
        await repository.record(
            Event(at + number // 2 * SECOND, action, "ok", "service", origin=HERE, **more)
        )

    for number in range(3):
        await record(number, action, user_id=about, email="ada@example.test")
    await record(3, action, subject=subject)
    await record(4, "other", user_id=about)

    async def found(**wanted: str) -> list[str]:
        return [
            f"{one.action == action} {one.user_id == about}"
            for one in await lookups.entries(EntryFilter(**wanted), None, 9)
        ]

    assert await found(user_id=about) == ["False True", "True True", "True True", "True True"]
    assert await found(action=action) == ["True False", "True True", "True True", "True True"]
    assert await found(user_id=about, action="other") == ["False True"]
    assert await found(subject=subject) == ["True False"]
    assert await found(subject="") == []
    assert await found(subject=subject, user_id=about) == []
    newest = (await lookups.entries(EntryFilter(), None, 1))[0]
    (first,) = await lookups.entries(EntryFilter(subject=subject), None, 2)
    assert first == evolve(newest, id=first.id, at=at + SECOND, action=action, subject=subject, user_id=None)
    assert (first.actor, first.result, first.actor_id, first.email) == ("service", "ok", None, None)
    assert (first.address, first.user_agent, first.request_id) == (
        HERE.address,
        HERE.user_agent,
        HERE.request_id,
    )
    await pages_in_order(lambda before: lookups.entries(EntryFilter(user_id=about), before, 3), 4)


async def pages_in_order(page: Callable[[Any], Awaitable[list[Any]]], count: int) -> None:
    seen: list[Any] = []
    before = None
    while entries := await page(before):
        seen += [(one.at, one.id) for one in entries]
        before = seen[-1]
    assert seen == sorted(set(seen), reverse=True)
    assert len(seen) == count
