"""The contract of one-time tokens, for the fake and for PostgreSQL."""

from __future__ import annotations

import uuid

from attrs import evolve

from project_service.auth.postgres import Repository
from project_service.auth.values import Limit, Proof
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
async def test_a_recovery_token_works_once_and_ends_every_session(repository: Repository) -> None:
    email, first = address(), session()
    account = await made(repository, email, first)
    key, user = await issue(repository, email)
    assert user == account.user
    assert await repository.owner_of_token(key, "recovery", NOW) == account.user
    assert await repository.owner_of_token(key, "confirmation", NOW) is None
    assert await repository.owner_of_token(key, "recovery", NOW + HOUR) is None
    assert await repository.reset_password(key, OTHER_HASH, event(at=NOW + HOUR)) is None
    results = await all_of(*(repository.reset_password(key, OTHER_HASH, event()) for _ in range(4)))
    assert sorted(one is None for one in results) == [False, True, True, True]
    again = await repository.find_user(account.user.id)
    assert again is not None
    assert (again.password_hash, again.confirmed_at) == (OTHER_HASH, NOW)
    assert await repository.list_sessions(account.user.id, NOW) == []


@contract
async def test_a_token_is_valid_only_for_its_purpose(repository: Repository) -> None:
    email = address()
    account = await made(repository, email)
    recovery, _ = await issue(repository, email)
    confirmation, _ = await issue(repository, email, purpose="confirmation")
    assert await repository.reset_password(confirmation, OTHER_HASH, event()) is None
    assert await repository.confirm_email(recovery, session(), event()) is None
    assert await repository.confirm_email(confirmation, session(), event(at=NOW + HOUR)) is None
    assert await repository.find_user(account.user.id) == account
    assert await repository.owner_of_token(recovery, "recovery", NOW) == account.user
    assert await repository.owner_of_token(confirmation, "confirmation", NOW) == account.user


@contract
async def test_a_reset_invalidates_earlier_mails(repository: Repository) -> None:
    """A confirmation begins a session, and the reset has ended every one."""
    email = address()
    await made(repository, email)
    older, _ = await issue(repository, email, purpose="confirmation")
    key, _ = await issue(repository, email)
    assert await repository.reset_password(key, OTHER_HASH, event()) is not None
    assert await repository.confirm_email(older, session(), event()) is None


@contract
async def test_a_reset_affects_one_user_only(repository: Repository) -> None:
    email, others_email, others = address(), address(), session()
    await made(repository, email, session())
    other = await made(repository, others_email, others)
    mail, _ = await issue(repository, others_email)
    key, _ = await issue(repository, email)
    assert await repository.reset_password(key, OTHER_HASH, event()) is not None
    assert await repository.find_user(other.user.id) == other
    assert [one.id for one in await repository.list_sessions(other.user.id, NOW)] == [others.id]
    assert await repository.owner_of_token(mail, "recovery", NOW) == other.user


@contract
async def test_a_reset_lets_a_locked_out_owner_in(repository: Repository) -> None:
    """It clears only this account's counter: neither another account nor the client's address may guess again."""
    email, other, client = address(), address(), uuid.uuid4().hex
    await made(repository, email)
    limit, none = Limit(1, HOUR), Limit(0, HOUR)
    for one in (email, other):
        reservation = await repository.reserve_login(one, client, limit, Limit(2, HOUR), NOW)
        await repository.record_outcome(reservation, "failed")
    of_mails = await repository.reserve_attempt("mail", email.key, limit, NOW)
    await repository.record_outcome(of_mails, "failed")
    key, _ = await issue(repository, email)
    await repository.reset_password(key, OTHER_HASH, event())
    assert (await repository.reserve_attempt("mail", email.key, limit, NOW)).verdict == "refused"
    assert (await repository.reserve_login(email, client, limit, none, NOW)).verdict == "free"
    assert (await repository.reserve_login(other, client, limit, none, NOW)).verdict == "refused"
    assert (await repository.reserve_login(address(), client, none, Limit(2, HOUR), NOW)).verdict == "refused"


@contract
async def test_a_reset_does_not_affect_attempts_under_way(repository: Repository) -> None:
    email, client = address(), uuid.uuid4().hex
    await made(repository, email)
    limit, none = Limit(1, HOUR), Limit(0, HOUR)
    await repository.reserve_login(email, client, limit, none, NOW)
    key, _ = await issue(repository, email)
    await repository.reset_password(key, OTHER_HASH, event())
    assert (await repository.reserve_login(email, client, limit, none, NOW)).verdict == "busy"


@contract
async def test_a_newer_token_replaces_an_older_one_but_not_too_often(repository: Repository) -> None:
    email = address()
    await made(repository, email)
    first, _ = await issue(repository, email)
    early, nobody = await issue(repository, email, NOW + 59 * SECOND)
    assert nobody is None
    assert await repository.owner_of_token(early, "recovery", NOW + MINUTE) is None
    second, user = await issue(repository, email, NOW + MINUTE)
    assert user is not None
    assert await repository.owner_of_token(first, "recovery", NOW + MINUTE) is None
    # The newer one has an hour, and a minute's pause, of its own.
    assert await repository.owner_of_token(second, "recovery", NOW + HOUR) == user
    assert (await issue(repository, email, NOW + 119 * SECOND))[1] is None


@contract
async def test_unknown_disabled_and_confirmed_users_get_no_mail(repository: Repository) -> None:
    assert (await issue(repository, address()))[1] is None
    email = address()
    account = await made(repository, email)
    await repository.set_disabled(account.user.id, True, event())
    assert (await issue(repository, email))[1] is None
    await repository.set_disabled(account.user.id, False, event())
    key, user = await issue(repository, email, purpose="confirmation")
    assert user == account.user
    begun = session(NOW + SECOND)
    started = evolve(account.user, confirmed_at=NOW, last_login_at=begun.created_at)
    assert await repository.confirm_email(key, begun, event()) == started
    assert await repository.confirm_email(key, session(), event()) is None
    assert [one.id for one in await repository.list_sessions(account.user.id, NOW)] == [begun.id]
    confirmed = await repository.find_user(account.user.id)
    assert confirmed is not None
    assert (confirmed.confirmed_at, confirmed.last_login_at) == (NOW, begun.created_at)
    assert (await issue(repository, email, NOW + HOUR, "confirmation"))[1] is None
    key, user = await issue(repository, email, NOW + HOUR)
    assert user == started
    await repository.reset_password(key, OTHER_HASH, event(at=NOW + HOUR))
    reset = await repository.find_user(account.user.id)
    # The date of the first confirmation is kept.
    assert reset is not None and reset.confirmed_at == NOW


@contract
async def test_a_mail_does_not_let_a_disabled_user_in(repository: Repository) -> None:
    email = address()
    account = await made(repository, email)
    key, _ = await issue(repository, email, purpose="confirmation")
    await repository.set_disabled(account.user.id, True, event())
    assert await repository.confirm_email(key, session(), event()) is None
    assert await repository.list_sessions(account.user.id, NOW) == []


@contract
async def test_a_new_password_invalidates_recovery_mails(repository: Repository) -> None:
    email = address()
    account = await made(repository, email)
    recovery, _ = await issue(repository, email)
    confirmation, _ = await issue(repository, email, purpose="confirmation")
    await made(repository, others_email := address())
    others, other = await issue(repository, others_email)
    # A refused change invalidates nothing.
    wrong = Proof(OTHER_HASH, str(uuid.uuid4()))
    assert await repository.set_password(account.user.id, OTHER_HASH, wrong, event()) is None
    assert await repository.owner_of_token(recovery, "recovery", NOW) == account.user
    await repository.set_password(account.user.id, OTHER_HASH, None, event())
    assert await repository.owner_of_token(recovery, "recovery", NOW) is None
    assert await repository.owner_of_token(others, "recovery", NOW) == other
    assert await repository.owner_of_token(confirmation, "confirmation", NOW) == account.user
