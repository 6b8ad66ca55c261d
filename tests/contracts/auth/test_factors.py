"""The contract of further factors, for the fake and for PostgreSQL."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

import pytest
from attrs import evolve

from project_service.auth.postgres import Repository
from project_service.auth.values import (
    Answer,
    Credential,
    Email,
    Factor,
    FactorProof,
    NewSession,
    OwnFactor,
    Passkey,
    SignIn,
)
from project_service.errors import ApiError
from tests.contracts.auth.users import (
    HOUR,
    LONG_AGO,
    MINUTE,
    NOW,
    OTHER_HASH,
    SECOND,
    address,
    all_of,
    confirm,
    contract,
    digest,
    event,
    issue,
    made,
    rotate,
    session,
)

SECRET = b"k" * 20
STALE = NOW - 5 * MINUTE


def new_factor(user_id: str, name: str = "", at: datetime = NOW) -> Factor:
    return Factor(str(uuid.uuid4()), user_id, name, "totp", False, at, at)


async def enrolled(
    repository: Repository, user_id: str, name: str = "", at: datetime = NOW, maximum: int = 10
) -> Factor:
    factor = new_factor(user_id, name, at)
    await repository.enrol_factor(factor, SECRET, STALE, maximum, event("enroll_factor", at))
    return factor


async def challenged(
    repository: Repository, factor: Factor, session_id: str, at: datetime = NOW
) -> FactorProof:
    """What answers a new challenge; the code is that of step 7."""
    key = digest()
    kind = await repository.challenge_factor(factor.user_id, session_id, factor.id, key, at, at + 5 * MINUTE)
    assert kind == "totp"
    return FactorProof(factor.user_id, session_id, factor.id, key, "totp", step=7)


async def prove(repository: Repository, proof: FactorProof, at: datetime = NOW) -> Any:
    return await repository.prove_factor(proof, session(at), event("verify_factor", at))


async def verified(
    repository: Repository, first: NewSession, user_id: str, name: str = "", step: int = 7
) -> Factor:
    factor = await enrolled(repository, user_id, name)
    await prove(repository, evolve(await challenged(repository, factor, first.id), step=step))
    return evolve(factor, is_verified=True)


async def refused(code: str, work: Any) -> None:
    with pytest.raises(ApiError) as caught:
        await work
    assert caught.value.code == code


async def factors(repository: Repository, user_id: str) -> tuple[Factor, ...]:
    profile = await repository.profile(user_id)
    assert profile is not None
    return profile.factors


@contract
async def test_a_factor_counts_once_it_is_verified(repository: Repository) -> None:
    first = session()
    user = (await made(repository, first=first)).user
    factor = await enrolled(repository, user.id, "phone")
    assert await factors(repository, user.id) == (factor,)
    assert await repository.find_factor(user.id, factor.id) == OwnFactor("totp", False, SECRET)
    assert not await repository.needs_factor(user.id, first.id)
    raised = await prove(repository, await challenged(repository, factor, first.id), NOW + SECOND)
    assert raised.user.id == user.id
    assert raised.began == SignIn(NOW, "password", "totp", NOW + SECOND)
    kept = evolve(factor, is_verified=True, updated_at=NOW + SECOND)
    assert await factors(repository, user.id) == (kept,)
    assert kept in await repository.all_factors()
    assert not await repository.needs_factor(user.id, first.id)
    assert await repository.needs_factor(user.id, str(uuid.uuid4()))


@contract
async def test_a_factor_is_its_users_alone(repository: Repository) -> None:
    mine, others = session(), session()
    user, other = (await made(repository, first=mine)).user, (await made(repository, first=others)).user
    factor = await enrolled(repository, user.id)
    assert await repository.find_factor(other.id, factor.id) is None
    none = await repository.challenge_factor(other.id, others.id, factor.id, digest(), NOW, NOW + HOUR)
    assert none is None
    assert await repository.delete_factors(other.id, event(), factor.id) == 0
    proof = await challenged(repository, factor, mine.id)
    for stolen in (
        evolve(proof, user_id=other.id, session_id=others.id),
        evolve(proof, session_id=others.id),
        evolve(proof, factor_id=(await enrolled(repository, user.id, "other")).id),
    ):
        await refused("factor_challenge_expired", prove(repository, stolen))
    await refused("factor_not_found", prove(repository, evolve(proof, user_id=other.id)))
    assert (await prove(repository, proof)).user == user


@contract
async def test_a_challenge_is_answered_once_and_in_time(repository: Repository) -> None:
    first = session()
    user = (await made(repository, first=first)).user
    factor = await enrolled(repository, user.id)
    proof = await challenged(repository, factor, first.id)
    await refused("factor_challenge_expired", prove(repository, evolve(proof, challenge=digest())))
    await refused("factor_challenge_expired", prove(repository, proof, NOW + 5 * MINUTE))
    await prove(repository, proof)
    await refused("factor_challenge_expired", prove(repository, evolve(proof, step=8)))


@contract
async def test_a_code_works_once_even_at_the_same_moment(repository: Repository) -> None:
    first = session()
    user = (await made(repository, first=first)).user
    factor = await enrolled(repository, user.id)
    proofs = [await challenged(repository, factor, first.id) for _ in range(4)]

    async def outcome(proof: FactorProof) -> str:
        try:
            await prove(repository, proof)
        except ApiError as refusal:
            return refusal.code
        return "raised"

    outcomes = await all_of(*(outcome(proof) for proof in proofs))
    assert sorted(outcomes) == [*["factor_verification_failed"] * 3, "raised"]
    # Nor does an earlier one.
    earlier = evolve(await challenged(repository, factor, first.id), step=6)
    await refused("factor_verification_failed", prove(repository, earlier))
    # The challenge of a code that is refused can still be answered.
    await prove(repository, evolve(earlier, step=8))


@contract
async def test_a_session_stays_raised_when_it_is_refreshed(repository: Repository) -> None:
    first, renewed = session(), session(NOW + SECOND)
    user = (await made(repository, first=first)).user
    factor = await enrolled(repository, user.id)
    proof = await challenged(repository, factor, first.id)
    await repository.prove_factor(proof, renewed, event("verify_factor", NOW + SECOND))
    (listed,) = await repository.list_sessions(user.id, NOW)
    assert (listed.id, listed.refreshed_at, listed.expires_at) == (
        first.id,
        NOW + SECOND,
        renewed.expires_at,
    )
    following = digest()
    rotated = await rotate(repository, renewed.digest, following, NOW + MINUTE)
    assert (rotated.outcome, rotated.session_id) == ("rotated", first.id)
    assert rotated.began == SignIn(NOW, "password", "totp", NOW + SECOND)
    again = await rotate(repository, following, digest(), NOW + HOUR)
    assert again.began.factor == "totp"


@contract
async def test_the_refresh_token_from_before_the_factor_does_not_lead_to_the_raised_session(
    repository: Repository,
) -> None:
    first = session()
    user = (await made(repository, first=first)).user
    await verified(repository, first, user.id)
    assert (await rotate(repository, first.digest, digest(), NOW + SECOND)).outcome == "stolen"
    assert await repository.list_sessions(user.id, NOW) == []


@contract
async def test_a_verified_factor_ends_the_sessions_without_one(repository: Repository) -> None:
    first, second, third, others = session(), session(), session(), session()
    account = await made(repository, first=first)
    other = (await made(repository, first=others)).user
    user = account.user
    for one in (second, third):
        await repository.start_session(account, None, one, event("login"))
    factor = await enrolled(repository, user.id)
    raised = await prove(repository, await challenged(repository, factor, first.id))
    assert {one for one, _ in raised.ended} == {second.id, third.id}
    until = (second.access_expires_at + MINUTE).timestamp()
    assert {at for _, at in raised.ended} == {until}
    assert set(raised.ended) <= set(await repository.ended_sessions(NOW))
    assert [one.id for one in await repository.list_sessions(user.id, NOW)] == [first.id]
    assert [one.id for one in await repository.list_sessions(other.id, NOW)] == [others.id]
    # Those with a factor stay.
    fourth = session(NOW + SECOND)
    await repository.start_session(account, None, fourth, event("login"))
    proof = evolve(await challenged(repository, factor, fourth.id), step=8)
    assert (await prove(repository, proof)).ended == []
    assert {one.id for one in await repository.list_sessions(user.id, NOW)} == {first.id, fourth.id}


@contract
async def test_nothing_is_raised_for_a_session_that_has_ended(repository: Repository) -> None:
    first, second = session(), session()
    account = await made(repository, first=first)
    user = account.user
    await repository.start_session(account, None, second, event("login"))
    factor = await enrolled(repository, user.id)
    proof = await challenged(repository, factor, first.id)
    await repository.end_sessions(user.id, event(), only=first.id)
    await refused("session_revoked", prove(repository, proof))
    assert await factors(repository, user.id) == (factor,)
    await repository.set_disabled(user.id, True, event())
    await refused("session_revoked", prove(repository, proof))
    await refused("session_revoked", enrolled(repository, user.id, "other"))
    await refused("session_revoked", enrolled(repository, str(uuid.uuid4())))


@contract
async def test_names_differ_and_there_are_so_many(repository: Repository) -> None:
    first = session()
    user = (await made(repository, first=first)).user
    await verified(repository, first, user.id, "a")
    await refused("factor_name_taken", enrolled(repository, user.id, "a"))
    await enrolled(repository, user.id, "b")
    await refused("too_many_factors", enrolled(repository, user.id, "c", maximum=2))
    await refused("factor_name_taken", enrolled(repository, user.id, "b", maximum=2))
    other = (await made(repository)).user
    assert await enrolled(repository, other.id, "a")
    added = [enrolled(repository, other.id, "same") for _ in range(3)]

    async def is_added(work: Any) -> bool:
        try:
            await work
        except ApiError:
            return False
        return True

    assert sum(await all_of(*map(is_added, added))) == 1


@contract
async def test_what_was_never_verified_makes_room(repository: Repository) -> None:
    first = session()
    user = (await made(repository, first=first)).user
    await enrolled(repository, user.id, "old", STALE)
    await enrolled(repository, user.id, "new", STALE + SECOND)
    again = await enrolled(repository, user.id, "old")
    assert {one.name for one in await factors(repository, user.id)} == {"old", "new"}
    await prove(repository, await challenged(repository, again, first.id))
    assert [one.id for one in await factors(repository, user.id)] == [again.id]
    later = new_factor(user.id, "later", NOW + HOUR)
    await repository.enrol_factor(later, SECRET, NOW + HOUR, 10, event(at=NOW + HOUR))
    assert {one.name for one in await factors(repository, user.id)} == {"old", "later"}


@contract
async def test_sessions_are_not_raised_by_a_factor_that_is_gone(repository: Repository) -> None:
    first, renewed = session(), session()
    user = (await made(repository, first=first)).user
    one = await verified(repository, first, user.id, "one")
    two = await enrolled(repository, user.id, "two")
    proof = evolve(await challenged(repository, two, first.id), step=9)
    await repository.prove_factor(proof, renewed, event())
    assert await repository.delete_factors(user.id, event(), one.id) == 1
    assert not await repository.needs_factor(user.id, first.id)
    assert await repository.delete_factors(user.id, event(), one.id) == 0
    assert await repository.delete_factors(user.id, event()) == 1
    assert await factors(repository, user.id) == ()
    rotated = await rotate(repository, renewed.digest, digest())
    assert rotated.began == SignIn(NOW)
    assert await repository.find_factor(user.id, two.id) is None


@contract
async def test_a_recovery_code_works_once(repository: Repository) -> None:
    first = session()
    user = (await made(repository, first=first)).user
    codes = [digest() for _ in range(3)]
    factor = await enrolled(repository, user.id)
    await repository.replace_recovery_codes(user.id, codes, event())
    proof = await challenged(repository, factor, first.id)
    # Not to verify a factor that nobody has ever had a code of.
    unused = evolve(proof, step=None, recovery=codes[0])
    await refused("factor_verification_failed", prove(repository, unused))
    await prove(repository, proof)
    used = evolve(await challenged(repository, factor, first.id), step=None, recovery=codes[0])
    assert (await prove(repository, used)).began.factor == "totp"
    again = await challenged(repository, factor, first.id)
    for recovery in (codes[0], digest()):
        await refused(
            "factor_verification_failed", prove(repository, evolve(again, step=None, recovery=recovery))
        )
    await repository.replace_recovery_codes(user.id, [digest()], event())
    replaced = evolve(again, step=None, recovery=codes[1])
    await refused("factor_verification_failed", prove(repository, replaced))


@contract
async def test_recovery_codes_go_with_the_last_factor(repository: Repository) -> None:
    first = session()
    user = (await made(repository, first=first)).user
    code, kept = digest(), digest()
    factor = await verified(repository, first, user.id, "one")
    await repository.replace_recovery_codes(user.id, [code, kept], event())
    two = await verified(repository, first, user.id, "two", 9)
    await repository.delete_factors(user.id, event(), factor.id)
    still = evolve(await challenged(repository, two, first.id), step=None, recovery=kept)
    await prove(repository, still)
    await repository.delete_factors(user.id, event(), two.id)
    anew = await verified(repository, first, user.id, "three")
    gone = evolve(await challenged(repository, anew, first.id), step=None, recovery=code)
    await refused("factor_verification_failed", prove(repository, gone))


async def with_all(repository: Repository, email: Email, *, confirmed: bool) -> tuple[str, Factor, Passkey]:
    """A user with a factor, a recovery code and a passkey, whose address was confirmed or not."""
    first = session()
    user = (await made(repository, email, first)).user
    if confirmed:
        key, _ = await issue(repository, email, purpose="confirmation")
        assert await confirm(repository, key, session(), event()) is not None
    factor = await verified(repository, first, user.id)
    await repository.replace_recovery_codes(user.id, [CODE], event())
    passkey = Passkey(str(uuid.uuid4()), user.id, "Passkey", new_key(), NOW)
    await repository.add_passkey(passkey, 10, event())
    return user.id, factor, passkey


CODE = b"c" * 32


@contract
async def test_a_recovery_keeps_factors(repository: Repository) -> None:
    email = address()
    user_id, factor, passkey = await with_all(repository, email, confirmed=True)
    key, _ = await issue(repository, email)
    assert await repository.reset_password(key, OTHER_HASH, event()) is not None
    assert [one.id for one in await factors(repository, user_id)] == [factor.id]
    assert await repository.passkeys(user_id) == [passkey]
    key, _ = await issue(repository, email, NOW + HOUR)
    begun = session(NOW + HOUR)
    redeemed = await repository.redeem(Answer(("recovery",), key), begun, None, event(at=NOW + HOUR))
    assert redeemed is not None
    assert await repository.needs_factor(user_id, begun.id)
    proof = await challenged(repository, factor, begun.id, NOW + HOUR)
    proof = evolve(proof, step=None, recovery=CODE)
    assert (await prove(repository, proof, NOW + HOUR)).user.id == user_id


@contract
async def test_whoever_proves_an_address_first_finds_no_passkey_of_somebody_elses(
    repository: Repository,
) -> None:
    """Factors stay: nobody gets in by them alone, and who reads somebody's e-mails must not get past theirs."""
    for by_password in (True, False):
        email = address()
        user_id, factor, _ = await with_all(repository, email, confirmed=False)
        key, _ = await issue(repository, email)
        begun = session()
        if by_password:
            assert await repository.reset_password(key, OTHER_HASH, event()) is not None
        else:
            assert await repository.redeem(Answer(("recovery",), key), begun, None, event()) is not None
            assert await repository.needs_factor(user_id, begun.id)
        assert [one.id for one in await factors(repository, user_id)] == [factor.id]
        assert await repository.passkeys(user_id) == []


@contract
async def test_a_deleted_user_leaves_no_factor(repository: Repository) -> None:
    first = session(LONG_AGO)
    user = (await made(repository, first=first, at=LONG_AGO)).user
    factor = await enrolled(repository, user.id)
    assert await repository.delete_user(user.id, event())
    assert factor.id not in {one.id for one in await repository.all_factors()}


# Passkeys, and keys as factors.


def new_key(count: int = 1) -> Credential:
    return Credential(digest(), b"public", count, str(uuid.uuid4()), ("internal", "usb"), True)


async def key_factor(repository: Repository, user_id: str, session_id: str) -> FactorProof:
    """A new factor that is a key, which does not exist yet, with what answers its challenge but for the key."""
    factor = evolve(new_factor(user_id, digest().hex()), type="webauthn")
    await repository.enrol_factor(factor, None, STALE, 10, event())
    return await key_challenged(repository, user_id, session_id, factor.id)


async def key_challenged(
    repository: Repository, user_id: str, session_id: str, factor_id: str
) -> FactorProof:
    key, until = digest(), NOW + 5 * MINUTE
    data = {"ceremony": "create"}
    kind = await repository.challenge_factor(user_id, session_id, factor_id, key, NOW, until, data)
    assert kind == "webauthn"
    pending = await repository.pending(("factor",), NOW, digest=key)
    assert pending is not None
    assert pending[1] == {"ceremony": "create", "factor": factor_id, "session": session_id}
    return FactorProof(user_id, session_id, factor_id, key, "webauthn")


@contract
async def test_a_key_of_a_factor_is_kept_and_its_counter_goes_up(repository: Repository) -> None:
    first = session()
    user = (await made(repository, first=first)).user
    proof, key = await key_factor(repository, user.id, first.id), new_key()
    assert await repository.find_factor(user.id, proof.factor_id) == OwnFactor("webauthn", False)
    raised = await prove(repository, evolve(proof, credential=key))
    assert raised.began.factor == "webauthn"
    known = OwnFactor("webauthn", True, None, key)
    assert await repository.find_factor(user.id, proof.factor_id) == known
    again = await key_challenged(repository, user.id, first.id, proof.factor_id)
    await refused("passkey_verification_failed", prove(repository, evolve(again, credential=key)))
    await prove(repository, evolve(again, credential=evolve(key, sign_count=3)))
    known = OwnFactor("webauthn", True, None, evolve(key, sign_count=3))
    assert await repository.find_factor(user.id, proof.factor_id) == known
    # It shows the factor, and does not sign in.
    assert await repository.find_passkey(key.id) is None
    assert await repository.passkeys(user.id) == []


@contract
async def test_a_key_is_for_one_factor_or_passkey(repository: Repository) -> None:
    first = session()
    user = (await made(repository, first=first)).user
    one = await key_factor(repository, user.id, first.id)
    key = new_key()
    await prove(repository, evolve(one, credential=key))
    three = await key_factor(repository, user.id, first.id)
    await refused("passkey_taken", prove(repository, evolve(three, credential=key)))
    passkey = Passkey(str(uuid.uuid4()), user.id, "Passkey", key, NOW)
    await refused("passkey_taken", repository.add_passkey(passkey, 10, event()))
    # Nor has it a step or a code.
    await refused("factor_verification_failed", prove(repository, evolve(three, step=7)))


@contract
async def test_passkeys_are_their_users(repository: Repository) -> None:
    user, other = (await made(repository)).user, (await made(repository)).user
    passkey = Passkey(str(uuid.uuid4()), user.id, "Passkey", new_key(), NOW)
    await repository.add_passkey(passkey, 2, event())
    later = Passkey(str(uuid.uuid4()), user.id, "Later", new_key(), NOW + SECOND)
    await repository.add_passkey(later, 2, event(at=NOW + SECOND))
    more = Passkey(str(uuid.uuid4()), user.id, "More", new_key(), NOW)
    await refused("too_many_passkeys", repository.add_passkey(more, 2, event()))
    gone = evolve(more, user_id=str(uuid.uuid4()))
    await refused("session_revoked", repository.add_passkey(gone, 2, event()))
    assert await repository.passkeys(user.id) == [passkey, later]
    assert await repository.passkeys(other.id) == []
    assert await repository.find_passkey(passkey.credential.id) == passkey
    assert await repository.find_passkey(digest()) is None
    assert await repository.rename_passkey(other.id, passkey.id, "stolen", event()) is None
    renamed = await repository.rename_passkey(user.id, passkey.id, "laptop", event())
    assert renamed == evolve(passkey, name="laptop")
    assert not await repository.delete_passkey(other.id, passkey.id, event())
    assert await repository.delete_passkey(user.id, passkey.id, event())
    assert not await repository.delete_passkey(user.id, passkey.id, event())
    assert await repository.passkeys(user.id) == [later]
    assert await repository.delete_user(user.id, event())
    assert await repository.find_passkey(later.credential.id) is None


@contract
async def test_a_passkey_begins_a_session_if_its_counter_goes_up(repository: Repository) -> None:
    user = (await made(repository)).user
    for counts in ((4, [5]), (0, [0, 0])):
        passkey = Passkey(str(uuid.uuid4()), user.id, "Passkey", new_key(counts[0]), NOW)
        await repository.add_passkey(passkey, 10, event())
        for count in counts[1]:
            begun = evolve(session(NOW + HOUR), method="webauthn")
            used = evolve(passkey, credential=evolve(passkey.credential, sign_count=count))
            entered = await repository.begin_by_passkey(used, begun, event("login", NOW + HOUR))
            assert entered is not None
            assert (entered.id, entered.last_login_at, entered.confirmed_at) == (user.id, NOW + HOUR, None)
            assert begun.id in {one.id for one in await repository.list_sessions(user.id, NOW)}
            known = await repository.find_passkey(passkey.credential.id)
            assert known == evolve(used, last_used_at=NOW + HOUR)
    low = evolve(passkey, credential=evolve(passkey.credential, sign_count=5))
    await repository.begin_by_passkey(low, session(), event())
    for count in (5, 4, 0):
        copied = evolve(passkey, credential=evolve(passkey.credential, sign_count=count))
        await refused("passkey_verification_failed", repository.begin_by_passkey(copied, session(), event()))
    await repository.set_disabled(user.id, True, event())
    high = evolve(passkey, credential=evolve(passkey.credential, sign_count=9))
    assert await repository.begin_by_passkey(high, session(), event()) is None


@contract
async def test_of_two_at_once_with_one_counter_one_signs_in(repository: Repository) -> None:
    user = (await made(repository)).user
    passkey = Passkey(str(uuid.uuid4()), user.id, "Passkey", new_key(1), NOW)
    await repository.add_passkey(passkey, 10, event())
    used = evolve(passkey, credential=evolve(passkey.credential, sign_count=2))

    async def outcome() -> bool:
        try:
            return await repository.begin_by_passkey(used, session(), event()) is not None
        except ApiError:
            return False

    assert sum(await all_of(*(outcome() for _ in range(4)))) == 1
