"""The contract of sessions and refresh tokens, for the fake and for PostgreSQL."""

from __future__ import annotations

import itertools
import uuid

from attrs import evolve

from project_service.auth.repository import Proof, Stores
from project_service.auth.values import Origin
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
async def test_a_session_starts_only_with_the_password_that_was_checked(stores: Stores) -> None:
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
async def test_a_refresh_token_is_rotated_then_repeated_then_taken_for_stolen(stores: Stores) -> None:
    first, others = session(), session()
    # Another user, whose session must not be affected.
    other = await made(stores, first=others)
    account = await made(stores, first=first)
    child, grandchild, unneeded = digest(), digest(), digest()
    rotated = await rotate(stores, first.digest, child, salt=b"1" * 32)
    assert (rotated.outcome, rotated.session_id, rotated.user) == ("rotated", first.id, account.user)
    repeated = await rotate(stores, first.digest, unneeded, NOW + 9 * SECOND, salt=b"2" * 32)
    assert (repeated.outcome, repeated.salts) == ("repeated", {first.digest: b"1" * 32})
    assert (repeated.session_id, repeated.user) == (first.id, account.user)
    assert await rotate(stores, unneeded, digest(), NOW + 9 * SECOND) is None
    assert (await rotate(stores, child, grandchild, NOW + 9 * SECOND, salt=b"3" * 32)).outcome == "rotated"
    # This is no longer the immediate parent, but it was replaced a moment ago: both salts lead to the active token.
    again = await rotate(stores, first.digest, digest(), NOW + 9 * SECOND)
    assert (again.outcome, again.salts) == ("repeated", {first.digest: b"1" * 32, child: b"3" * 32})
    stolen = await rotate(stores, first.digest, digest(), NOW + 10 * SECOND)
    assert (stolen.outcome, stolen.session_id, stolen.user) == ("stolen", first.id, account.user)
    assert stolen.salts == {}
    assert await rotate(stores, grandchild, digest(), NOW + 10 * SECOND) is None
    assert await stores.sessions.alive(account.user.id, NOW) == []
    assert first.id in dict(await stores.ended.revoked(NOW))
    assert [one.id for one in await stores.sessions.alive(other.user.id, NOW)] == [others.id]


@contract
async def test_a_repeat_gets_the_recent_salts_of_its_own_session_only(stores: Stores) -> None:
    first, others, line = session(), session(), [digest() for _ in range(4)]
    await made(stores, first=first)
    await made(stores, first=others)
    for token, successor in itertools.pairwise([others.digest, digest(), digest()]):
        await rotate(stores, token, successor, NOW + 27 * SECOND)
    for at, (token, successor) in enumerate(zip([first.digest, *line], [*line, digest()], strict=True)):
        await rotate(stores, token, successor, NOW + at * 9 * SECOND, salt=bytes([at]) * 32)
    repeated = await rotate(stores, line[3], digest(), NOW + 37 * SECOND)
    assert repeated.salts == {line[at]: bytes([at + 1]) * 32 for at in (1, 2, 3)}
    await stores.housekeeping.clean(NOW + 37 * SECOND, NOW + 27 * SECOND, LONG_AGO, NOW - HOUR)
    repeated = await rotate(stores, line[3], digest(), NOW + 37 * SECOND)
    assert repeated.salts == {line[at]: bytes([at + 1]) * 32 for at in (2, 3)}


@contract
async def test_a_repeat_is_led_past_a_rotation_by_a_host_whose_clock_is_behind(stores: Stores) -> None:
    """That rotation seems older than it is; without its salt the repeat could not reach the active token."""
    first = session()
    await made(stores, first=first)
    line = [first.digest, digest(), digest(), digest()]
    for number, seconds in enumerate((0, -3, 8)):
        at, salt = NOW + seconds * SECOND, bytes([number]) * 32
        assert (await rotate(stores, line[number], line[number + 1], at, salt=salt)).outcome == "rotated"
    repeated = await rotate(stores, first.digest, digest(), NOW + 9 * SECOND)
    assert repeated.salts == {line[number]: bytes([number]) * 32 for number in range(3)}


@contract
async def test_a_token_that_would_have_expired_unused_is_forgotten(stores: Stores) -> None:
    """Using it is no theft any more; but the last two tokens of a session are kept however long they may live."""
    first, child, grandchild = session(), digest(), digest()
    account = await made(stores, first=first)
    await rotate(stores, first.digest, child, NOW + HOUR)
    await rotate(stores, child, grandchild, NOW + 2 * HOUR)
    later = NOW + 2 * HOUR + SECOND
    await stores.housekeeping.clean(later, NOW, NOW, NOW)
    assert (await rotate(stores, child, digest(), later)).outcome == "repeated"
    await stores.housekeeping.clean(later, NOW, later, NOW)
    assert await rotate(stores, first.digest, digest(), later) is None
    assert (await rotate(stores, child, digest(), later)).outcome == "repeated"
    assert (await rotate(stores, grandchild, last := digest(), later)).outcome == "rotated"
    assert (await rotate(stores, last, digest(), later)).outcome == "rotated"
    await stores.housekeeping.clean(later, NOW, NOW + 90 * MINUTE, NOW)
    assert await rotate(stores, child, digest(), later) is None
    assert (await rotate(stores, grandchild, digest(), NOW + 3 * HOUR)).outcome == "stolen"
    assert await stores.sessions.alive(account.user.id, NOW) == []


@contract
async def test_a_repeat_after_the_window_is_theft_once_the_successor_was_used(stores: Stores) -> None:
    first, child = session(), digest()
    await made(stores, first=first)
    await rotate(stores, first.digest, child)
    # Repeats do not prolong the window.
    assert (await rotate(stores, first.digest, digest(), NOW + 9 * SECOND)).outcome == "repeated"
    assert (await rotate(stores, child, digest(), NOW + 9 * SECOND)).outcome == "rotated"
    assert (await rotate(stores, first.digest, digest(), NOW + 10 * SECOND)).outcome == "stolen"


@contract
async def test_a_token_whose_successor_was_never_used_stays_good(stores: Stores) -> None:
    """The answer with the successor was lost. When it is given again, the window begins anew for other tabs."""
    first, child, later = session(), digest(), NOW + 20 * HOUR
    account = await made(stores, first=first)
    await rotate(stores, first.digest, child, salt=b"1" * 32)
    await stores.housekeeping.clean(later, later, later, LONG_AGO)
    there = Origin("192.0.2.99", "another browser")
    for at in (later, later + 9 * SECOND):
        repeated = await rotate(stores, first.digest, digest(), at, origin=there)
        assert (repeated.outcome, repeated.salts) == ("repeated", {first.digest: b"1" * 32})
    (found,) = await stores.sessions.alive(account.user.id, later)
    assert (found.refreshed_at, found.expires_at) == (later, later + 24 * HOUR)
    assert found.address == "192.0.2.99"
    assert (await rotate(stores, child, grandchild := digest(), later + 9 * SECOND)).outcome == "rotated"
    assert (await rotate(stores, first.digest, digest(), later + 9 * SECOND)).outcome == "repeated"
    assert (await rotate(stores, grandchild, digest(), later + 9 * SECOND)).outcome == "rotated"
    assert (await rotate(stores, first.digest, digest(), later + 10 * SECOND)).outcome == "stolen"


@contract
async def test_a_repeat_without_a_salt_is_theft(stores: Stores) -> None:
    """The window may have been made wider since: what the repeat should get is not known any more."""
    first, child = session(), digest()
    await made(stores, first=first)
    await rotate(stores, first.digest, child)
    await rotate(stores, child, digest())
    await stores.housekeeping.clean(NOW + SECOND, NOW + SECOND, LONG_AGO, LONG_AGO)
    assert (await rotate(stores, first.digest, digest(), NOW + 2 * SECOND)).outcome == "stolen"


@contract
async def test_a_refresh_prolongs_the_session_and_a_repeat_does_not(stores: Stores) -> None:
    first, child, later = session(), digest(), NOW + 5 * HOUR
    account = await made(stores, first=first)
    await rotate(stores, first.digest, child, later, origin=Origin("192.0.2.99", "another browser"))
    assert (await rotate(stores, first.digest, digest(), later + 9 * SECOND)).outcome == "repeated"
    (found,) = await stores.sessions.alive(account.user.id, later)
    assert (found.created_at, found.refreshed_at, found.expires_at) == (NOW, later, later + 24 * HOUR)
    assert (found.address, found.user_agent) == ("192.0.2.99", "a browser")
    assert await stores.sessions.alive(account.user.id, found.expires_at) == []
    assert await rotate(stores, child, digest(), found.expires_at) is None


@contract
async def test_an_ended_session_is_reported_until_its_last_access_token_expires(stores: Stores) -> None:
    """That may be an earlier token, of a host whose clock is behind or from before a shorter life was set."""
    first, child = session(), digest()
    account = await made(stores, first=first)
    await rotate(stores, first.digest, child, NOW + 30 * MINUTE)
    await rotate(stores, child, digest(), NOW - 30 * MINUTE)
    until = (NOW + 91 * MINUTE).timestamp()
    assert await stores.sessions.end(account.user.id, event()) == [(first.id, until)]
    assert dict(await stores.ended.revoked(NOW))[first.id] == until


@contract
async def test_access_tokens_of_a_repeated_refresh_end_with_the_session_too(stores: Stores) -> None:
    """Such a token is newer than the session's last rotation."""
    first, others, later = session(), session(), NOW + 9 * SECOND
    account, other = await made(stores, first=first), await made(stores, first=others)
    await rotate(stores, first.digest, digest())
    # The second repeat is made by a host whose clock is behind.
    for at in (later, NOW):
        assert (await rotate(stores, first.digest, digest(), at)).outcome == "repeated"
    for one, begun, last in ((account, first, later), (other, others, NOW)):
        until = (last + HOUR + MINUTE).timestamp()
        assert await stores.sessions.end(one.user.id, event()) == [(begun.id, until)]


@contract
async def test_fifty_simultaneous_refreshes_with_one_token_rotate_once(stores: Stores) -> None:
    first = session()
    account = await made(stores, first=first)
    salts = [bytes([n]) * 32 for n in range(50)]
    found = await all_of(*(rotate(stores, first.digest, digest(), salt=salt) for salt in salts))
    assert sorted(one.outcome for one in found) == ["repeated"] * 49 + ["rotated"]
    assert len({one.salts[first.digest] for one in found if one.outcome == "repeated"}) == 1
    assert len(await stores.sessions.alive(account.user.id, NOW)) == 1


@contract
async def test_unknown_expired_and_ended_refresh_tokens_are_refused(stores: Stores) -> None:
    assert await rotate(stores, digest(), digest()) is None
    first = session()
    account = await made(stores, first=first)
    assert await rotate(stores, first.digest, digest(), first.expires_at) is None
    await stores.sessions.end(account.user.id, event())
    assert await rotate(stores, first.digest, digest()) is None


@contract
async def test_one_session_all_sessions_or_all_but_one_are_ended(stores: Stores) -> None:
    first, second, third = session(), session(NOW + SECOND), session(NOW + 2 * SECOND)
    account = await made(stores, first=first)
    other = await made(stores, first=session())
    for one in (second, third):
        await stores.sessions.start(account, None, one, event())
    alive = await stores.sessions.alive(account.user.id, NOW)
    assert [one.id for one in alive] == [third.id, second.id, first.id]
    assert await stores.sessions.alive(account.user.id, NOW, 2) == alive[:2]
    assert (alive[0].user_agent, alive[0].address) == ("a browser", "192.0.2.1")
    ended = await stores.sessions.end(account.user.id, event(), only=second.id)
    assert ended == [(second.id, (second.access_expires_at + MINUTE).timestamp())]
    assert await stores.sessions.end(account.user.id, event(), only=second.id) == []
    assert [key for key, _ in await stores.sessions.end(account.user.id, event(), but=third.id)] == [first.id]
    assert [one.id for one in await stores.sessions.alive(account.user.id, NOW)] == [third.id]
    assert len(await stores.sessions.end(account.user.id, event())) == 1
    assert {first.id, second.id, third.id} <= dict(await stores.ended.revoked(NOW)).keys()
    assert first.id not in dict(await stores.ended.revoked(NOW + 2 * HOUR))
    # The store's own clock counts here, hence dates long before and long after.
    assert first.id in dict(await stores.ended.revoked(NOW, NOW - 36500 * 24 * HOUR))
    assert await stores.ended.revoked(NOW, NOW + 36500 * 24 * HOUR) == []
    assert len(await stores.sessions.alive(other.user.id, NOW)) == 1


@contract
async def test_a_new_password_ends_the_other_sessions(stores: Stores) -> None:
    kept, gone, anothers = session(), session(), session()
    account = await made(stores, first=kept)
    await made(stores, first=anothers)
    await stores.sessions.start(account, None, gone, event())
    # A hash that no other user has, as real ones are salted.
    own = b"$2b$04$" + uuid.uuid4().hex.encode().ljust(53, b"x")
    changed = await stores.users.set_password(account.user.id, own, Proof(HASH, kept.id), event())
    assert changed is not None and changed.password_hash == own
    assert [one.id for one in await stores.sessions.alive(account.user.id, NOW)] == [kept.id]
    revoked = dict(await stores.ended.revoked(NOW))
    assert gone.id in revoked and kept.id not in revoked and anothers.id not in revoked


@contract
async def test_disabling_and_deleting_end_sessions_for_every_worker(stores: Stores) -> None:
    first, second, anothers = session(), session(), session()
    disabled, deleted = await made(stores, first=first), await made(stores, first=second)
    await made(stores, first=anothers)
    found = await stores.users.set_disabled(disabled.user.id, True, event())
    assert found is not None and found.disabled_at == NOW
    assert await stores.users.set_disabled(disabled.user.id, True, event(at=NOW + HOUR)) == found
    assert await stores.users.delete(deleted.user.id, event()) is True
    assert await stores.users.delete(deleted.user.id, event()) is False
    assert await stores.users.find(deleted.user.id) is None
    revoked = dict(await stores.ended.revoked(NOW))
    assert {first.id, second.id} <= revoked.keys() and anothers.id not in revoked
    enabled = await stores.users.set_disabled(disabled.user.id, False, event())
    assert enabled is not None and enabled.disabled_at is None
    assert await stores.users.set_disabled(deleted.user.id, True, event()) is None
    assert await stores.users.set_metadata(deleted.user.id, {}, event()) is None
    assert await stores.users.set_password(deleted.user.id, HASH, None, event()) is None


@contract
async def test_a_proof_must_still_hold_when_the_change_is_made(stores: Stores) -> None:
    """Checking a password takes a while; a reset, a logout or a disabling in between has the last word."""
    first, second = session(), session()
    account = await made(stores, first=first)
    await stores.sessions.start(account, None, second, event())
    key = account.user.id

    async def refused(proof: Proof) -> bool:
        changed = await stores.users.set_password(key, THIRD_HASH, proof, event())
        return changed is None and not await stores.users.delete(key, event(), proof)

    assert await refused(Proof(OTHER_HASH, first.id))
    await stores.sessions.end(key, event(), only=first.id)
    assert await refused(Proof(HASH, first.id))
    await stores.users.set_disabled(key, True, event())
    assert await refused(Proof(HASH, str(uuid.uuid4())))
    enabled = await stores.users.set_disabled(key, False, event())
    assert enabled is not None and enabled.password_hash == HASH
    await stores.sessions.start(account, None, third := session(), event())
    assert await refused(Proof(OTHER_HASH, third.id))
    assert [one.id for one in await stores.sessions.alive(key, NOW)] == [third.id]
    assert await stores.users.delete(key, event(), Proof(HASH, third.id)) is True


@contract
async def test_of_two_new_passwords_for_one_old_one_only_one_is_set(stores: Stores) -> None:
    kept, other = session(), session()
    account = await made(stores, first=kept)
    await stores.sessions.start(account, None, other, event())
    found = await all_of(
        stores.users.set_password(account.user.id, OTHER_HASH, Proof(HASH, kept.id), event()),
        stores.users.set_password(account.user.id, THIRD_HASH, Proof(HASH, other.id), event()),
    )
    (won,) = [one for one in found if one is not None]
    left = await stores.users.find(account.user.id)
    assert left is not None and left.password_hash == won.password_hash
    assert len(await stores.sessions.alive(account.user.id, NOW)) == 1
