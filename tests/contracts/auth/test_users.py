"""The contract of the store of users, for the fake and for PostgreSQL."""

from __future__ import annotations

import uuid

import orjson
from attrs import evolve

from project_service.auth.postgres import Repository
from project_service.auth.values import Account, Email, Proof, User
from project_service.errors import ApiError, validation_failed
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
async def test_a_user_is_stored_as_created(repository: Repository) -> None:
    email, begun = address(), session()
    # Another user, who existed before.
    assert (await made(repository, first=begun)).last_login_at == begun.created_at
    account = await made(repository, email)
    assert (account.user.email, account.user.created_at) == (email.address, NOW)
    assert (account.user.metadata, account.password_hash) == ({"a": [1, None]}, HASH)
    assert (account.confirmed_at, account.disabled_at) == (None, None)
    assert await repository.find_user(account.user.id) == account
    assert await repository.find_user_by_email(email) == account
    assert await repository.find_user(str(uuid.uuid4())) is None
    assert await repository.find_user_by_email(address()) is None
    confirmed = await repository.create_user(
        email=address(), password_hash=None, metadata={}, confirmed=True, session=None, event=event()
    )
    assert confirmed is not None
    assert (confirmed.confirmed_at, confirmed.last_login_at, confirmed.password_hash) == (NOW, None, b"")


@contract
async def test_a_user_is_stored_under_the_given_id(repository: Repository) -> None:
    key = str(uuid.uuid4())
    account = await repository.create_user(
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
    assert await repository.find_user(key) == account


@contract
async def test_of_many_simultaneous_users_with_one_id_one_is_stored(repository: Repository) -> None:
    key = str(uuid.uuid4())

    async def attempt(email: Email) -> Account | str:
        try:
            account = await repository.create_user(
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

    results = await all_of(*(attempt(address()) for _ in range(6)))
    stored = [one for one in results if isinstance(one, Account)]
    assert [await repository.find_user(key)] == stored
    assert [one for one in results if one not in stored] == ["id_taken"] * 5


@contract
async def test_a_change_of_one_user_affects_nobody_else(repository: Repository) -> None:
    before, account, after = await made(repository), await made(repository), await made(repository)
    one = account.user.id
    assert await repository.set_metadata(one, {"b": 2}, event()) is not None
    assert await repository.set_password(one, OTHER_HASH, None, event()) is not None
    assert await repository.set_disabled(one, True, event()) is not None
    assert await repository.set_disabled(before.user.id, True, event()) is not None
    assert await repository.set_disabled(before.user.id, False, event()) == before
    assert await repository.revise(one, lambda user: evolve(user, metadata={"c": 3}), event()) is not None
    stored = await repository.find_user(one)
    assert stored is not None and stored.disabled_at == NOW
    assert await repository.delete_user(one, event()) is True
    for other in (before, after):
        assert await repository.find_user(other.user.id) == other


@contract
async def test_a_user_is_revised_as_a_function_says(repository: Repository) -> None:
    account = await made(repository)
    assert account.user.app_metadata == {"provider": "email", "providers": ["email"]}
    assert account.user.updated_at == NOW

    def revise(user: User) -> User:
        assert user == account.user
        return evolve(
            user, metadata={"b": 2}, app_metadata={"role": "x"}, confirmed_at=NOW, email="not changed"
        )

    changed = await repository.revise(account.user.id, revise, event(at=NOW + MINUTE))
    assert changed is not None and changed == await repository.find_user(account.user.id)
    assert (changed.user.metadata, changed.user.app_metadata) == ({"b": 2}, {"role": "x"})
    assert (changed.confirmed_at, changed.user.updated_at) == (NOW, NOW + MINUTE)
    assert (changed.user.email, changed.password_hash) == (account.user.email, HASH)
    assert await repository.revise(str(uuid.uuid4()), revise, event()) is None


@contract
async def test_a_revision_that_is_refused_changes_nothing(repository: Repository) -> None:
    account = await made(repository)

    def refuse(user: User) -> User:
        raise validation_failed({})

    try:
        await repository.revise(account.user.id, refuse, event())
    except ApiError as refusal:
        assert refusal.code == "validation_failed"
    else:
        raise AssertionError("it was revised")
    assert await repository.find_user(account.user.id) == account


@contract
async def test_simultaneous_revisions_lose_nothing(repository: Repository) -> None:
    account = await made(repository)

    async def add(name: str) -> None:
        def revise(user: User) -> User:
            return evolve(user, metadata={**user.metadata, name: True})

        await repository.revise(account.user.id, revise, event())

    await all_of(*(add(f"name{number}") for number in range(6)))
    stored = await repository.find_user(account.user.id)
    assert stored is not None and len(stored.user.metadata) == 7


@contract
async def test_who_has_no_password_sets_one_on_proof_of_having_none(repository: Repository) -> None:
    account = await repository.create_user(
        email=address(), password_hash=None, metadata={}, confirmed=True, session=None, event=event()
    )
    assert account is not None
    key, sid = account.user.id, str(uuid.uuid4())
    assert await repository.set_password(key, HASH, Proof(OTHER_HASH, sid), event()) is None
    changed = await repository.set_password(key, HASH, Proof(b"", sid), event())
    assert changed is not None and changed.password_hash == HASH
    assert await repository.set_password(key, OTHER_HASH, Proof(b"", sid), event()) is None


@contract
async def test_pages_by_number_have_the_newest_users_first_and_how_many_there_are(
    repository: Repository,
) -> None:
    _, before = await repository.users_from(0, 1)
    # Newer than all others.
    ids = [(await made(repository, at=NOW + 24 * HOUR + n * SECOND)).user.id for n in range(3)]
    first, total = await repository.users_from(0, 2)
    assert ([one.user.id for one in first], total) == ([ids[2], ids[1]], before + 3)
    second, _ = await repository.users_from(2, 1)
    assert [one.user.id for one in second] == [ids[0]]
    assert await repository.users_from(total, 5) == ([], total)


@contract
async def test_numbers_beyond_64_bits_in_metadata_can_be_read_back(repository: Repository) -> None:
    account = await made(repository)
    await repository.set_metadata(account.user.id, {"a": [1e20, -1e308], "b": 1}, event())
    stored = await repository.find_user(account.user.id)
    assert stored is not None
    assert orjson.loads(orjson.dumps(stored.view()["metadata"])) == {"a": [1e20, -1e308], "b": 1}


@contract
async def test_of_many_simultaneous_signups_of_one_address_in_any_mail_case_one_wins(
    repository: Repository,
) -> None:
    name = uuid.uuid4().hex
    emails = [
        Email.parse(text) for text in (f"ß{name}@x.test", f"SS{name}@x.test", f"ss{name.upper()}@X.TEST")
    ]

    async def attempt(email: Email) -> Account | None:
        return await repository.create_user(
            email=email, password_hash=HASH, metadata={}, confirmed=False, session=None, event=event()
        )

    results = await all_of(*(attempt(email) for email in emails * 3))
    assert sum(account is not None for account in results) == 1


@contract
async def test_users_are_listed_page_by_page_without_gap_or_repeat(repository: Repository) -> None:
    """They are in the order of their creation, and by id where that is equal."""
    at = [NOW + minute * MINUTE for minute in (2, 1, 0, 0, 0)]
    ids = [(await made(repository, at=one)).user.id for one in at]
    seen: list[str] = []
    after = None
    while page := await repository.list_users(after, 2):
        assert len(page) <= 2
        assert page[0].user.id not in seen, "it goes round"
        seen += [one.user.id for one in page]
        after = (page[-1].user.created_at, page[-1].user.id)
    assert [key for key in seen if key in ids] == [*sorted(ids[2:]), ids[1], ids[0]]
    assert len(seen) == len(set(seen))


@contract
async def test_the_cleanup_does_not_report_a_session_ended_whose_access_token_outlives_it(
    repository: Repository,
) -> None:
    short = evolve(session(), expires_at=NOW + MINUTE)
    await made(repository, first=short)
    assert await repository.delete_expired(NOW + 2 * MINUTE, NOW, LONG_AGO, NOW) is True
    assert short.id not in dict(await repository.ended_sessions(NOW))


@contract
async def test_the_cleanup_removes_what_has_expired_and_nothing_else(repository: Repository) -> None:
    old, young = session(), session(NOW + 40 * 24 * HOUR)
    account = await made(repository, first=old)
    await repository.start_session(account, None, young, event())
    child = digest()
    await rotate(repository, young.digest, child, NOW + 40 * 24 * HOUR)
    email = address()
    await made(repository, email)
    key, _ = await issue(repository, email)
    soon = NOW + 40 * 24 * HOUR + 5 * SECOND
    assert await repository.delete_expired(soon, soon - 10 * SECOND, LONG_AGO, NOW) is True
    assert (await rotate(repository, child, digest(), soon)).outcome == "rotated"
    assert (await rotate(repository, young.digest, digest(), soon)).outcome == "repeated"
    later = NOW + 40 * 24 * HOUR + MINUTE
    assert await repository.delete_expired(later, later - 10 * SECOND, LONG_AGO, later - HOUR) is True
    assert [one.id for one in await repository.list_sessions(account.user.id, NOW)] == [young.id]
    assert await repository.owner_of_token(key, ("recovery",), NOW) is None
    # The salts are gone with their window, so a repeat counts as theft however wide the window is set now.
    assert (
        await rotate(repository, young.digest, digest(), NOW + 40 * 24 * HOUR + SECOND)
    ).outcome == "stolen"
