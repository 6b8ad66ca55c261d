"""What a store of users does: one suite for the fake in memory and for PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
import pytest_twisted
from attrs import evolve
from twisted.internet.defer import gatherResults

from project_service.auth.assemble import sql_stores
from project_service.auth.model import Account, Email, Origin
from project_service.auth.ports import Event, Limit, NewSession, Stores
from project_service.database import dsn as dsns
from project_service.database.connect import Connector
from project_service.database.pool import Pool
from project_service.deferreds import start
from tests.auth_fakes import MemoryStore
from tests.live.services import wait

NOW = datetime(2026, 11, 21, 3, 4, 5, 678000, tzinfo=UTC)
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
WINDOW = Limit(3, 15 * MINUTE)
HASH = b"$2b$04$" + b"a" * 53
OTHER_HASH = b"$2b$04$" + b"b" * 53
HERE = Origin("192.0.2.1", "a browser", "request-1")


@pytest.fixture(params=["fake", "postgresql"])
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    if request.param == "fake":
        yield MemoryStore().stores()
        return
    from twisted.internet import reactor

    dsn = request.getfixturevalue("module_database")
    pool = Pool(Connector(reactor, dsns.parse(dsn), 10.0, timezone="UTC"), 8, 5.0, reactor)
    yield sql_stores(pool)
    wait(pool.close)


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


async def made(stores: Stores, email: Email | None = None, first: NewSession | None = None) -> Account:
    account = await stores.users.create(
        email=email or address(),
        password_hash=HASH,
        metadata={"a": [1, None]},
        confirmed=False,
        session=first,
        event=event(),
    )
    assert account is not None
    return account


async def all_of(*work: Any) -> list[Any]:
    return list(await gatherResults([start(one) for one in work]))


async def rotate(stores: Stores, old: bytes, new: bytes, at: datetime = NOW, salt: bytes = b"s" * 32) -> Any:
    return await stores.sessions.rotate(
        digest=old,
        successor=new,
        salt=salt,
        now=at,
        reuse_window=10 * SECOND,
        expires_at=at + 24 * HOUR,
        access_expires_at=at + HOUR,
        origin=HERE,
    )


@contract
async def test_a_user_is_kept_as_he_was_made(stores: Stores) -> None:
    email = address()
    account = await made(stores, email)
    assert (account.user.email, account.user.created_at) == (email.address, NOW)
    assert (account.user.metadata, account.password_hash) == ({"a": [1, None]}, HASH)
    assert (account.confirmed_at, account.disabled_at) == (None, None)
    assert await stores.users.find(account.user.id) == account
    assert await stores.users.find_by_email(email) == account
    assert await stores.users.find(str(uuid.uuid4())) is None


@contract
async def test_a_number_beyond_64_bits_can_be_sent_again(stores: Stores) -> None:
    account = await made(stores)
    await stores.users.set_metadata(account.user.id, {"a": [1e20, -1e308], "b": 1}, event())
    found = await stores.users.find(account.user.id)
    assert found is not None
    assert orjson.loads(orjson.dumps(found.view()["metadata"])) == {"a": [1e20, -1e308], "b": 1}


@contract
async def test_of_many_signups_of_one_address_at_once_in_any_letter_case_one_wins(stores: Stores) -> None:
    name = uuid.uuid4().hex
    emails = [
        Email.parse(text) for text in (f"ß{name}@x.test", f"SS{name}@x.test", f"ss{name.upper()}@X.TEST")
    ]

    async def attempt(email: Email) -> Account | None:
        return await stores.users.create(
            email=email, password_hash=HASH, metadata={}, confirmed=False, session=None, event=event()
        )

    found = await all_of(*(attempt(email) for email in emails * 3))
    assert sum(account is not None for account in found) == 1


@contract
async def test_a_session_starts_only_for_the_password_that_was_checked(stores: Stores) -> None:
    account = await made(stores)
    assert await stores.sessions.start(account, None, session(), event()) == account.user
    stale = evolve(account, password_hash=OTHER_HASH)
    assert await stores.sessions.start(stale, None, session(), event()) is None
    assert await stores.sessions.start(account, OTHER_HASH, session(), event()) == account.user
    again = await stores.users.find(account.user.id)
    assert again is not None
    assert (again.password_hash, again.last_login_at) == (OTHER_HASH, NOW)
    await stores.users.set_disabled(account.user.id, True, event())
    assert await stores.sessions.start(again, None, session(), event()) is None


@contract
async def test_a_refresh_token_is_rotated_then_repeated_then_stolen(stores: Stores) -> None:
    first = session()
    account = await made(stores, first=first)
    child, grandchild = digest(), digest()
    rotated = await rotate(stores, first.digest, child, salt=b"1" * 32)
    assert (rotated.outcome, rotated.session_id, rotated.user) == ("rotated", first.id, account.user)
    repeated = await rotate(stores, first.digest, digest(), NOW + 9 * SECOND, salt=b"2" * 32)
    assert (repeated.outcome, repeated.salt) == ("repeated", b"1" * 32)
    assert (await rotate(stores, child, grandchild, NOW + 9 * SECOND)).outcome == "rotated"
    # No longer the immediate parent, however short ago.
    assert (await rotate(stores, first.digest, digest(), NOW + 9 * SECOND)).outcome == "stolen"
    assert await rotate(stores, grandchild, digest(), NOW + 10 * SECOND) is None
    assert await stores.sessions.alive(account.user.id, NOW) == []
    assert first.id in dict(await stores.sessions.revoked(NOW))


@contract
async def test_a_repeat_after_the_window_is_theft(stores: Stores) -> None:
    first = session()
    await made(stores, first=first)
    await rotate(stores, first.digest, digest())
    assert (await rotate(stores, first.digest, digest(), NOW + 10 * SECOND)).outcome == "stolen"


@contract
async def test_fifty_refreshes_with_one_token_at_once_rotate_once(stores: Stores) -> None:
    first = session()
    account = await made(stores, first=first)
    salts = [bytes([n]) * 32 for n in range(50)]
    found = await all_of(*(rotate(stores, first.digest, digest(), salt=salt) for salt in salts))
    assert sorted(one.outcome for one in found) == ["repeated"] * 49 + ["rotated"]
    assert len({one.salt for one in found if one.outcome == "repeated"}) == 1
    assert len(await stores.sessions.alive(account.user.id, NOW)) == 1


@contract
async def test_unknown_expired_and_ended_refresh_tokens_are_nothing(stores: Stores) -> None:
    assert await rotate(stores, digest(), digest()) is None
    first = session()
    account = await made(stores, first=first)
    assert await rotate(stores, first.digest, digest(), first.expires_at) is None
    await stores.sessions.end(account.user.id, event())
    assert await rotate(stores, first.digest, digest()) is None


@contract
async def test_sessions_end_one_all_or_all_but_one(stores: Stores) -> None:
    first, second, third = session(), session(NOW + SECOND), session(NOW + 2 * SECOND)
    account = await made(stores, first=first)
    other = await made(stores, first=session())
    for one in (second, third):
        await stores.sessions.start(account, None, one, event())
    alive = await stores.sessions.alive(account.user.id, NOW)
    assert [one.id for one in alive] == [third.id, second.id, first.id]
    assert (alive[0].user_agent, alive[0].address) == ("a browser", "192.0.2.1")
    ended = await stores.sessions.end(account.user.id, event(), only=second.id)
    assert ended == [(second.id, (second.access_expires_at + MINUTE).timestamp())]
    assert await stores.sessions.end(account.user.id, event(), only=second.id) == []
    assert [key for key, _ in await stores.sessions.end(account.user.id, event(), but=third.id)] == [first.id]
    assert [one.id for one in await stores.sessions.alive(account.user.id, NOW)] == [third.id]
    assert len(await stores.sessions.end(account.user.id, event())) == 1
    assert {first.id, second.id, third.id} <= dict(await stores.sessions.revoked(NOW)).keys()
    assert first.id not in dict(await stores.sessions.revoked(NOW + 2 * HOUR))
    # By the store's own clock, hence long before and long after.
    assert first.id in dict(await stores.sessions.revoked(NOW, NOW - 36500 * 24 * HOUR))
    assert len(await stores.sessions.alive(other.user.id, NOW)) == 1


@contract
async def test_a_new_password_ends_the_other_sessions(stores: Stores) -> None:
    kept, gone = session(), session()
    account = await made(stores, first=kept)
    await stores.sessions.start(account, None, gone, event())
    changed = await stores.users.set_password(account.user.id, OTHER_HASH, kept.id, event())
    assert changed is not None and changed.password_hash == OTHER_HASH
    assert [one.id for one in await stores.sessions.alive(account.user.id, NOW)] == [kept.id]
    revoked = dict(await stores.sessions.revoked(NOW))
    assert gone.id in revoked and kept.id not in revoked


@contract
async def test_disabling_and_deleting_end_sessions_for_every_worker(stores: Stores) -> None:
    first, second = session(), session()
    disabled, deleted = await made(stores, first=first), await made(stores, first=second)
    found = await stores.users.set_disabled(disabled.user.id, True, event())
    assert found is not None and found.disabled_at == NOW
    assert await stores.users.delete(deleted.user.id, event()) is True
    assert await stores.users.delete(deleted.user.id, event()) is False
    assert await stores.users.find(deleted.user.id) is None
    assert {first.id, second.id} <= dict(await stores.sessions.revoked(NOW)).keys()
    enabled = await stores.users.set_disabled(disabled.user.id, False, event())
    assert enabled is not None and enabled.disabled_at is None
    assert await stores.users.set_disabled(deleted.user.id, True, event()) is None
    assert await stores.users.set_metadata(deleted.user.id, {}, event()) is None
    assert await stores.users.set_password(deleted.user.id, HASH, None, event()) is None


@contract
async def test_a_limit_counts_failures_in_a_sliding_window(stores: Stores) -> None:
    who = uuid.uuid4().hex
    for minute in range(3):
        held = await stores.attempts.reserve("t", who, WINDOW, NOW + minute * MINUTE)
        assert held.verdict == "free"
        await stores.attempts.settle("t", who, held.mark, "failed")
    refused = await stores.attempts.reserve("t", who, WINDOW, NOW + 5 * MINUTE)
    assert (refused.verdict, refused.wait_seconds) == ("refused", 600.0)
    # The oldest has left the window, the two others are in it.
    held = await stores.attempts.reserve("t", who, WINDOW, NOW + 15 * MINUTE)
    assert held.verdict == "free"
    await stores.attempts.settle("t", who, held.mark, "failed")
    refused = await stores.attempts.reserve("t", who, WINDOW, NOW + 15 * MINUTE)
    assert (refused.verdict, refused.wait_seconds) == ("refused", 60.0)


@contract
async def test_a_burst_reserves_no_more_than_the_limit(stores: Stores) -> None:
    who = uuid.uuid4().hex
    found = await all_of(*(stores.attempts.reserve("t", who, WINDOW, NOW) for _ in range(30)))
    assert sorted(one.verdict for one in found) == ["busy"] * 27 + ["free"] * 3
    marks = [one.mark for one in found if one.mark is not None]
    assert len(set(marks)) == 3
    await stores.attempts.settle("t", who, marks[0], "released")
    assert (await stores.attempts.reserve("t", who, WINDOW, NOW)).verdict == "free"


@contract
async def test_a_success_clears_failures_but_not_attempts_under_way(stores: Stores) -> None:
    who = uuid.uuid4().hex
    first, second = [await stores.attempts.reserve("t", who, WINDOW, NOW) for _ in range(2)]
    await stores.attempts.settle("t", who, first.mark, "failed")
    third = await stores.attempts.reserve("t", who, WINDOW, NOW)
    await stores.attempts.settle("t", who, third.mark, "cleared")
    await stores.attempts.settle("t", who, second.mark, "failed")
    held = [await stores.attempts.reserve("t", who, WINDOW, NOW) for _ in range(3)]
    assert [one.verdict for one in held] == ["free", "free", "busy"]


@contract
async def test_an_abandoned_attempt_counts_as_a_failure(stores: Stores) -> None:
    who = uuid.uuid4().hex
    for _ in range(3):
        await stores.attempts.reserve("t", who, WINDOW, NOW)
    assert (await stores.attempts.reserve("t", who, WINDOW, NOW + 59 * SECOND)).verdict == "busy"
    assert (await stores.attempts.reserve("t", who, WINDOW, NOW + MINUTE + SECOND)).verdict == "refused"


@contract
async def test_zero_is_no_limit(stores: Stores) -> None:
    held = await stores.attempts.reserve("t", uuid.uuid4().hex, Limit(0, MINUTE), NOW)
    assert (held.verdict, held.mark) == ("free", None)
    await stores.attempts.settle("t", "nobody", None, "failed")


@contract
async def test_a_login_counts_for_its_account_and_its_address(stores: Stores) -> None:
    account, place = await made(stores), uuid.uuid4().hex
    email = Email.parse(account.user.email)
    per_address = Limit(2, WINDOW.window)

    async def attempt(who: Email) -> Any:
        return await stores.attempts.reserve_login(who, place, WINDOW, per_address, NOW)

    first = await attempt(email)
    assert (first.verdict, first.account) == ("free", account)
    await stores.attempts.settle_login(email, place, first, "failed", event("login"))
    # A success clears the account's failures, never the address's.
    second = await attempt(email)
    await stores.attempts.settle_login(email, place, second, "cleared", None)
    third = await attempt(address())
    assert (third.verdict, third.account) == ("free", None)
    await stores.attempts.settle_login(address(), place, third, "failed", None)
    refused = await attempt(email)
    assert (refused.verdict, refused.mark, refused.wait_seconds) == ("refused", None, 900.0)
    # What the address refused was no attempt on the account.
    elsewhere = await stores.attempts.reserve_login(email, uuid.uuid4().hex, Limit(1, HOUR), per_address, NOW)
    assert elsewhere.verdict == "free"


async def issue(
    stores: Stores, email: Email, at: datetime = NOW, purpose: Any = "recovery"
) -> tuple[bytes, Any]:
    key = digest()
    user = await stores.tokens.issue(
        email=email,
        purpose=purpose,
        digest=key,
        pause=MINUTE,
        expires_at=at + HOUR,
        event=event("mail", at),
    )
    return key, user


@contract
async def test_a_recovery_token_works_once_and_ends_every_session(stores: Stores) -> None:
    email, first = address(), session()
    account = await made(stores, email, first)
    key, user = await issue(stores, email)
    assert user == account.user
    assert await stores.tokens.owner(key, "recovery", NOW) == account.user
    assert await stores.tokens.owner(key, "confirmation", NOW) is None
    assert await stores.tokens.owner(key, "recovery", NOW + HOUR) is None
    found = await all_of(*(stores.tokens.reset_password(key, OTHER_HASH, event()) for _ in range(4)))
    assert sorted(one is None for one in found) == [False, True, True, True]
    again = await stores.users.find(account.user.id)
    assert again is not None
    assert (again.password_hash, again.confirmed_at) == (OTHER_HASH, NOW)
    assert await stores.sessions.alive(account.user.id, NOW) == []


@contract
async def test_a_reset_lets_a_locked_out_owner_in(stores: Stores) -> None:
    email = address()
    await made(stores, email)
    limit = Limit(1, HOUR)
    held = await stores.attempts.reserve_login(email, "p", limit, Limit(0, HOUR), NOW)
    await stores.attempts.settle_login(email, "p", held, "failed", None)
    key, _ = await issue(stores, email)
    await stores.tokens.reset_password(key, OTHER_HASH, event())
    assert (await stores.attempts.reserve_login(email, "p", limit, Limit(0, HOUR), NOW)).verdict == "free"


@contract
async def test_a_newer_token_replaces_an_older_one_and_not_too_often(stores: Stores) -> None:
    email = address()
    await made(stores, email)
    first, _ = await issue(stores, email)
    early, nobody = await issue(stores, email, NOW + 59 * SECOND)
    assert nobody is None
    assert await stores.tokens.owner(early, "recovery", NOW + MINUTE) is None
    second, user = await issue(stores, email, NOW + MINUTE)
    assert user is not None
    assert await stores.tokens.owner(first, "recovery", NOW + MINUTE) is None
    assert await stores.tokens.owner(second, "recovery", NOW + MINUTE) == user


@contract
async def test_nobody_is_mailed_who_is_unknown_disabled_or_confirmed(stores: Stores) -> None:
    assert (await issue(stores, address()))[1] is None
    email = address()
    account = await made(stores, email)
    await stores.users.set_disabled(account.user.id, True, event())
    assert (await issue(stores, email))[1] is None
    await stores.users.set_disabled(account.user.id, False, event())
    key, user = await issue(stores, email, purpose="confirmation")
    assert user == account.user
    begun = session()
    assert await stores.tokens.confirm(key, begun, event()) == account.user
    assert await stores.tokens.confirm(key, session(), event()) is None
    assert [one.id for one in await stores.sessions.alive(account.user.id, NOW)] == [begun.id]
    assert (await issue(stores, email, NOW + HOUR, "confirmation"))[1] is None


@contract
async def test_users_are_listed_page_by_page_without_gap_or_repeat(stores: Stores) -> None:
    ids = [(await made(stores)).user.id for _ in range(5)]
    seen: list[str] = []
    after = None
    while page := await stores.users.page(after, 2):
        seen += [one.user.id for one in page]
        after = (page[-1].user.created_at, page[-1].user.id)
    assert [key for key in seen if key in ids] == sorted(ids)
    assert len(seen) == len(set(seen))


@contract
async def test_the_cleanup_takes_what_has_expired_and_nothing_else(stores: Stores) -> None:
    old, young = session(), session(NOW + 40 * 24 * HOUR)
    account = await made(stores, first=old)
    await stores.sessions.start(account, None, young, event())
    child = digest()
    await rotate(stores, young.digest, child, NOW + 40 * 24 * HOUR)
    email = address()
    await made(stores, email)
    key, _ = await issue(stores, email)
    later = NOW + 40 * 24 * HOUR + MINUTE
    assert await stores.housekeeping.clean(later, later - 10 * SECOND, later - HOUR) is True
    assert [one.id for one in await stores.sessions.alive(account.user.id, NOW)] == [young.id]
    assert await stores.tokens.owner(key, "recovery", NOW) is None
    # The salt is gone with its window: a repeat cannot be answered any more, however wide the window was set.
    assert (await rotate(stores, young.digest, digest(), NOW + 40 * 24 * HOUR + SECOND)).outcome == "stolen"
