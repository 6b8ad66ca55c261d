"""The contract of limits on attempts, for the fake and for PostgreSQL."""

from __future__ import annotations

import uuid
from typing import Any

from project_service.auth.postgres import Repository
from project_service.auth.values import Email, Limit, Proof
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
async def test_a_limit_counts_failures_in_a_sliding_window(repository: Repository) -> None:
    subject = uuid.uuid4().hex
    for minute in range(3):
        reserved = await repository.reserve_attempt("t", subject, WINDOW, NOW + minute * MINUTE)
        assert reserved.verdict == "free"
        await repository.record_outcome(reserved, "failed")
    refused = await repository.reserve_attempt("t", subject, WINDOW, NOW + 5 * MINUTE)
    assert (refused.verdict, refused.wait_seconds) == ("refused", 600.0)
    # The oldest has left the window, the two others have not.
    reserved = await repository.reserve_attempt("t", subject, WINDOW, NOW + 15 * MINUTE)
    assert reserved.verdict == "free"
    await repository.record_outcome(reserved, "failed")
    refused = await repository.reserve_attempt("t", subject, WINDOW, NOW + 15 * MINUTE)
    assert (refused.verdict, refused.wait_seconds) == ("refused", 60.0)


@contract
async def test_a_burst_reserves_no_more_than_the_limit(repository: Repository) -> None:
    subject = uuid.uuid4().hex
    reservations = await all_of(*(repository.reserve_attempt("t", subject, WINDOW, NOW) for _ in range(30)))
    assert sorted(one.verdict for one in reservations) == ["busy"] * 27 + ["free"] * 3
    reserved = [one for one in reservations if one.mark is not None]
    assert len({one.mark for one in reserved}) == 3
    await repository.record_outcome(reserved[0], "released")
    assert (await repository.reserve_attempt("t", subject, WINDOW, NOW)).verdict == "free"


@contract
async def test_attempts_of_one_kind_do_not_count_for_another(repository: Repository) -> None:
    subject, once = uuid.uuid4().hex, Limit(1, HOUR)
    mine, other = [await repository.reserve_attempt(scope, subject, once, NOW) for scope in ("t", "u")]
    await repository.record_outcome(mine, "failed")
    assert (await repository.reserve_attempt("u", subject, once, NOW)).verdict == "busy"
    await repository.record_outcome(other, "cleared")
    reservations = [await repository.reserve_attempt(scope, subject, once, NOW) for scope in ("t", "u")]
    assert [one.verdict for one in reservations] == ["refused", "free"]


@contract
async def test_a_success_clears_failures_but_not_attempts_in_progress(repository: Repository) -> None:
    subject = uuid.uuid4().hex
    first, second = [await repository.reserve_attempt("t", subject, WINDOW, NOW) for _ in range(2)]
    await repository.record_outcome(first, "failed")
    third = await repository.reserve_attempt("t", subject, WINDOW, NOW)
    await repository.record_outcome(third, "cleared")
    await repository.record_outcome(second, "failed")
    reserved = [await repository.reserve_attempt("t", subject, WINDOW, NOW) for _ in range(3)]
    assert [one.verdict for one in reserved] == ["free", "free", "busy"]


@contract
async def test_an_abandoned_attempt_counts_as_a_failure(repository: Repository) -> None:
    subject = uuid.uuid4().hex
    for _ in range(2):
        await repository.reserve_attempt("t", subject, WINDOW, NOW)
    third = await repository.reserve_attempt("t", subject, WINDOW, NOW)
    assert (await repository.reserve_attempt("t", subject, WINDOW, NOW + 59 * SECOND)).verdict == "busy"
    await repository.record_outcome(third, "released")
    later = [await repository.reserve_attempt("t", subject, WINDOW, NOW + MINUTE + SECOND) for _ in range(2)]
    assert [one.verdict for one in later] == ["free", "busy"]
    assert (
        await repository.reserve_attempt("t", subject, WINDOW, NOW + 2 * MINUTE + SECOND)
    ).verdict == "refused"


@contract
async def test_an_attempt_counts_as_in_progress_or_as_abandoned_but_not_twice(repository: Repository) -> None:
    subject, limit = uuid.uuid4().hex, Limit(2, 15 * MINUTE)
    await repository.reserve_attempt("t", subject, limit, NOW)
    assert (await repository.reserve_attempt("t", subject, limit, NOW + MINUTE)).verdict == "free"


@contract
async def test_failures_may_finish_in_any_order(repository: Repository) -> None:
    subject = uuid.uuid4().hex
    reserved = [await repository.reserve_attempt("t", subject, WINDOW, NOW + n * SECOND) for n in range(3)]
    for one in reversed(reserved):
        await repository.record_outcome(one, "failed")
    refused = await repository.reserve_attempt("t", subject, WINDOW, NOW + 10 * SECOND)
    assert (refused.verdict, refused.wait_seconds) == ("refused", 890.0)


@contract
async def test_a_lowered_limit_refuses_until_few_enough_failures_are_left(repository: Repository) -> None:
    subject = uuid.uuid4().hex
    for minute in range(3):
        reserved = await repository.reserve_attempt("t", subject, WINDOW, NOW + minute * MINUTE)
        await repository.record_outcome(reserved, "failed")
    lower = Limit(1, WINDOW.window)
    refused = await repository.reserve_attempt("t", subject, lower, NOW + 2 * MINUTE)
    assert (refused.verdict, refused.wait_seconds) == ("refused", 900.0)
    assert (await repository.reserve_attempt("t", subject, lower, NOW + 17 * MINUTE)).verdict == "free"


@contract
async def test_the_cleanup_keeps_failures_that_still_count(repository: Repository) -> None:
    subject = uuid.uuid4().hex
    for minute in (0, 10):
        reserved = await repository.reserve_attempt("t", subject, WINDOW, NOW + minute * MINUTE)
        await repository.record_outcome(reserved, "failed")
    later = NOW + 24 * MINUTE
    await repository.delete_expired(later, NOW, LONG_AGO, NOW)
    left = [await repository.reserve_attempt("t", subject, WINDOW, later) for _ in range(3)]
    assert [one.verdict for one in left] == ["free", "free", "busy"]


@contract
async def test_zero_is_no_limit(repository: Repository) -> None:
    reserved = await repository.reserve_attempt("t", uuid.uuid4().hex, Limit(0, MINUTE), NOW)
    assert (reserved.verdict, reserved.mark) == ("free", None)
    await repository.record_outcome(reserved, "failed")


@contract
async def test_unlocking_forgets_the_attempts_at_one_password(repository: Repository) -> None:
    """Those in progress too: they may have been abandoned, and would count as failures soon."""
    first, others, free, once = session(), session(), Limit(0, HOUR), Limit(1, HOUR)
    account, other = await made(repository, first=first), await made(repository, first=others)
    emails = [Email.parse(one.user.email) for one in (account, other)]
    for email in emails:
        reserved = await repository.reserve_login(email, uuid.uuid4().hex, once, free, NOW)
        await repository.record_outcome(reserved, "failed")
    for one in (first, others):
        await repository.reserve_attempt("session", one.id, once, NOW)

    async def verdicts() -> list[str]:
        reserved = [await repository.reserve_login(one, "there", once, free, NOW) for one in emails]
        own = [await repository.reserve_attempt("session", one.id, once, NOW) for one in (first, others)]
        return [*(one.verdict for one in reserved), *(one.verdict for one in own)]

    assert await verdicts() == ["refused", "refused", "busy", "busy"]
    await repository.unlock(account, event("unlock_user"))
    assert await verdicts() == ["free", "refused", "free", "busy"]


@contract
async def test_a_new_password_forgets_failed_logins(repository: Repository) -> None:
    first, once = session(), Limit(1, HOUR)
    account = await made(repository, first=first)
    email = Email.parse(account.user.email)

    async def failed() -> None:
        reserved = await repository.reserve_login(email, "", once, Limit(0, HOUR), NOW)
        assert reserved.verdict == "free"
        await repository.record_outcome(reserved, "failed")

    await failed()
    assert await repository.set_password(account.user.id, OTHER_HASH, None, event()) is not None
    await failed()
    # A change that is refused forgets nothing.
    assert await repository.set_password(account.user.id, HASH, Proof(HASH, first.id), event()) is None
    reserved = await repository.reserve_login(email, "", once, Limit(0, HOUR), NOW)
    assert reserved.verdict == "refused"


@contract
async def test_a_login_counts_for_its_account_and_its_address(repository: Repository) -> None:
    account, client = await made(repository), uuid.uuid4().hex
    email = Email.parse(account.user.email)
    per_address = Limit(2, WINDOW.window)

    async def attempt(email: Email) -> Any:
        return await repository.reserve_login(email, client, WINDOW, per_address, NOW)

    first = await attempt(email)
    assert (first.verdict, first.account) == ("free", account)
    await repository.record_outcome(first, "failed", event("login"))
    # A success clears the account's failures, never the address's.
    second = await attempt(email)
    await repository.record_outcome(second, "cleared")
    third = await attempt(address())
    assert (third.verdict, third.account) == ("free", None)
    await repository.record_outcome(third, "failed")
    refused = await attempt(email)
    assert (refused.verdict, refused.mark, refused.wait_seconds) == ("refused", None, 900.0)
    # An attempt refused by the address does not count for the account.
    elsewhere = await repository.reserve_login(email, uuid.uuid4().hex, Limit(1, HOUR), per_address, NOW)
    assert elsewhere.verdict == "free"


@contract
async def test_simultaneous_logins_release_their_own_reservations(repository: Repository) -> None:
    """Two accounts log in from one address at the same time; each reservation belongs to one login."""
    one, other, client = address(), address(), uuid.uuid4().hex
    once, twice = Limit(1, HOUR), Limit(2, HOUR)
    reserved = [await repository.reserve_login(email, client, once, twice, NOW) for email in (one, other)]
    await repository.record_outcome(reserved[1], "released")
    await repository.record_outcome(reserved[0], "released")
    again = [await repository.reserve_login(email, client, once, twice, NOW) for email in (one, other)]
    assert [one.verdict for one in again] == ["free", "free"]
