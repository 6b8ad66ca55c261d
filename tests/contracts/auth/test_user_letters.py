"""The contract of one-time tokens, for the fake and for PostgreSQL."""

from __future__ import annotations

import uuid

from project_service.auth.repository import Limit, Proof, Stores
from tests.contracts.auth.users import (
    HOUR,
    MINUTE,
    NOW,
    OTHER_HASH,
    SECOND,
    address,
    all_of,
    contract,
    event,
    issue,
    made,
    session,
)


@contract
async def test_a_recovery_token_works_once_and_ends_every_session(stores: Stores) -> None:
    email, first = address(), session()
    account = await made(stores, email, first)
    key, user = await issue(stores, email)
    assert user == account.user
    assert await stores.tokens.owner(key, "recovery", NOW) == account.user
    assert await stores.tokens.owner(key, "confirmation", NOW) is None
    assert await stores.tokens.owner(key, "recovery", NOW + HOUR) is None
    assert await stores.tokens.reset_password(key, OTHER_HASH, event(at=NOW + HOUR)) is None
    found = await all_of(*(stores.tokens.reset_password(key, OTHER_HASH, event()) for _ in range(4)))
    assert sorted(one is None for one in found) == [False, True, True, True]
    again = await stores.users.find(account.user.id)
    assert again is not None
    assert (again.password_hash, again.confirmed_at) == (OTHER_HASH, NOW)
    assert await stores.sessions.alive(account.user.id, NOW) == []


@contract
async def test_a_token_is_valid_only_for_its_purpose(stores: Stores) -> None:
    email = address()
    account = await made(stores, email)
    recovery, _ = await issue(stores, email)
    confirmation, _ = await issue(stores, email, purpose="confirmation")
    assert await stores.tokens.reset_password(confirmation, OTHER_HASH, event()) is None
    assert await stores.tokens.confirm(recovery, session(), event()) is None
    assert await stores.tokens.confirm(confirmation, session(), event(at=NOW + HOUR)) is None
    assert await stores.users.find(account.user.id) == account
    assert await stores.tokens.owner(recovery, "recovery", NOW) == account.user
    assert await stores.tokens.owner(confirmation, "confirmation", NOW) == account.user


@contract
async def test_a_reset_invalidates_earlier_letters(stores: Stores) -> None:
    """A confirmation begins a session, and the reset has ended every one."""
    email = address()
    await made(stores, email)
    older, _ = await issue(stores, email, purpose="confirmation")
    key, _ = await issue(stores, email)
    assert await stores.tokens.reset_password(key, OTHER_HASH, event()) is not None
    assert await stores.tokens.confirm(older, session(), event()) is None


@contract
async def test_a_reset_affects_one_user_only(stores: Stores) -> None:
    email, others_email, others = address(), address(), session()
    await made(stores, email, session())
    other = await made(stores, others_email, others)
    letter, _ = await issue(stores, others_email)
    key, _ = await issue(stores, email)
    assert await stores.tokens.reset_password(key, OTHER_HASH, event()) is not None
    assert await stores.users.find(other.user.id) == other
    assert [one.id for one in await stores.sessions.alive(other.user.id, NOW)] == [others.id]
    assert await stores.tokens.owner(letter, "recovery", NOW) == other.user


@contract
async def test_a_reset_lets_a_locked_out_owner_in(stores: Stores) -> None:
    """It clears only this account's counter: neither another account nor the client's address may guess again."""
    email, other, place = address(), address(), uuid.uuid4().hex
    await made(stores, email)
    limit, none = Limit(1, HOUR), Limit(0, HOUR)
    for who in (email, other):
        held = await stores.attempts.reserve_login(who, place, limit, Limit(2, HOUR), NOW)
        await stores.attempts.settle_login(who, place, held, "failed", None)
    held_elsewhere = await stores.attempts.reserve("letters", email.key, limit, NOW)
    await stores.attempts.settle("letters", email.key, held_elsewhere.mark, "failed")
    key, _ = await issue(stores, email)
    await stores.tokens.reset_password(key, OTHER_HASH, event())
    assert (await stores.attempts.reserve("letters", email.key, limit, NOW)).verdict == "refused"
    assert (await stores.attempts.reserve_login(email, place, limit, none, NOW)).verdict == "free"
    assert (await stores.attempts.reserve_login(other, place, limit, none, NOW)).verdict == "refused"
    assert (
        await stores.attempts.reserve_login(address(), place, none, Limit(2, HOUR), NOW)
    ).verdict == "refused"


@contract
async def test_a_reset_does_not_affect_attempts_under_way(stores: Stores) -> None:
    email, place = address(), uuid.uuid4().hex
    await made(stores, email)
    limit, none = Limit(1, HOUR), Limit(0, HOUR)
    await stores.attempts.reserve_login(email, place, limit, none, NOW)
    key, _ = await issue(stores, email)
    await stores.tokens.reset_password(key, OTHER_HASH, event())
    assert (await stores.attempts.reserve_login(email, place, limit, none, NOW)).verdict == "busy"


@contract
async def test_a_newer_token_replaces_an_older_one_but_not_too_often(stores: Stores) -> None:
    email = address()
    await made(stores, email)
    first, _ = await issue(stores, email)
    early, nobody = await issue(stores, email, NOW + 59 * SECOND)
    assert nobody is None
    assert await stores.tokens.owner(early, "recovery", NOW + MINUTE) is None
    second, user = await issue(stores, email, NOW + MINUTE)
    assert user is not None
    assert await stores.tokens.owner(first, "recovery", NOW + MINUTE) is None
    # The newer one has an hour, and a minute's pause, of its own.
    assert await stores.tokens.owner(second, "recovery", NOW + HOUR) == user
    assert (await issue(stores, email, NOW + 119 * SECOND))[1] is None


@contract
async def test_unknown_disabled_and_confirmed_users_get_no_letter(stores: Stores) -> None:
    assert (await issue(stores, address()))[1] is None
    email = address()
    account = await made(stores, email)
    await stores.users.set_disabled(account.user.id, True, event())
    assert (await issue(stores, email))[1] is None
    await stores.users.set_disabled(account.user.id, False, event())
    key, user = await issue(stores, email, purpose="confirmation")
    assert user == account.user
    begun = session(NOW + SECOND)
    assert await stores.tokens.confirm(key, begun, event()) == account.user
    assert await stores.tokens.confirm(key, session(), event()) is None
    assert [one.id for one in await stores.sessions.alive(account.user.id, NOW)] == [begun.id]
    confirmed = await stores.users.find(account.user.id)
    assert confirmed is not None
    assert (confirmed.confirmed_at, confirmed.last_login_at) == (NOW, begun.created_at)
    assert (await issue(stores, email, NOW + HOUR, "confirmation"))[1] is None
    key, user = await issue(stores, email, NOW + HOUR)
    assert user == account.user
    await stores.tokens.reset_password(key, OTHER_HASH, event(at=NOW + HOUR))
    reset = await stores.users.find(account.user.id)
    # The date of the first confirmation is kept.
    assert reset is not None and reset.confirmed_at == NOW


@contract
async def test_a_letter_does_not_let_a_disabled_user_in(stores: Stores) -> None:
    email = address()
    account = await made(stores, email)
    key, _ = await issue(stores, email, purpose="confirmation")
    await stores.users.set_disabled(account.user.id, True, event())
    assert await stores.tokens.confirm(key, session(), event()) is None
    assert await stores.sessions.alive(account.user.id, NOW) == []


@contract
async def test_a_new_password_invalidates_recovery_letters(stores: Stores) -> None:
    email = address()
    account = await made(stores, email)
    recovery, _ = await issue(stores, email)
    confirmation, _ = await issue(stores, email, purpose="confirmation")
    await made(stores, others_email := address())
    others, other = await issue(stores, others_email)
    # A refused change invalidates nothing.
    wrong = Proof(OTHER_HASH, str(uuid.uuid4()))
    assert await stores.users.set_password(account.user.id, OTHER_HASH, wrong, event()) is None
    assert await stores.tokens.owner(recovery, "recovery", NOW) == account.user
    await stores.users.set_password(account.user.id, OTHER_HASH, None, event())
    assert await stores.tokens.owner(recovery, "recovery", NOW) is None
    assert await stores.tokens.owner(others, "recovery", NOW) == other
    assert await stores.tokens.owner(confirmation, "confirmation", NOW) == account.user
