"""The contract of sessions and refresh tokens, for the fake and for PostgreSQL."""

from __future__ import annotations

import itertools
import uuid

from attrs import evolve

from project_service.audit import Origin
from project_service.auth.postgres import Repository
from project_service.auth.values import Proof, SignIn
from tests.contracts.auth.users import (
    HASH,
    HOUR,
    LONG_AGO,
    MINUTE,
    NOW,
    OTHER_HASH,
    SECOND,
    all_of,
    contract,
    digest,
    event,
    made,
    rotate,
    session,
)

THIRD_HASH = b"$2b$04$" + b"c" * 53


@contract
async def test_a_session_starts_only_with_the_password_that_was_checked(repository: Repository) -> None:
    account = await made(repository)
    started = evolve(account.user, last_login_at=NOW)
    assert await repository.start_session(account, None, session(), event()) == started
    stale = evolve(account, password_hash=OTHER_HASH)
    assert await repository.start_session(stale, None, session(), event()) is None
    assert await repository.start_session(account, OTHER_HASH, session(), event()) == started
    again = await repository.find_user(account.user.id)
    assert again is not None
    assert (again.password_hash, again.last_login_at) == (OTHER_HASH, NOW)
    await repository.set_disabled(account.user.id, True, event())
    assert await repository.start_session(again, None, session(), event()) is None


@contract
async def test_a_refresh_token_is_rotated_then_repeated_then_taken_for_stolen(repository: Repository) -> None:
    first, others = session(), session()
    # Another user, whose session must not be affected.
    other = await made(repository, first=others)
    account = await made(repository, first=first)
    child, grandchild, unneeded = digest(), digest(), digest()
    rotated = await rotate(repository, first.digest, child, salt=b"1" * 32)
    assert (rotated.outcome, rotated.session_id, rotated.user) == ("rotated", first.id, account.user)
    assert rotated.began == SignIn(NOW)
    repeated = await rotate(repository, first.digest, unneeded, NOW + 9 * SECOND, salt=b"2" * 32)
    assert (repeated.outcome, repeated.salts) == ("repeated", {first.digest: b"1" * 32})
    assert (repeated.session_id, repeated.user) == (first.id, account.user)
    assert await rotate(repository, unneeded, digest(), NOW + 9 * SECOND) is None
    assert (
        await rotate(repository, child, grandchild, NOW + 9 * SECOND, salt=b"3" * 32)
    ).outcome == "rotated"
    # This is no longer the immediate parent, but it was replaced a moment ago: both salts lead to the active token.
    again = await rotate(repository, first.digest, digest(), NOW + 9 * SECOND)
    assert (again.outcome, again.salts) == ("repeated", {first.digest: b"1" * 32, child: b"3" * 32})
    stolen = await rotate(repository, first.digest, digest(), NOW + 10 * SECOND)
    assert (stolen.outcome, stolen.session_id, stolen.user) == ("stolen", first.id, account.user)
    assert stolen.salts == {}
    assert await rotate(repository, grandchild, digest(), NOW + 10 * SECOND) is None
    assert await repository.list_sessions(account.user.id, NOW) == []
    assert first.id in dict(await repository.ended_sessions(NOW))
    assert [one.id for one in await repository.list_sessions(other.user.id, NOW)] == [others.id]


@contract
async def test_a_repeat_gets_the_recent_salts_of_its_own_session_only(repository: Repository) -> None:
    first, others, line = session(), session(), [digest() for _ in range(4)]
    await made(repository, first=first)
    await made(repository, first=others)
    for token, successor in itertools.pairwise([others.digest, digest(), digest()]):
        await rotate(repository, token, successor, NOW + 27 * SECOND)
    for at, (token, successor) in enumerate(zip([first.digest, *line], [*line, digest()], strict=True)):
        await rotate(repository, token, successor, NOW + at * 9 * SECOND, salt=bytes([at]) * 32)
    repeated = await rotate(repository, line[3], digest(), NOW + 37 * SECOND)
    assert repeated.salts == {line[at]: bytes([at + 1]) * 32 for at in (1, 2, 3)}
    await repository.delete_expired(NOW + 37 * SECOND, NOW + 27 * SECOND, LONG_AGO, NOW - HOUR)
    repeated = await rotate(repository, line[3], digest(), NOW + 37 * SECOND)
    assert repeated.salts == {line[at]: bytes([at + 1]) * 32 for at in (2, 3)}


@contract
async def test_a_repeat_is_led_past_a_rotation_by_a_host_whose_clock_is_behind(
    repository: Repository,
) -> None:
    """That rotation seems older than it is; without its salt the repeat could not reach the active token."""
    first = session()
    await made(repository, first=first)
    line = [first.digest, digest(), digest(), digest()]
    for number, seconds in enumerate((0, -3, 8)):
        at, salt = NOW + seconds * SECOND, bytes([number]) * 32
        assert (await rotate(repository, line[number], line[number + 1], at, salt=salt)).outcome == "rotated"
    repeated = await rotate(repository, first.digest, digest(), NOW + 9 * SECOND)
    assert repeated.salts == {line[number]: bytes([number]) * 32 for number in range(3)}


@contract
async def test_a_token_that_would_have_expired_unused_is_forgotten(repository: Repository) -> None:
    """Using it is no theft any more; but the last two tokens of a session are kept however long they may live."""
    first, child, grandchild = session(), digest(), digest()
    account = await made(repository, first=first)
    await rotate(repository, first.digest, child, NOW + HOUR)
    await rotate(repository, child, grandchild, NOW + 2 * HOUR)
    later = NOW + 2 * HOUR + SECOND
    await repository.delete_expired(later, NOW, NOW, NOW)
    assert (await rotate(repository, child, digest(), later)).outcome == "repeated"
    await repository.delete_expired(later, NOW, later, NOW)
    assert await rotate(repository, first.digest, digest(), later) is None
    assert (await rotate(repository, child, digest(), later)).outcome == "repeated"
    assert (await rotate(repository, grandchild, last := digest(), later)).outcome == "rotated"
    assert (await rotate(repository, last, digest(), later)).outcome == "rotated"
    await repository.delete_expired(later, NOW, NOW + 90 * MINUTE, NOW)
    assert await rotate(repository, child, digest(), later) is None
    assert (await rotate(repository, grandchild, digest(), NOW + 3 * HOUR)).outcome == "stolen"
    assert await repository.list_sessions(account.user.id, NOW) == []


@contract
async def test_a_repeat_after_the_window_is_theft_once_the_successor_was_used(repository: Repository) -> None:
    first, child = session(), digest()
    await made(repository, first=first)
    await rotate(repository, first.digest, child)
    # Repeats do not prolong the window.
    assert (await rotate(repository, first.digest, digest(), NOW + 9 * SECOND)).outcome == "repeated"
    assert (await rotate(repository, child, digest(), NOW + 9 * SECOND)).outcome == "rotated"
    assert (await rotate(repository, first.digest, digest(), NOW + 10 * SECOND)).outcome == "stolen"


@contract
async def test_a_token_whose_successor_was_never_used_stays_good(repository: Repository) -> None:
    """The answer with the successor was lost. When it is given again, the window begins anew for other tabs."""
    first, child, later = session(), digest(), NOW + 20 * HOUR
    account = await made(repository, first=first)
    await rotate(repository, first.digest, child, salt=b"1" * 32)
    await repository.delete_expired(later, later, later, LONG_AGO)
    there = Origin("192.0.2.99", "another browser")
    for at in (later, later + 9 * SECOND):
        repeated = await rotate(repository, first.digest, digest(), at, origin=there)
        assert (repeated.outcome, repeated.salts) == ("repeated", {first.digest: b"1" * 32})
    (listed,) = await repository.list_sessions(account.user.id, later)
    assert (listed.refreshed_at, listed.expires_at) == (later, later + 24 * HOUR)
    assert listed.address == "192.0.2.99"
    assert (await rotate(repository, child, grandchild := digest(), later + 9 * SECOND)).outcome == "rotated"
    assert (await rotate(repository, first.digest, digest(), later + 9 * SECOND)).outcome == "repeated"
    assert (await rotate(repository, grandchild, digest(), later + 9 * SECOND)).outcome == "rotated"
    assert (await rotate(repository, first.digest, digest(), later + 10 * SECOND)).outcome == "stolen"


@contract
async def test_a_repeat_without_a_salt_is_theft(repository: Repository) -> None:
    """The window may have been made wider since: what the repeat should get is not known any more."""
    first, child = session(), digest()
    await made(repository, first=first)
    await rotate(repository, first.digest, child)
    await rotate(repository, child, digest())
    await repository.delete_expired(NOW + SECOND, NOW + SECOND, LONG_AGO, LONG_AGO)
    assert (await rotate(repository, first.digest, digest(), NOW + 2 * SECOND)).outcome == "stolen"


@contract
async def test_a_refresh_prolongs_the_session_and_a_repeat_does_not(repository: Repository) -> None:
    first, child, later = session(), digest(), NOW + 5 * HOUR
    account = await made(repository, first=first)
    await rotate(repository, first.digest, child, later, origin=Origin("192.0.2.99", "another browser"))
    assert (await rotate(repository, first.digest, digest(), later + 9 * SECOND)).outcome == "repeated"
    (listed,) = await repository.list_sessions(account.user.id, later)
    assert (listed.created_at, listed.refreshed_at, listed.expires_at) == (NOW, later, later + 24 * HOUR)
    assert (listed.address, listed.user_agent) == ("192.0.2.99", "a browser")
    assert await repository.list_sessions(account.user.id, listed.expires_at) == []
    assert await rotate(repository, child, digest(), listed.expires_at) is None


@contract
async def test_an_ended_session_is_reported_until_its_last_access_token_expires(
    repository: Repository,
) -> None:
    """That may be an earlier token, of a host whose clock is behind or from before a shorter life was set."""
    first, child = session(), digest()
    account = await made(repository, first=first)
    await rotate(repository, first.digest, child, NOW + 30 * MINUTE)
    await rotate(repository, child, digest(), NOW - 30 * MINUTE)
    until = (NOW + 91 * MINUTE).timestamp()
    assert await repository.end_sessions(account.user.id, event()) == [(first.id, until)]
    assert dict(await repository.ended_sessions(NOW))[first.id] == until


@contract
async def test_access_tokens_of_a_repeated_refresh_end_with_the_session_too(repository: Repository) -> None:
    """Such a token is newer than the session's last rotation."""
    first, others, later = session(), session(), NOW + 9 * SECOND
    account, other = await made(repository, first=first), await made(repository, first=others)
    await rotate(repository, first.digest, digest())
    # The second repeat is made by a host whose clock is behind.
    for at in (later, NOW):
        assert (await rotate(repository, first.digest, digest(), at)).outcome == "repeated"
    for one, begun, last in ((account, first, later), (other, others, NOW)):
        until = (last + HOUR + MINUTE).timestamp()
        assert await repository.end_sessions(one.user.id, event()) == [(begun.id, until)]


@contract
async def test_fifty_simultaneous_refreshes_with_one_token_rotate_once(repository: Repository) -> None:
    first = session()
    account = await made(repository, first=first)
    salts = [bytes([n]) * 32 for n in range(50)]
    results = await all_of(*(rotate(repository, first.digest, digest(), salt=salt) for salt in salts))
    assert sorted(one.outcome for one in results) == ["repeated"] * 49 + ["rotated"]
    assert len({one.salts[first.digest] for one in results if one.outcome == "repeated"}) == 1
    assert len(await repository.list_sessions(account.user.id, NOW)) == 1


@contract
async def test_unknown_expired_and_ended_refresh_tokens_are_refused(repository: Repository) -> None:
    assert await rotate(repository, digest(), digest()) is None
    first = session()
    account = await made(repository, first=first)
    assert await rotate(repository, first.digest, digest(), first.expires_at) is None
    await repository.end_sessions(account.user.id, event())
    assert await rotate(repository, first.digest, digest()) is None


@contract
async def test_one_session_all_sessions_or_all_but_one_are_ended(repository: Repository) -> None:
    first, second, third = session(), session(NOW + SECOND), session(NOW + 2 * SECOND)
    account = await made(repository, first=first)
    other = await made(repository, first=session())
    for one in (second, third):
        await repository.start_session(account, None, one, event())
    alive = await repository.list_sessions(account.user.id, NOW)
    assert [one.id for one in alive] == [third.id, second.id, first.id]
    assert await repository.list_sessions(account.user.id, NOW, 2) == alive[:2]
    assert (alive[0].user_agent, alive[0].address) == ("a browser", "192.0.2.1")
    ended = await repository.end_sessions(account.user.id, event(), only=second.id)
    assert ended == [(second.id, (second.access_expires_at + MINUTE).timestamp())]
    assert await repository.end_sessions(account.user.id, event(), only=second.id) == []
    assert [key for key, _ in await repository.end_sessions(account.user.id, event(), but=third.id)] == [
        first.id
    ]
    assert [one.id for one in await repository.list_sessions(account.user.id, NOW)] == [third.id]
    assert len(await repository.end_sessions(account.user.id, event())) == 1
    assert {first.id, second.id, third.id} <= dict(await repository.ended_sessions(NOW)).keys()
    assert first.id not in dict(await repository.ended_sessions(NOW + 2 * HOUR))
    # The store's own clock counts here, hence dates long before and long after.
    assert first.id in dict(await repository.ended_sessions(NOW, NOW - 36500 * 24 * HOUR))
    assert await repository.ended_sessions(NOW, NOW + 36500 * 24 * HOUR) == []
    assert len(await repository.list_sessions(other.user.id, NOW)) == 1


@contract
async def test_a_new_password_ends_the_other_sessions(repository: Repository) -> None:
    proof, ended, unrelated = session(), session(), session()
    account = await made(repository, first=proof)
    await made(repository, first=unrelated)
    await repository.start_session(account, None, ended, event())
    # A hash that no other user has, as real ones are salted.
    own = b"$2b$04$" + uuid.uuid4().hex.encode().ljust(53, b"x")
    changed = await repository.set_password(account.user.id, own, Proof(HASH, proof.id), event())
    assert changed is not None and changed.password_hash == own
    assert [one.id for one in await repository.list_sessions(account.user.id, NOW)] == [proof.id]
    revoked = dict(await repository.ended_sessions(NOW))
    assert ended.id in revoked and proof.id not in revoked and unrelated.id not in revoked


@contract
async def test_disabling_and_deleting_end_sessions_for_every_worker(repository: Repository) -> None:
    first, second, unrelated = session(), session(), session()
    disabled, deleted = await made(repository, first=first), await made(repository, first=second)
    await made(repository, first=unrelated)
    account = await repository.set_disabled(disabled.user.id, True, event())
    assert account is not None and account.disabled_at == NOW
    later = evolve(account, user=evolve(account.user, updated_at=NOW + HOUR))
    assert await repository.set_disabled(disabled.user.id, True, event(at=NOW + HOUR)) == later
    assert await repository.delete_user(deleted.user.id, event()) is True
    assert await repository.delete_user(deleted.user.id, event()) is False
    assert await repository.find_user(deleted.user.id) is None
    revoked = dict(await repository.ended_sessions(NOW))
    assert {first.id, second.id} <= revoked.keys() and unrelated.id not in revoked
    enabled = await repository.set_disabled(disabled.user.id, False, event())
    assert enabled is not None and enabled.disabled_at is None
    assert await repository.set_disabled(deleted.user.id, True, event()) is None
    assert await repository.set_metadata(deleted.user.id, {}, event()) is None
    assert await repository.set_password(deleted.user.id, HASH, None, event()) is None


@contract
async def test_a_proof_must_still_hold_when_the_change_is_made(repository: Repository) -> None:
    """Checking a password takes a while; a reset, a logout or a disabling in between has the last word."""
    first, second = session(), session()
    account = await made(repository, first=first)
    await repository.start_session(account, None, second, event())
    key = account.user.id

    async def refused(proof: Proof) -> bool:
        changed = await repository.set_password(key, THIRD_HASH, proof, event())
        return changed is None and not await repository.delete_user(key, event(), proof)

    assert await refused(Proof(OTHER_HASH, first.id))
    await repository.end_sessions(key, event(), only=first.id)
    assert await refused(Proof(HASH, first.id))
    await repository.set_disabled(key, True, event())
    assert await refused(Proof(HASH, str(uuid.uuid4())))
    enabled = await repository.set_disabled(key, False, event())
    assert enabled is not None and enabled.password_hash == HASH
    await repository.start_session(account, None, third := session(), event())
    assert await refused(Proof(OTHER_HASH, third.id))
    assert [one.id for one in await repository.list_sessions(key, NOW)] == [third.id]
    assert await repository.delete_user(key, event(), Proof(HASH, third.id)) is True


@contract
async def test_of_two_new_passwords_for_one_old_one_only_one_is_set(repository: Repository) -> None:
    proof, other = session(), session()
    account = await made(repository, first=proof)
    await repository.start_session(account, None, other, event())
    results = await all_of(
        repository.set_password(account.user.id, OTHER_HASH, Proof(HASH, proof.id), event()),
        repository.set_password(account.user.id, THIRD_HASH, Proof(HASH, other.id), event()),
    )
    (won,) = [one for one in results if one is not None]
    left = await repository.find_user(account.user.id)
    assert left is not None and left.password_hash == won.password_hash
    assert len(await repository.list_sessions(account.user.id, NOW)) == 1
