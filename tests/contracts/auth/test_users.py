"""The contract of the store of users, for the fake and for PostgreSQL."""

from __future__ import annotations

import uuid

import orjson
from attrs import evolve

from project_service.auth.repository import Stores
from project_service.auth.values import Account, Email
from project_service.errors import ApiError
from tests.contracts.auth.users import (
    HASH,
    HOUR,
    LONG_AGO,
    MINUTE,
    NOW,
    OTHER_HASH,
    SECOND,
    address,
    all_of,
    contract,
    digest,
    event,
    issue,
    made,
    rotate,
    session,
)


@contract
async def test_a_user_is_stored_as_created(stores: Stores) -> None:
    email, begun = address(), session()
    # Another user, who existed before.
    assert (await made(stores, first=begun)).last_login_at == begun.created_at
    account = await made(stores, email)
    assert (account.user.email, account.user.created_at) == (email.address, NOW)
    assert (account.user.metadata, account.password_hash) == ({"a": [1, None]}, HASH)
    assert (account.confirmed_at, account.disabled_at) == (None, None)
    assert await stores.users.find(account.user.id) == account
    assert await stores.users.find_by_email(email) == account
    assert await stores.users.find(str(uuid.uuid4())) is None
    assert await stores.users.find_by_email(address()) is None
    confirmed = await stores.users.create(
        email=address(), password_hash=None, metadata={}, confirmed=True, session=None, event=event()
    )
    assert confirmed is not None
    assert (confirmed.confirmed_at, confirmed.last_login_at, confirmed.password_hash) == (NOW, None, b"")


@contract
async def test_a_user_is_stored_under_the_given_id(stores: Stores) -> None:
    key = str(uuid.uuid4())
    account = await stores.users.create(
        email=address(),
        password_hash=None,
        metadata={},
        confirmed=True,
        session=None,
        event=event(),
        user_id=key,
    )
    assert account is not None
    assert account.user.id == key
    assert await stores.users.find(key) == account


@contract
async def test_of_many_simultaneous_users_with_one_id_one_is_stored(stores: Stores) -> None:
    key = str(uuid.uuid4())

    async def attempt(email: Email) -> Account | str:
        try:
            account = await stores.users.create(
                email=email,
                password_hash=None,
                metadata={},
                confirmed=True,
                session=None,
                event=event(),
                user_id=key,
            )
        except ApiError as refusal:
            return refusal.code
        assert account is not None
        return account

    found = await all_of(*(attempt(address()) for _ in range(6)))
    stored = [one for one in found if isinstance(one, Account)]
    assert [await stores.users.find(key)] == stored
    assert [one for one in found if one not in stored] == ["id_taken"] * 5


@contract
async def test_a_change_of_one_user_affects_nobody_else(stores: Stores) -> None:
    before, account, after = await made(stores), await made(stores), await made(stores)
    one = account.user.id
    assert await stores.users.set_metadata(one, {"b": 2}, event()) is not None
    assert await stores.users.set_password(one, OTHER_HASH, None, event()) is not None
    assert await stores.users.set_disabled(one, True, event()) is not None
    assert await stores.users.set_disabled(before.user.id, True, event()) is not None
    assert await stores.users.set_disabled(before.user.id, False, event()) == before
    found = await stores.users.find(one)
    assert found is not None and found.disabled_at == NOW
    assert await stores.users.delete(one, event()) is True
    for other in (before, after):
        assert await stores.users.find(other.user.id) == other


@contract
async def test_numbers_beyond_64_bits_in_metadata_can_be_read_back(stores: Stores) -> None:
    account = await made(stores)
    await stores.users.set_metadata(account.user.id, {"a": [1e20, -1e308], "b": 1}, event())
    found = await stores.users.find(account.user.id)
    assert found is not None
    assert orjson.loads(orjson.dumps(found.view()["metadata"])) == {"a": [1e20, -1e308], "b": 1}


@contract
async def test_of_many_simultaneous_signups_of_one_address_in_any_letter_case_one_wins(
    stores: Stores,
) -> None:
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
async def test_users_are_listed_page_by_page_without_gap_or_repeat(stores: Stores) -> None:
    """They are in the order of their creation, and by id where that is equal."""
    at = [NOW + minute * MINUTE for minute in (2, 1, 0, 0, 0)]
    ids = [(await made(stores, at=one)).user.id for one in at]
    seen: list[str] = []
    after = None
    while page := await stores.users.page(after, 2):
        assert len(page) <= 2
        assert page[0].user.id not in seen, "it goes round"
        seen += [one.user.id for one in page]
        after = (page[-1].user.created_at, page[-1].user.id)
    assert [key for key in seen if key in ids] == [*sorted(ids[2:]), ids[1], ids[0]]
    assert len(seen) == len(set(seen))


@contract
async def test_the_cleanup_does_not_report_a_session_ended_whose_access_token_outlives_it(
    stores: Stores,
) -> None:
    short = evolve(session(), expires_at=NOW + MINUTE)
    await made(stores, first=short)
    assert await stores.housekeeping.clean(NOW + 2 * MINUTE, NOW, LONG_AGO, NOW) is True
    assert short.id not in dict(await stores.ended.revoked(NOW))


@contract
async def test_the_cleanup_removes_what_has_expired_and_nothing_else(stores: Stores) -> None:
    old, young = session(), session(NOW + 40 * 24 * HOUR)
    account = await made(stores, first=old)
    await stores.sessions.start(account, None, young, event())
    child = digest()
    await rotate(stores, young.digest, child, NOW + 40 * 24 * HOUR)
    email = address()
    await made(stores, email)
    key, _ = await issue(stores, email)
    soon = NOW + 40 * 24 * HOUR + 5 * SECOND
    assert await stores.housekeeping.clean(soon, soon - 10 * SECOND, LONG_AGO, NOW) is True
    assert (await rotate(stores, child, digest(), soon)).outcome == "rotated"
    assert (await rotate(stores, young.digest, digest(), soon)).outcome == "repeated"
    later = NOW + 40 * 24 * HOUR + MINUTE
    assert await stores.housekeeping.clean(later, later - 10 * SECOND, LONG_AGO, later - HOUR) is True
    assert [one.id for one in await stores.sessions.alive(account.user.id, NOW)] == [young.id]
    assert await stores.tokens.owner(key, "recovery", NOW) is None
    # The salts are gone with their window, so a repeat counts as theft however wide the window is set now.
    assert (await rotate(stores, young.digest, digest(), NOW + 40 * 24 * HOUR + SECOND)).outcome == "stolen"
