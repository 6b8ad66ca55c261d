"""The contract of challenges, for the fake and for PostgreSQL."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

import pytest
from attrs import evolve

from project_service.auth.postgres import Repository
from project_service.auth.values import (
    MAX_TRIES,
    Answer,
    AuthCode,
    Email,
    Limit,
    NewChallenge,
    Proof,
    Redeemed,
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


@contract
async def test_a_recovery_token_works_once_and_ends_every_session(repository: Repository) -> None:
    email, first = address(), session()
    account = await made(repository, email, first)
    key, user = await issue(repository, email)
    assert user == account.user
    assert await repository.owner_of_token(key, ("recovery",), NOW) == account.user
    assert await repository.owner_of_token(key, ("confirmation",), NOW) is None
    assert await repository.owner_of_token(key, ("recovery",), NOW + HOUR) is None
    assert await repository.reset_password(key, OTHER_HASH, event(at=NOW + HOUR)) is None
    results = await all_of(*(repository.reset_password(key, OTHER_HASH, event()) for _ in range(4)))
    assert sorted(one is None for one in results) == [False, True, True, True]
    again = await repository.find_user(account.user.id)
    assert again is not None
    assert (again.password_hash, again.confirmed_at) == (OTHER_HASH, NOW)
    assert await repository.list_sessions(account.user.id, NOW) == []


@contract
async def test_an_invitation_sets_the_first_password(repository: Repository) -> None:
    email = address()
    account = await made(repository, email)
    key, _ = await issue(repository, email, purpose="invitation")
    assert await repository.owner_of_token(key, ("recovery", "invitation"), NOW) == account.user
    assert await repository.owner_of_token(key, ("recovery",), NOW) is None
    assert await repository.reset_password(key, OTHER_HASH, event()) == account.user
    again = await repository.find_user(account.user.id)
    assert again is not None
    assert (again.password_hash, again.confirmed_at) == (OTHER_HASH, NOW)
    assert await repository.reset_password(key, OTHER_HASH, event()) is None


@contract
async def test_a_token_is_valid_only_for_its_purpose(repository: Repository) -> None:
    email = address()
    account = await made(repository, email)
    recovery, _ = await issue(repository, email)
    confirmation, _ = await issue(repository, email, purpose="confirmation")
    assert await repository.reset_password(confirmation, OTHER_HASH, event()) is None
    assert await confirm(repository, recovery, session(), event()) is None
    assert await confirm(repository, confirmation, session(), event(at=NOW + HOUR)) is None
    assert await repository.find_user(account.user.id) == account
    assert await repository.owner_of_token(recovery, ("recovery",), NOW) == account.user
    assert await repository.owner_of_token(confirmation, ("confirmation",), NOW) == account.user


@contract
async def test_a_reset_invalidates_earlier_mails(repository: Repository) -> None:
    """A confirmation begins a session, and the reset has ended every one."""
    email = address()
    await made(repository, email)
    older, _ = await issue(repository, email, purpose="confirmation")
    key, _ = await issue(repository, email)
    assert await repository.reset_password(key, OTHER_HASH, event()) is not None
    assert await confirm(repository, older, session(), event()) is None


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
    assert await repository.owner_of_token(mail, ("recovery",), NOW) == other.user


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
    assert await repository.owner_of_token(early, ("recovery",), NOW + MINUTE) is None
    second, user = await issue(repository, email, NOW + MINUTE)
    assert user is not None
    assert await repository.owner_of_token(first, ("recovery",), NOW + MINUTE) is None
    # The newer one has an hour, and a minute's pause, of its own.
    assert await repository.owner_of_token(second, ("recovery",), NOW + HOUR) == user
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
    assert await confirm(repository, key, begun, event()) == started
    assert await confirm(repository, key, session(), event()) is None
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
    assert await confirm(repository, key, session(), event()) is None
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
    assert await repository.owner_of_token(recovery, ("recovery",), NOW) == account.user
    await repository.set_password(account.user.id, OTHER_HASH, None, event())
    assert await repository.owner_of_token(recovery, ("recovery",), NOW) is None
    assert await repository.owner_of_token(others, ("recovery",), NOW) == other
    assert await repository.owner_of_token(confirmation, ("confirmation",), NOW) == account.user


@contract
async def test_a_new_password_ends_what_others_may_have_begun(repository: Repository) -> None:
    """Whoever had the account before could change its address afterwards, or exchange a code for a session."""
    email, new, code = address(), address(), AuthCode(digest(), NOW + MINUTE)
    account = await made(repository, email)
    for changes in (
        lambda: repository.set_password(account.user.id, OTHER_HASH, None, event()),
        lambda: reset(repository, email),
    ):
        kept, _ = await issue(repository, email, pause=0 * MINUTE, data={"code_challenge": "plain x"})
        await repository.redeem(Answer(("recovery",), kept), session(), code, event())
        current, change = await changing(repository, email, new, both=False)
        mail, _ = await issue(repository, email, purpose="magic_link", pause=0 * MINUTE)
        await changes()
        assert await repository.exchange(code.digest, ("plain x",), session(), event()) is None
        purpose: Any
        for purpose, key in (
            ("email_change", change),
            ("email_change_current", current),
            ("magic_link", mail),
        ):
            assert await redeem(repository, Answer((purpose,), key)) is None
    known = await repository.find_user(account.user.id)
    assert known is not None and known.user.email == email.address


async def reset(repository: Repository, email: Email) -> None:
    key, _ = await issue(repository, email, pause=0 * MINUTE)
    assert await repository.reset_password(key, OTHER_HASH, event()) is not None


# Codes.

RIGHT, WRONG = b"r" * 32, b"w" * 32


def by_code(email: Email, code: bytes, *purposes: Any, user_id: str | None = None) -> Answer:
    return Answer(purposes or ("magic_link",), None, email.key, (b"k" * 32, code), user_id)


async def redeem(repository: Repository, answer: Answer, at: datetime = NOW, **more: Any) -> Redeemed | None:
    return await repository.redeem(answer, more.get("begins"), more.get("auth_code"), event(at=at))


@contract
async def test_a_code_works_once_also_for_many_at_once(repository: Repository) -> None:
    email = address()
    account = await made(repository, email)
    await issue(repository, email, purpose="magic_link", code_hash=RIGHT)
    begun = [session() for _ in range(4)]
    answers = await all_of(*(redeem(repository, by_code(email, RIGHT), begins=one) for one in begun))
    assert sorted(one is None for one in answers) == [False, True, True, True]
    redeemed = next(one for one in answers if one is not None)
    assert redeemed.session.method == "otp"
    assert redeemed.user == evolve(account.user, confirmed_at=NOW, last_login_at=NOW)
    assert [one.id for one in await repository.list_sessions(account.user.id, NOW)] == [redeemed.session.id]


@contract
async def test_the_fifth_wrong_code_ends_a_challenge_for_codes(repository: Repository) -> None:
    email = address()
    await made(repository, email)
    await issue(repository, email, purpose="magic_link", code_hash=RIGHT)
    wrong = [redeem(repository, by_code(email, WRONG)) for _ in range(MAX_TRIES - 1)]
    assert await all_of(*wrong) == [None] * (MAX_TRIES - 1)
    # Codes for other purposes, other addresses, and at other times are none of these tries.
    assert await redeem(repository, by_code(email, WRONG, "recovery")) is None
    assert await redeem(repository, by_code(address(), WRONG)) is None
    assert await redeem(repository, by_code(email, WRONG), NOW + HOUR) is None
    await issue(repository, email, NOW + MINUTE, purpose="magic_link", code_hash=RIGHT)
    # The new challenge has tries of its own.
    assert await redeem(repository, by_code(email, WRONG)) is None
    assert await redeem(repository, by_code(email, RIGHT)) is not None
    key, _ = await issue(repository, email, NOW + 2 * MINUTE, purpose="magic_link", code_hash=RIGHT)
    await all_of(*(redeem(repository, by_code(email, WRONG)) for _ in range(MAX_TRIES)))
    assert await redeem(repository, by_code(email, RIGHT)) is None
    # Nobody guesses the token, so strangers do not keep its owner from using it.
    assert await redeem(repository, Answer(("magic_link",), key)) is not None


@contract
async def test_a_code_is_for_its_purpose_address_user_and_time(repository: Repository) -> None:
    email, another = address(), address()
    account = await made(repository, email)
    other = await made(repository, another)
    await issue(repository, email, purpose="reauthentication", code_hash=RIGHT)
    mine = account.user.id
    for answer, at in (
        (by_code(email, RIGHT, "magic_link", "recovery"), NOW),
        (by_code(another, RIGHT, "reauthentication"), NOW),
        (by_code(email, RIGHT, "reauthentication", user_id=other.user.id), NOW),
        (by_code(email, RIGHT, "reauthentication", user_id=mine), NOW + HOUR),
    ):
        assert await redeem(repository, answer, at) is None
    redeemed = await redeem(repository, by_code(email, RIGHT, "reauthentication", user_id=mine))
    # Nothing was proven but that it is the same user.
    assert redeemed is not None and redeemed.user.confirmed_at is None and redeemed.session is None


@contract
async def test_the_first_of_the_purposes_that_a_code_can_be_for_is_taken(repository: Repository) -> None:
    email = address()
    await made(repository, email)
    for purpose in ("magic_link", "confirmation"):
        await issue(repository, email, purpose=purpose, code_hash=RIGHT)
    answer = by_code(email, RIGHT, "confirmation", "magic_link")
    purposes = [(await redeem(repository, answer)), (await redeem(repository, answer))]
    assert [one and one.purpose for one in purposes] == ["confirmation", "magic_link"]


@contract
async def test_whoever_has_confirmed_the_address_gets_another_challenge(repository: Repository) -> None:
    email = address()
    account = await made(repository, email)
    asked = NewChallenge("confirmation", "already_registered", digest(), NOW, NOW + HOUR, email=email)
    assert await repository.issue(asked, MINUTE, event()) == (account.user, "confirmation")
    confirmed = await confirm(repository, asked.digest, session(), event())
    again = evolve(asked, digest=digest())
    assert await repository.issue(again, MINUTE, event()) == (confirmed, "already_registered")
    # It says something, and can be answered for nothing else.
    assert await confirm(repository, again.digest, session(), event()) is None


@contract
async def test_a_client_exchanges_an_authorization_code_once_with_its_verifier(
    repository: Repository,
) -> None:
    email, code = address(), AuthCode(digest(), NOW + MINUTE)
    account = await made(repository, email)
    key, _ = await issue(repository, email, data={"code_challenge": "s256 right"})
    begun = session()
    redeemed = await repository.redeem(Answer(("recovery",), key), begun, code, event())
    assert redeemed is not None and redeemed.session is None
    assert await repository.list_sessions(account.user.id, NOW) == []
    with pytest.raises(ApiError) as wrong:
        await repository.exchange(code.digest, ("s256 wrong", "plain right"), begun, event())
    assert wrong.value.code == "bad_code_verifier"
    right = ("s256 right", "plain x")
    assert await repository.exchange(digest(), right, begun, event()) is None
    assert await repository.exchange(code.digest, right, begun, event(at=NOW + MINUTE)) is None
    answers = await all_of(
        *(repository.exchange(code.digest, right, one, event()) for one in (begun, session()))
    )
    assert sorted(one is None for one in answers) == [False, True]
    assert next(one for one in answers if one).session.method == "recovery"


@contract
async def test_an_authorization_code_lets_nobody_in_who_is_disabled_by_then(repository: Repository) -> None:
    email, code = address(), AuthCode(digest(), NOW + MINUTE)
    account = await made(repository, email)
    key, _ = await issue(repository, email, data={"code_challenge": "plain x"})
    await repository.redeem(Answer(("recovery",), key), session(), code, event())
    await repository.set_disabled(account.user.id, True, event())
    assert await repository.exchange(code.digest, ("plain x",), session(), event()) is None


# Who signs up with an address that is somebody else's.


TAKES_OVER = {"takes_over": True}


@contract
async def test_whoever_signed_up_first_has_nothing_once_the_address_is_proven(repository: Repository) -> None:
    """Pre-hijacking: otherwise they would share the account with its owner."""
    purpose: Any
    for purpose, data in (
        ("magic_link", {}),
        ("recovery", {}),
        ("invitation", {}),
        ("confirmation", TAKES_OVER),
    ):
        email, new, theirs, mine = address(), address(), session(), session()
        # Who may come by a recovery may have signed in before.
        account = await made(repository, email, theirs if purpose in ("recovery", "invitation") else None)
        _, change = await changing(repository, email, new, both=False)
        key, _ = await issue(repository, email, purpose=purpose, data=data)
        redeemed = await redeem(repository, Answer((purpose,), key), begins=mine)
        assert redeemed is not None and redeemed.user.confirmed_at == NOW
        known = await repository.find_user(account.user.id)
        assert known is not None and known.password_hash == b""
        assert [one.id for one in await repository.list_sessions(account.user.id, NOW)] == [mine.id]
        assert await rotate(repository, theirs.digest, digest()) is None
        assert await redeem(repository, Answer(("email_change",), change)) is None


@contract
async def test_whoever_has_signed_in_before_keeps_the_password_when_they_come_by_a_code(
    repository: Repository,
) -> None:
    """Only where nobody confirms addresses could they, and there an application may offer both ways."""
    for purpose, data in (("magic_link", {}), ("confirmation", TAKES_OVER)):
        email, theirs = address(), session()
        account = await made(repository, email, theirs)
        key, _ = await issue(repository, email, purpose=purpose, data=data)
        answer: Any = Answer((purpose,), key)  # type: ignore[arg-type]  # mypy takes it for a str
        assert await redeem(repository, answer, begins=session()) is not None
        known = await repository.find_user(account.user.id)
        assert known is not None and known.password_hash == account.password_hash
        assert theirs.id in [one.id for one in await repository.list_sessions(account.user.id, NOW)]


@contract
async def test_whoever_has_shown_it_before_keeps_everything(repository: Repository) -> None:
    email, theirs = address(), session()
    account = await made(repository, email, theirs)
    confirmation, _ = await issue(repository, email, purpose="confirmation")
    assert await confirm(repository, confirmation, session(), event()) is not None
    key, _ = await issue(repository, email, purpose="magic_link", data=TAKES_OVER)
    assert await redeem(repository, Answer(("magic_link",), key), begins=session()) is not None
    known = await repository.find_user(account.user.id)
    assert known is not None and known.password_hash == account.password_hash
    assert theirs.id in [one.id for one in await repository.list_sessions(account.user.id, NOW)]


@contract
async def test_a_confirmation_takes_over_until_it_is_answered(repository: Repository) -> None:
    """Whatever else is asked for after or shortly before: strangers may ask for it too."""
    requests: tuple[tuple[datetime, dict[str, Any]], ...]
    for requests in (
        ((NOW, TAKES_OVER), (NOW + MINUTE, {})),
        ((NOW, {}), (NOW + SECOND, TAKES_OVER)),
    ):
        email, keys = address(), []
        account = await made(repository, email)
        for at, data in requests:
            key, user = await issue(repository, email, at, "confirmation", data=data)
            keys += [key] if user is not None else []
        assert await confirm(repository, keys[-1], session(), event()) is not None
        known = await repository.find_user(account.user.id)
        assert known is not None and known.password_hash == b""


# A change of address.


async def changing(
    repository: Repository, email: Email, new: Email, *, both: bool, at: datetime = NOW
) -> tuple[bytes, bytes]:
    data = {"email": new.address, "email_key": new.key, "both": both}
    current, _ = await issue(repository, email, at, "email_change_current", data=data)
    return current, await mailed_anew(repository, email, new, at, data)


async def mailed_anew(repository: Repository, email: Email, new: Email, at: datetime, data: Any) -> bytes:
    """The digest of the token that ``new`` gets."""
    user, key = await repository.find_user_by_email(email), digest()
    assert user is not None
    asked = NewChallenge(
        "email_change", "email_change", key, at, at + HOUR, email=new, user_id=user.user.id, data=data
    )
    await repository.issue(asked, MINUTE, event(at=at))
    return key


@contract
async def test_half_a_change_confirms_no_other_address(repository: Repository) -> None:
    """Otherwise somebody could confirm an address of their own, and get that of somebody else for it."""
    email, own, others = address(), address(), address()
    account = await made(repository, email)
    await changing(repository, email, own, both=True)
    data = {"email": own.address, "email_key": own.key, "both": True}
    of_own = await mailed_anew(repository, email, own, NOW + MINUTE, data)
    of_others = {"email": others.address, "email_key": others.key, "both": True}
    current, _ = await issue(repository, email, NOW + MINUTE, "email_change_current", data=of_others)
    half = await redeem(repository, Answer(("email_change",), of_own), NOW + MINUTE)
    assert half is not None and half.half
    other = await redeem(repository, Answer(("email_change_current",), current), NOW + MINUTE)
    assert other is not None and other.half
    known = await repository.find_user(account.user.id)
    assert known is not None and known.user.email == email.address


@contract
async def test_another_new_address_replaces_the_one_before_at_once(repository: Repository) -> None:
    """Somebody who has mistyped it need not wait."""
    email, mistyped, new = address(), address(), address()
    account = await made(repository, email)
    older = await changing(repository, email, mistyped, both=True)
    keys = await changing(repository, email, new, both=True, at=NOW + SECOND)
    purposes: Any = ("email_change", "email_change_current")
    for key in older:
        assert await redeem(repository, Answer(purposes, key)) is None
    for key in keys:
        assert await redeem(repository, Answer(purposes, key)) is not None
    known = await repository.find_user(account.user.id)
    assert known is not None and known.user.email == new.address


@contract
async def test_the_address_of_a_disabled_user_stays(repository: Repository) -> None:
    email, new = address(), address()
    account = await made(repository, email)
    _, key = await changing(repository, email, new, both=False)
    await repository.set_disabled(account.user.id, True, event())
    assert await redeem(repository, Answer(("email_change",), key)) is None
    known = await repository.find_user(account.user.id)
    assert known is not None and known.user.email == email.address


@contract
async def test_an_address_changes_when_the_new_one_is_confirmed(repository: Repository) -> None:
    email, new = address(), address()
    account = await made(repository, email)
    _, key = await changing(repository, email, new, both=False)
    recovery, _ = await issue(repository, email)
    profile = await repository.profile(account.user.id)
    assert profile is not None and (profile.new_email, profile.sent["email_change"]) == (new.address, NOW)
    redeemed = await redeem(repository, Answer(("email_change", "email_change_current"), key))
    assert redeemed is not None and not redeemed.half and redeemed.user.email == new.address
    assert await repository.find_user_by_email(email) is None
    # What was sent to the address before is void.
    assert await repository.owner_of_token(recovery, ("recovery",), NOW) is None
    profile = await repository.profile(account.user.id)
    assert profile is not None and profile.identities[0].data["email"] == new.address


@contract
async def test_two_addresses_confirm_a_change_in_either_order(repository: Repository) -> None:
    for first in (0, 1):
        email, new = address(), address()
        await made(repository, email)
        keys = await changing(repository, email, new, both=True)
        purposes: Any = ("email_change", "email_change_current")
        half = await redeem(repository, Answer(purposes, keys[first]))
        assert half is not None and half.half and half.user.email == email.address
        whole = await redeem(repository, Answer(purposes, keys[1 - first]))
        assert whole is not None and not whole.half and whole.user.email == new.address


@contract
async def test_an_address_does_not_change_to_one_that_is_taken_by_then(repository: Repository) -> None:
    email, new = address(), address()
    account = await made(repository, email)
    _, key = await changing(repository, email, new, both=False)
    await made(repository, new)
    with pytest.raises(ApiError) as taken:
        await redeem(repository, Answer(("email_change",), key))
    assert taken.value.code == "email_taken"
    with pytest.raises(ApiError) as taken:
        await repository.change_email(account.user.id, new, event())
    assert taken.value.code == "email_taken"
    known = await repository.find_user(account.user.id)
    assert known is not None and known.user.email == email.address


@contract
async def test_users_without_an_address_are_many_and_get_one_later(repository: Repository) -> None:
    made_up = [
        await repository.create_user(
            email=None,
            password_hash=None,
            metadata={},
            app_metadata={},
            confirmed=False,
            session=session(),
            event=event(),
            is_anonymous=True,
        )
        for _ in range(2)
    ]
    first = made_up[0]
    assert first is not None and (first.user.email, first.user.is_anonymous) == ("", True)
    profile = await repository.profile(first.user.id)
    assert profile is not None and profile.identities == ()
    changed = await repository.change_email(first.user.id, email := address(), event())
    assert changed is not None
    assert (changed.user.email, changed.user.is_anonymous) == (email.address, False)
    profile = await repository.profile(first.user.id)
    assert profile is not None and [one.provider for one in profile.identities] == ["email"]


@contract
async def test_who_is_disabled_for_a_time_may_sign_in_afterwards(repository: Repository) -> None:
    account = await made(repository)
    until = NOW + 20 * HOUR
    disabled = await repository.set_disabled(account.user.id, True, event(), until)
    assert disabled is not None and disabled.disabled_until == until
    for at, still in ((until, True), (until + SECOND, False)):
        await repository.delete_expired(at, LONG_AGO, LONG_AGO, LONG_AGO)
        known = await repository.find_user(account.user.id)
        assert known is not None and (known.disabled_at is not None) is still


@contract
async def test_anonymous_users_without_a_session_are_found(repository: Repository) -> None:
    async def begun(at: datetime) -> tuple[str, bytes]:
        first = session(at)
        account = await repository.create_user(
            email=None,
            password_hash=None,
            metadata={},
            app_metadata={},
            confirmed=False,
            session=first,
            event=event(at=at),
            is_anonymous=True,
        )
        assert account is not None
        return account.user.id, first.digest

    unused, _ = await begun(LONG_AGO)
    used, token = await begun(LONG_AGO)
    named = await made(repository, first=session(LONG_AGO), at=LONG_AGO)
    await rotate(repository, token, digest(), LONG_AGO + 2 * HOUR)
    found = await repository.unused_anonymous_users(LONG_AGO + HOUR)
    assert unused in found and not {used, named.user.id} & set(found)
    assert unused not in await repository.unused_anonymous_users(LONG_AGO)
    # Who is none of them any more stays: somebody may have become a user like others since.
    for one, since in ((used, LONG_AGO + HOUR), (named.user.id, NOW), (unused, LONG_AGO)):
        assert not await repository.delete_user(one, event(), unused_since=since)
    assert await repository.delete_user(unused, event(), unused_since=LONG_AGO + HOUR)
    await repository.delete_user(used, event())
