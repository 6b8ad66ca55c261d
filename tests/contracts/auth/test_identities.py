"""The contract of identities, for the fake and for PostgreSQL: whose account it is that somebody comes to by a
provider."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve

from project_service.auth.postgres import Repository
from project_service.auth.values import (
    Account,
    Answer,
    AuthCode,
    ByProvider,
    Email,
    NewSession,
    Profile,
    Proof,
    Redeemed,
    email_of,
)
from project_service.errors import ApiError
from tests.contracts.auth.users import (
    HASH,
    HOUR,
    NOW,
    address,
    all_of,
    contract,
    digest,
    event,
    issue,
    made,
    session,
)

LATER = NOW + timedelta(days=1)


def comes(email: Email | None, *, verified: bool = True, **more: Any) -> ByProvider:
    """Who comes by a provider that nobody has come by before."""
    data = {"sub": "s", "email": None if email is None else email.address}
    subject = more.pop("subject", uuid.uuid4().hex)
    return ByProvider("google", subject, email, verified, data, **{"new_id": str(uuid.uuid4()), **more})


async def enter(repository: Repository, who: ByProvider, begins: NewSession | None = None) -> Redeemed:
    redeemed = await repository.enter(who, begins or session(), None, event())
    assert redeemed is not None
    return redeemed


async def profile(repository: Repository, user_id: str) -> Profile:
    known = await repository.profile(user_id)
    assert known is not None
    return known


async def confirmed(repository: Repository, email: Email, begins: NewSession | None = None) -> Account:
    account = await repository.create_user(
        email=email, password_hash=HASH, metadata={}, confirmed=True, session=begins, event=event()
    )
    assert account is not None
    return account


async def refused(call: Any) -> str:
    with pytest.raises(ApiError) as caught:
        await call
    return caught.value.code


@contract
async def test_who_is_new_gets_an_account_and_comes_back_to_it(repository: Repository) -> None:
    who, begins = comes(address(), metadata={"name": "Ada"}), session()
    assert await repository.enter(evolve(who, new_id=None), begins, None, event()) is None
    entered = await enter(repository, who, begins)
    user = entered.user
    assert (user.id, user.confirmed_at, user.metadata) == (who.new_id, NOW, {"name": "Ada"})
    assert user.app_metadata == {"provider": "google", "providers": ["google"]}
    assert entered.session is not None and entered.session.method == "oauth"
    assert [one.id for one in await repository.list_sessions(user.id, NOW)] == [begins.id]
    (identity,) = (await profile(repository, user.id)).identities
    assert (identity.provider, identity.subject, identity.data) == ("google", who.subject, who.data)
    # By another address, which changes nothing here.
    moved = comes(address(), subject=who.subject, new_id=None)
    again = await repository.enter(moved, session(), None, event(at=LATER))
    assert again is not None
    assert (again.user.id, again.user.email) == (user.id, user.email)
    (identity,) = (await profile(repository, user.id)).identities
    assert identity in await repository.all_identities()
    assert (identity.data, identity.last_sign_in_at, identity.created_at) == (moved.data, LATER, NOW)


@contract
async def test_a_verified_address_joins_the_account_that_has_it(repository: Repository) -> None:
    email, begins = address(), session()
    account = await confirmed(repository, email, begins)
    entered = await enter(repository, comes(email))
    assert entered.user.id == account.user.id
    known = await profile(repository, account.user.id)
    assert known.account.password_hash == HASH
    assert sorted(one.provider for one in known.identities) == ["email", "google"]
    assert known.user.app_metadata["providers"] == ["email", "google"]
    assert begins.id in {one.id for one in await repository.list_sessions(account.user.id, NOW)}


@contract
async def test_an_unverified_address_joins_nothing(repository: Repository) -> None:
    for make in (made, confirmed):
        email = address()
        account = await make(repository, email)
        who = comes(email, verified=False)
        assert await refused(repository.enter(who, session(), None, event())) == "address_taken"
        assert [one.provider for one in (await profile(repository, account.user.id)).identities] == ["email"]
        assert await repository.list_sessions(account.user.id, NOW) == []


@contract
async def test_what_was_there_before_an_address_was_proven_is_void(repository: Repository) -> None:
    """Pre-hijacking: somebody signs up with the address of somebody else, who comes by a provider later."""
    email, first, hijackers = address(), session(), comes(address(), verified=False)
    account = await made(repository, email, first)
    user_id = account.user.id
    proof = Proof(HASH, first.id)
    await repository.link(hijackers, proof, session(), None, evolve(event(), user_id=user_id))
    code, recovery = digest(), (await issue(repository, email))[0]
    kept = AuthCode(code, NOW + HOUR, {"code_challenge": "plain x"})
    await repository.enter(evolve(hijackers, new_id=None), session(), kept, event())
    begins = session()
    entered = await enter(repository, comes(email), begins)
    assert (entered.user.id, entered.user.confirmed_at) == (user_id, NOW)
    known = await profile(repository, user_id)
    assert known.account.password_hash == b""
    assert sorted(one.provider for one in known.identities) == ["email", "google"]
    assert hijackers.subject not in {one.subject for one in known.identities}
    assert [one.id for one in await repository.list_sessions(user_id, NOW)] == [begins.id]
    ended = {one for one, _ in await repository.ended_sessions(NOW)}
    assert first.id in ended
    assert await repository.owner_of_token(recovery, ("recovery",), NOW) is None
    assert await repository.exchange(code, ("plain x",), session(), event()) is None
    # A second time nothing ends.
    await enter(repository, comes(email))
    assert begins.id in {one.id for one in await repository.list_sessions(user_id, NOW)}


@contract
async def test_a_free_address_that_is_not_verified_waits_to_be_confirmed(repository: Repository) -> None:
    email = address()
    who = comes(email, verified=False, confirm=True)
    entered = await enter(repository, who)
    assert (entered.session, entered.user.confirmed_at) == (None, None)
    assert (await enter(repository, evolve(who, new_id=None))).session is None
    key, _ = await issue(repository, email, purpose="confirmation")
    answer = Answer(("confirmation",), key)
    assert await repository.redeem(answer, session(), None, event()) is not None
    assert (await enter(repository, who)).session is not None
    # Where nobody confirms addresses it is let in at once, but the address counts as unconfirmed.
    free = await enter(repository, comes(address(), verified=False))
    assert free.session is not None
    assert free.user.confirmed_at is None


@contract
async def test_who_has_no_address_gets_an_account_without_one(repository: Repository) -> None:
    one, other = [await enter(repository, comes(None, confirm=True)) for _ in range(2)]
    assert (one.user.email, one.user.is_anonymous, one.user.confirmed_at) == ("", False, None)
    assert one.user.id != other.user.id
    assert one.session is not None


@contract
async def test_two_who_come_at_once_are_one_user(repository: Repository) -> None:
    email, subject = address(), uuid.uuid4().hex
    same = [comes(email, subject=subject) for _ in range(4)]
    entered = await all_of(*(enter(repository, who) for who in same))
    assert len({one.user.id for one in entered}) == 1
    # By two providers, with one address.
    email = address()
    others = [evolve(comes(email), provider=name) for name in ("google", "github", "gitlab")]
    entered = await all_of(*(enter(repository, who) for who in others))
    (user_id,) = {one.user.id for one in entered}
    known = await profile(repository, user_id)
    assert sorted(one.provider for one in known.identities) == ["github", "gitlab", "google"]
    assert len(await repository.list_sessions(user_id, NOW)) == 3
    # Without an address.
    subject = uuid.uuid4().hex
    entered = await all_of(*(enter(repository, comes(None, subject=subject)) for _ in range(3)))
    assert len({one.user.id for one in entered}) == 1


@contract
async def test_a_disabled_user_is_not_let_in(repository: Repository) -> None:
    email = address()
    who = comes(email)
    user_id = (await enter(repository, who)).user.id
    await repository.set_disabled(user_id, True, event())
    for one in (who, comes(email)):
        assert await refused(repository.enter(one, session(), None, event())) == "user_disabled"
    assert len((await profile(repository, user_id)).identities) == 1


@contract
async def test_a_client_with_a_code_challenge_gets_a_code_in_place_of_a_session(
    repository: Repository,
) -> None:
    code = digest()
    kept = AuthCode(code, NOW + HOUR, {"code_challenge": "plain x", "sealed": "s"})
    entered = await repository.enter(comes(address()), session(), kept, event())
    assert entered is not None
    assert entered.session is None
    assert await repository.list_sessions(entered.user.id, NOW) == []
    assert await refused(repository.exchange(code, ("plain y",), session(), event())) == "bad_code_verifier"
    exchanged = await repository.exchange(code, ("plain x",), session(), event())
    assert exchanged is not None and exchanged.session is not None
    assert (exchanged.user.id, exchanged.session.method) == (entered.user.id, "oauth")
    assert exchanged.data["sealed"] == "s"


@contract
async def test_a_user_adds_an_identity(repository: Repository) -> None:
    first = session()
    account = await confirmed(repository, address(), first)
    proof, how = Proof(HASH, first.id), evolve(event("link_identity"), user_id=account.user.id)
    who = comes(address(), new_id=None)
    linked = await repository.link(who, proof, session(), None, how)
    assert (linked.user.id, linked.user.email) == (account.user.id, account.user.email)
    assert (await enter(repository, who)).user.id == account.user.id
    # It is somebody's now, even the same user's.
    assert await refused(repository.link(who, proof, session(), None, how)) == "identity_taken"
    await repository.end_sessions(account.user.id, event(), only=first.id)
    again = repository.link(comes(None), proof, session(), None, how)
    assert await refused(again) == "session_revoked"
    assert len((await profile(repository, account.user.id)).identities) == 2


@contract
async def test_an_identity_belongs_to_one_user(repository: Repository) -> None:
    sessions = [session(), session()]
    users = [await confirmed(repository, address(), one) for one in sessions]
    who = comes(None)

    async def link(account: Account, first: NewSession) -> str:
        how = evolve(event(), user_id=account.user.id)
        try:
            await repository.link(who, Proof(HASH, first.id), session(), None, how)
        except ApiError as refusal:
            return refusal.code
        return "linked"

    outcomes = await all_of(*(link(*pair) for pair in zip(users, sessions, strict=True)))
    assert sorted(outcomes) == ["identity_taken", "linked"]


@contract
async def test_somebody_anonymous_becomes_a_user_by_an_identity(repository: Repository) -> None:
    for verified in (True, False):
        first, email = session(), address()
        guest = await repository.create_user(
            email=None,
            password_hash=None,
            metadata={},
            app_metadata={},
            confirmed=False,
            is_anonymous=True,
            session=first,
            event=event(),
        )
        assert guest is not None
        how, proof = evolve(event(), user_id=guest.user.id), Proof(b"", first.id)
        linked = await repository.link(comes(email, verified=verified), proof, session(), None, how)
        assert (linked.user.id, linked.user.is_anonymous) == (guest.user.id, False)
        assert email_of(linked.user).key == (email.key if verified else "")
        assert linked.user.confirmed_at == (NOW if verified else None)
    # The address of somebody else is not taken over in this way.
    other, first = address(), session()
    await confirmed(repository, other)
    account = await enter(repository, comes(None), first)
    how, proof = evolve(event(), user_id=account.user.id), Proof(b"", first.id)
    assert await refused(repository.link(comes(other), proof, session(), None, how)) == "address_taken"
    assert len((await profile(repository, account.user.id)).identities) == 1


@contract
async def test_a_way_in_is_left(repository: Repository) -> None:
    email = address()
    account = await confirmed(repository, email)
    user_id = account.user.id
    await enter(repository, comes(email))
    by_email, by_google = sorted(
        (await profile(repository, user_id)).identities, key=lambda one: one.provider
    )
    stranger = (await enter(repository, comes(None))).user.id
    assert await refused(repository.unlink(stranger, by_google.id, event())) == "identity_not_found"
    assert await refused(repository.unlink(user_id, str(uuid.uuid4()), event())) == "identity_not_found"
    assert await refused(repository.unlink(user_id, by_email.id, event())) == "address_identity"
    await repository.unlink(user_id, by_google.id, event())
    known = await profile(repository, user_id)
    assert known.identities == (by_email,)
    assert known.user.app_metadata["providers"] == ["email"]
    assert await refused(repository.unlink(user_id, by_email.id, event())) == "last_identity"


@contract
async def test_of_two_removed_at_once_one_is_left(repository: Repository) -> None:
    first = session()
    account = await enter(repository, comes(None), first)
    how = evolve(event(), user_id=account.user.id)
    await repository.link(comes(None), Proof(b"", first.id), session(), None, how)
    keys = [one.id for one in (await profile(repository, account.user.id)).identities]

    async def unlink(key: str) -> str:
        try:
            await repository.unlink(account.user.id, key, event())
        except ApiError as refusal:
            return refusal.code
        return "removed"

    assert sorted(await all_of(*map(unlink, keys))) == ["last_identity", "removed"]
    assert len((await profile(repository, account.user.id)).identities) == 1


@contract
async def test_a_state_is_taken_once_by_its_browser_and_for_its_purpose(repository: Repository) -> None:
    key = digest()
    await repository.keep_challenge("oauth", key, NOW, NOW + HOUR, {"browser": "b", "provider": "google"})
    assert await repository.take_challenge("oauth", key, NOW) is None
    assert await repository.take_challenge("oauth", key, NOW, "another") is None
    assert await repository.take_challenge("link", key, NOW, "b") is None
    assert await repository.take_challenge("oauth", key, NOW + HOUR, "b") is None
    taken = await all_of(*(repository.take_challenge("oauth", key, NOW, "b") for _ in range(4)))
    (data,) = [one for one in taken if one is not None]
    assert data["provider"] == "google"
