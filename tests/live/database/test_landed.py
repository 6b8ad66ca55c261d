"""Dumps that earlier versions have made, and what the version before sends, on the schema as it is now."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted

from project_service.auth.values import Answer
from project_service.settings.model import Store
from tests.contracts.auth.users import HOUR, MINUTE, NOW, address, digest, event, issue, made, session
from tests.live.application import Api, serving, settings_for
from tests.live.auth.service import repository_on
from tests.live.database.catalog import catalog
from tests.live.database.landed import Known, restored, statements_of_0_1_0
from tests.live.database.landed.tokens_of_0_1_0 import Tokens
from tests.live.services import Services, migrated, store_client
from tests.live.sql import run_sql

DUMPS = ("0012", "0016", "0026")
NOTES = "/dev/db/main/rest/notes?select=words"


async def _refill(store_settings: Store, dsn: str, known: Known) -> None:
    """Store the bytes of objects where their rows say."""
    content = {(one["bucket"], one["key"]): one["content"].encode() for one in known.objects}
    store = store_client(store_settings)
    for bucket, key, version in run_sql(dsn, "select bucket, key, version::text from storage.objects"):
        if (bucket, key) in content:
            await store.put(f"{bucket}/{version}", content[bucket, key], "text/plain", {})
    await store.close()


@pytest.mark.parametrize("dump", DUMPS)
@pytest_twisted.ensureDeferred
async def test_what_users_had_goes_on_to_work(
    services: Services, database: str, empty_database: str, store_settings: Store, tmp_path: Path, dump: str
) -> None:
    known = restored(services.admin_dsn(empty_database), dump)
    await migrated(empty_database)
    theirs = ("notes", "own_folder")  # the application's own
    assert {line for line in catalog(empty_database) if not any(one in line for one in theirs)} == catalog(
        database
    )
    await _refill(store_settings, empty_database, known)
    async with serving(settings_for(empty_database, store_settings, tmp_path)) as api:
        tokens = {user["email"]: await _sessions(api, user) for user in known.users}
        await _objects(api, known, tokens)
        await _links(api, known, tokens)


async def _sessions(api: Api, user: dict[str, Any]) -> str:
    """The old password and refresh tokens of a user are good, ended ones are not. Returns an access token."""
    account = {"email": user["email"], "password": user["password"]}
    status, _, body = await api.request("POST", "/auth/login", key=None, json=account)
    assert (status, body["data"]["user"]["id"]) == (200, user["id"])
    wrong = {**account, "password": "another one"}
    assert (await api.request("POST", "/auth/login", key=None, json=wrong))[0] == 401
    for token in user["refresh_tokens"]:
        status, _, body = await api.request("POST", "/auth/refresh", key=None, json={"refresh_token": token})
        assert (status, body["data"]["user"]["id"]) == (200, user["id"])
    for token in user["ended"]:
        sent = {"refresh_token": token}
        assert (await api.request("POST", "/auth/refresh", key=None, json=sent))[0] == 401
    access: str = body["data"]["access_token"]
    status, _, rows = await api.request("GET", NOTES, token=access)
    assert (status, rows) == (200, [{"words": f"of {user['email']}"}])
    return access


async def _objects(api: Api, known: Known, tokens: dict[str, str]) -> None:
    """Each bucket's rules hold, by the old project keys."""
    seen = set()
    for one in known.objects:
        path = f"/storage/buckets/{one['bucket']}/objects/{one['key']}"
        for email, token in tokens.items():
            status, _, body = await api.request("GET", path, key=known.anon_key, token=token)
            if email == one["email"] or one["bucket"] not in ("diaries", "judged"):
                assert (status, body) == (200, one["content"].encode()), path
            else:
                assert status == 404, path
            put = await api.request(
                "PUT", path, key=known.anon_key, token=token, data=one["content"].encode()
            )
            # Who may not see an object is told that its key is taken.
            allowed = email == one["email"] or one["bucket"] not in ("shop", "diaries", "judged")
            assert put[0] in ((200, 201) if allowed else (403,)), (path, email, put)
        status, _, body = await api.request("GET", path, key=known.service_key)
        assert (status, body) == (200, one["content"].encode()), path
        seen.add(one["bucket"])
    assert {"papers", "shop", "small"} <= seen


async def _links(api: Api, known: Known, tokens: dict[str, str]) -> None:
    for link in known.links:
        for again in (False, True):
            status, _, body = await api.request("GET", link["path"], key=None)
            if not again or link["again"]:
                assert (status, body) == (200, link["content"].encode()), link
            else:
                assert status == 410, link
    for path in known.used_links:
        assert (await api.request("GET", path, key=None))[0] == 410
    for link in known.upload_links:
        assert (await api.request("PUT", link["path"], key=None, data=b"by the link"))[0] == 201
        path = f"/storage/buckets/{link['bucket']}/objects/{link['key']}"
        token = next(iter(tokens.values()))
        assert (await api.request("GET", path, token=token))[2] == b"by the link"


# What both databases have to have in common, but for times.
_STATE = (
    "select name, visibility, max_object_bytes, max_bucket_bytes, owner_only_writes, owner_only_reads"
    " from storage.buckets",
    "select bucket, key, version::text, size, content_type, etag, owner::text, max_age_seconds from storage.objects",
    "select bucket, slot, object_count, total_bytes from storage.usage",
    "select version::text from storage.garbage",
    "select token_hash::text, bucket, key, uses_left, owner::text from storage.links",
    "select id::text, email, password_hash, metadata::text, disabled_at from auth.users",
    "select id::text, user_id::text, current_hash::text, previous_hash::text, ended_at, end_reason"
    " from auth.sessions",
    "select token_hash::text, session_id::text, replaced_at, salt::text from auth.refresh_tokens",
    "select scope, subject, failed::text, pending::text from auth.throttle",
    "select user_id::text, email, action, result from auth.audit",
    "select session_id::text from auth.revocations",
    "select kind, sha256::text from auth.project_keys",
)


def test_what_the_previous_version_sends_does_what_it_did(
    services: Services, database: str, empty_database: str
) -> None:
    """A host that has not been upgraded yet goes on beside those that have."""
    with closing(psycopg2.connect(database)) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        for sql, values in statements_of_0_1_0():
            if values:
                cursor.execute(f"prepare sent as {sql}")
                cursor.execute(f"execute sent ({', '.join(['%s'] * len(values))})", values)
                cursor.execute("deallocate sent")
            else:
                cursor.execute(sql)
    restored(services.admin_dsn(empty_database), "0016")
    for query in _STATE:
        assert sorted(run_sql(database, query), key=str) == sorted(run_sql(empty_database, query), key=str), (
            query
        )


@pytest_twisted.ensureDeferred
async def test_what_one_version_has_mailed_is_answered_at_the_other(database: str) -> None:
    old, email = Tokens(database), address()
    async with repository_on(database) as new:
        user = (await made(new, email)).user.id
        token, _ = await issue(new, email, code_hash=b"c" * 32)
        assert old.use(token, "confirmation", NOW) is None
        assert old.use(token, "recovery", NOW) == user
        assert old.use(token, "recovery", NOW) is None
        assert await new.redeem(Answer(("recovery",), token), session(), None, event()) is None
        token = digest()
        assert old.issue(email.key, "recovery", token, NOW, HOUR)
        assert old.issue(email.key, "confirmation", token[::-1], NOW, HOUR)
        assert await new.reset_password(token[::-1], b"$2b$", event()) is None
        redeemed = await new.redeem(Answer(("confirmation",), token[::-1]), session(), None, event())
        assert redeemed is not None and redeemed.session is not None
        assert await new.reset_password(token, b"$2b$04$" + b"c" * 53, event()) is not None
        assert old.use(token, "recovery", NOW) is None


@pytest_twisted.ensureDeferred
async def test_a_code_ends_when_the_version_without_codes_replaces_its_token(database: str) -> None:
    old, email, token = Tokens(database), address(), digest()
    code = Answer(("recovery",), None, email.key, (b"c" * 32,))
    async with repository_on(database) as new:
        await made(new, email)
        first, _ = await issue(new, email, code_hash=b"c" * 32)
        assert not old.issue(email.key, "recovery", token, NOW, HOUR)  # too early
        assert old.issue(email.key, "recovery", token, NOW + MINUTE, HOUR)
        for answer in (Answer(("recovery",), first), code):
            assert await new.redeem(answer, session(), None, event(at=NOW + MINUTE)) is None
        third, _ = await issue(new, email, NOW + 2 * MINUTE, code_hash=b"c" * 32)
        assert await new.redeem(code, session(), None, event(at=NOW + 2 * MINUTE)) is not None
        assert old.use(third, "recovery", NOW + 2 * MINUTE) is None
        await issue(new, email, NOW + 3 * MINUTE)
        assert old.remove_expired(NOW + 3 * MINUTE + HOUR) == 0
        assert old.remove_expired(NOW + 4 * MINUTE + HOUR) == 1
