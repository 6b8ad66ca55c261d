"""The whole service tested against its OpenAPI document: no 500, no undocumented status, and nothing is accepted that
the document excludes."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest_twisted
from attrs import evolve
from twisted.internet.threads import deferToThread

from project_service.settings.model import Provider, Secret, Smtp, Stage, StageDatabase, Store
from tests.live.application import Api, serving, settings_for
from tests.live.auth.mail_server import mail_server
from tests.live.service.openapi_fuzzing import (
    KEYS,
    OPEN_BUCKET,
    PASSWORD,
    READ_KEYS,
    SCHEMA_SQL,
    Existing,
    fuzz,
    narrowed,
)
from tests.live.sql import run_sql

# Random cases for each operation, besides the few thousand at the limits of the schemas.
EXAMPLES = 12
# The share of operations that have to succeed once: if all were refused early, little would be tested.
SUCCEEDED = 0.7
FACTOR = {"factor_type": "totp", "friendly_name": "phone"}
NO_LIMITS = (
    *(
        "login_failures_max",
        "login_failures_max_per_address",
        "emails_max_per_account",
        "emails_max_per_address",
    ),
    *("verifications_max_per_address", "anonymous_max_per_address", "oauth_max_per_address", "email_seconds"),
)


async def existing(api: Api) -> Existing:
    """Creates users, objects and links for the cases to find."""
    emails = ("ann@example.test", "bob@example.test")
    users = [await api.sign_up(email, PASSWORD) for email in emails]
    tokens = []
    for bucket in ("public", "private"):
        objects = f"/storage/buckets/{bucket}"
        for key in (*KEYS, *READ_KEYS):
            await api.request("PUT", f"{objects}/objects/{key}", key="service", data=b"hello")
        body = {"key": READ_KEYS[0], "uses": 0}
        _, _, link = await api.request("POST", f"{objects}/presign", key="service", json=body)
        tokens.append(link["url"].partition("token=")[2])
    signed, takes = await of_clients(api)
    factors = [
        (await api.request("POST", "/auth/v1/factors", token=user["access_token"], json=FACTOR))[2]["id"]
        for user in users
    ]
    ids = tuple(user["user"]["id"] for user in users)
    return Existing(ids, emails, tuple(tokens), signed, takes, tuple(factors))


async def of_clients(api: Api) -> tuple[str, str]:
    """Creates a bucket that is open, and the tokens of ``Existing.signed`` and ``takes``."""
    await api.request("POST", "/storage/v1/bucket", key="service", json={"name": OPEN_BUCKET, "public": True})
    for key in READ_KEYS:
        path = f"/storage/v1/object/{OPEN_BUCKET}/{quote(key)}"
        await api.request("POST", path, key="service", data=b"hello")
    of_object = f"public/{READ_KEYS[0]}"
    sign = f"/storage/v1/object/sign/{of_object}"
    _, _, download = await api.request("POST", sign, key="service", json={"expiresIn": 3600})
    sign, upsert = f"/storage/v1/object/upload/sign/{of_object}", {"x-upsert": "true"}
    _, _, upload = await api.request("POST", sign, key="service", headers=upsert)
    return download["signedURL"].partition("token=")[2], upload["token"]


@pytest_twisted.ensureDeferred
async def test_the_service_does_what_its_openapi_document_says(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    run_sql(database, SCHEMA_SQL)
    auth = {
        **dict.fromkeys(NO_LIMITS, 0),
        "anonymous_users": True,
        "manual_linking": True,
        "passkeys": True,
        "site_url": "http://localhost:3000/",
        "providers": {"github": Provider(client_id=("x",), client_secret=Secret("x"))},
    }
    settings = settings_for(
        database, store_settings, tmp_path, auth=auth, database={"acquire_timeout_seconds": 60.0}
    )
    folder = tmp_path / "migrations"
    folder.mkdir()
    allowed: dict[str, Any] = {"console_sql": True, "console_log": True, "migrations_dir": str(folder)}
    server = evolve(settings.server, public_url="http://localhost:3001", **allowed)
    stages = {"dev": Stage(databases={"main": StageDatabase(pool_size=3)})}
    async with mail_server() as (_, port):
        smtp = Smtp(host="127.0.0.1", port=port, sender="a@b.test", tls="none")
        async with serving(evolve(settings, smtp=smtp, stages=stages, server=server)) as api:
            found = await fuzzed(api)
    assert not found.faults, "\n".join(found.faults)
    failed = sorted(label for label, seen in found.answers.items() if min(seen) >= 400)
    assert len(failed) <= (1 - SUCCEEDED) * len(found.answers), failed


async def fuzzed(api: Api) -> Any:
    status, _, body = await api.request("GET", "/openapi.json", key=None)
    assert status == 200
    document = narrowed(body if isinstance(body, dict) else orjson.loads(body), await existing(api))
    return await deferToThread(fuzz, document, api.base_url, api.anon_key, api.service_key, EXAMPLES)
