"""The contract of limits on attempts, for the fake and for PostgreSQL."""

from __future__ import annotations

import uuid
from typing import Any

from project_service.auth.repository import Limit, Proof, Stores
from project_service.auth.values import Email
from tests.contracts.auth.users import (
    HASH,
    HOUR,
    LONG_AGO,
    MINUTE,
    NOW,
    OTHER_HASH,
    SECOND,
    WINDOW,
    address,
    all_of,
    contract,
    event,
    made,
    session,
)


@contract
async def test_a_limit_counts_failures_in_a_sliding_window(stores: Stores) -> None:
    who = uuid.uuid4().hex
    for minute in range(3):
        held = await stores.attempts.reserve("t", who, WINDOW, NOW + minute * MINUTE)
        assert held.verdict == "free"
        await stores.attempts.settle("t", who, held.mark, "failed")
    refused = await stores.attempts.reserve("t", who, WINDOW, NOW + 5 * MINUTE)
    assert (refused.verdict, refused.wait_seconds) == ("refused", 600.0)
    # The oldest has left the window, the two others have not.
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
async def test_attempts_of_one_kind_do_not_count_for_another(stores: Stores) -> None:
    who, once = uuid.uuid4().hex, Limit(1, HOUR)
    mine, other = [await stores.attempts.reserve(scope, who, once, NOW) for scope in ("t", "u")]
    await stores.attempts.settle("t", who, mine.mark, "failed")
    assert (await stores.attempts.reserve("u", who, once, NOW)).verdict == "busy"
    await stores.attempts.settle("u", who, other.mark, "cleared")
    found = [await stores.attempts.reserve(scope, who, once, NOW) for scope in ("t", "u")]
    assert [one.verdict for one in found] == ["refused", "free"]


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
    for _ in range(2):
        await stores.attempts.reserve("t", who, WINDOW, NOW)
    third = await stores.attempts.reserve("t", who, WINDOW, NOW)
    assert (await stores.attempts.reserve("t", who, WINDOW, NOW + 59 * SECOND)).verdict == "busy"
    await stores.attempts.settle("t", who, third.mark, "released")
    later = [await stores.attempts.reserve("t", who, WINDOW, NOW + MINUTE + SECOND) for _ in range(2)]
    assert [one.verdict for one in later] == ["free", "busy"]
    assert (await stores.attempts.reserve("t", who, WINDOW, NOW + 2 * MINUTE + SECOND)).verdict == "refused"


@contract
async def test_an_attempt_counts_as_under_way_or_as_abandoned_but_not_twice(stores: Stores) -> None:
    who, limit = uuid.uuid4().hex, Limit(2, 15 * MINUTE)
    await stores.attempts.reserve("t", who, limit, NOW)
    assert (await stores.attempts.reserve("t", who, limit, NOW + MINUTE)).verdict == "free"


@contract
async def test_failures_may_be_settled_in_any_order(stores: Stores) -> None:
    who = uuid.uuid4().hex
    held = [await stores.attempts.reserve("t", who, WINDOW, NOW + n * SECOND) for n in range(3)]
    for one in reversed(held):
        await stores.attempts.settle("t", who, one.mark, "failed")
    refused = await stores.attempts.reserve("t", who, WINDOW, NOW + 10 * SECOND)
    assert (refused.verdict, refused.wait_seconds) == ("refused", 890.0)


@contract
async def test_a_lowered_limit_refuses_until_few_enough_failures_are_left(stores: Stores) -> None:
    who = uuid.uuid4().hex
    for minute in range(3):
        held = await stores.attempts.reserve("t", who, WINDOW, NOW + minute * MINUTE)
        await stores.attempts.settle("t", who, held.mark, "failed")
    lower = Limit(1, WINDOW.window)
    refused = await stores.attempts.reserve("t", who, lower, NOW + 2 * MINUTE)
    assert (refused.verdict, refused.wait_seconds) == ("refused", 900.0)
    assert (await stores.attempts.reserve("t", who, lower, NOW + 17 * MINUTE)).verdict == "free"


@contract
async def test_the_cleanup_keeps_failures_that_still_count(stores: Stores) -> None:
    who = uuid.uuid4().hex
    for minute in (0, 10):
        held = await stores.attempts.reserve("t", who, WINDOW, NOW + minute * MINUTE)
        await stores.attempts.settle("t", who, held.mark, "failed")
    later = NOW + 24 * MINUTE
    await stores.housekeeping.clean(later, NOW, LONG_AGO, NOW)
    left = [await stores.attempts.reserve("t", who, WINDOW, later) for _ in range(3)]
    assert [one.verdict for one in left] == ["free", "free", "busy"]


@contract
async def test_zero_is_no_limit(stores: Stores) -> None:
    held = await stores.attempts.reserve("t", uuid.uuid4().hex, Limit(0, MINUTE), NOW)
    assert (held.verdict, held.mark) == ("free", None)
    await stores.attempts.settle("t", "nobody", None, "failed")


@contract
async def test_unlocking_forgets_the_attempts_at_one_password(stores: Stores) -> None:
    """Those under way too: they may have been abandoned, and would count as failures soon."""
    first, others, free, once = session(), session(), Limit(0, HOUR), Limit(1, HOUR)
    account, other = await made(stores, first=first), await made(stores, first=others)
    emails = [Email.parse(one.user.email) for one in (account, other)]
    for email in emails:
        held = await stores.attempts.reserve_login(email, uuid.uuid4().hex, once, free, NOW)
        await stores.attempts.settle_login(email, uuid.uuid4().hex, held, "failed", None)
    for one in (first, others):
        await stores.attempts.reserve("session", one.id, once, NOW)

    async def verdicts() -> list[str]:
        held = [await stores.attempts.reserve_login(one, "there", once, free, NOW) for one in emails]
        own = [await stores.attempts.reserve("session", one.id, once, NOW) for one in (first, others)]
        return [*(one.verdict for one in held), *(one.verdict for one in own)]

    assert await verdicts() == ["refused", "refused", "busy", "busy"]
    await stores.attempts.unlock(account, event("unlock_user"))
    assert await verdicts() == ["free", "refused", "free", "busy"]


@contract
async def test_a_new_password_forgets_failed_logins(stores: Stores) -> None:
    first, once = session(), Limit(1, HOUR)
    account = await made(stores, first=first)
    email = Email.parse(account.user.email)

    async def failed() -> None:
        held = await stores.attempts.reserve_login(email, "", once, Limit(0, HOUR), NOW)
        assert held.verdict == "free"
        await stores.attempts.settle_login(email, "", held, "failed", None)

    await failed()
    assert await stores.users.set_password(account.user.id, OTHER_HASH, None, event()) is not None
    await failed()
    # A change that is refused forgets nothing.
    assert await stores.users.set_password(account.user.id, HASH, Proof(HASH, first.id), event()) is None
    held = await stores.attempts.reserve_login(email, "", once, Limit(0, HOUR), NOW)
    assert held.verdict == "refused"


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
    # An attempt refused by the address does not count for the account.
    elsewhere = await stores.attempts.reserve_login(email, uuid.uuid4().hex, Limit(1, HOUR), per_address, NOW)
    assert elsewhere.verdict == "free"


@contract
async def test_simultaneous_logins_release_their_own_reservations(stores: Stores) -> None:
    """Two accounts log in from one address at the same time; each reservation belongs to one login."""
    one, other, place = address(), address(), uuid.uuid4().hex
    once, twice = Limit(1, HOUR), Limit(2, HOUR)
    held = [await stores.attempts.reserve_login(who, place, once, twice, NOW) for who in (one, other)]
    await stores.attempts.settle_login(other, place, held[1], "released", None)
    await stores.attempts.settle_login(one, place, held[0], "released", None)
    again = [await stores.attempts.reserve_login(who, place, once, twice, NOW) for who in (one, other)]
    assert [found.verdict for found in again] == ["free", "free"]
