"""Attempts to reach another bucket, another database or another stage than the caller may use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jwt
import pytest_twisted
from attrs import evolve

from project_service.embedded.postgres import OWNER
from project_service.settings.model import Secret, Stage, StageDatabase, Store
from tests.live.application import serving, settings_for
from tests.live.attacks.attacked import DEV, KEPT, OTHER, PROD, PROD_SECRET, Project, project, with_tables
from tests.live.services import Services

__all__ = ["project"]


async def put(project: Project, bucket: str, key: str) -> None:
    path = f"/storage/buckets/{bucket}/objects/{key}"
    status, _, body = await project.ask("PUT", path, token=project.ann, data=KEPT.encode())
    assert status in (200, 201), body


@pytest_twisted.ensureDeferred
async def test_a_private_bucket_is_not_reached_through_a_public_one(project: Project) -> None:
    await put(project, "private", "d/k")
    buckets, target = "/storage/buckets", "private/objects/d/k"
    for path in (
        f"{buckets}/{target}",
        *(
            f"{buckets}/public/objects/{up}{target}"
            for up in (
                "../../",
                "..%2f..%2f",
                "%2e%2e/%2e%2e/",
                "..\\..\\",
                "..%5c..%5c",
                "%252e%252e/%252e%252e/",
            )
        ),
        *(f"{buckets}/public/{up}/{target}" for up in ("..", "%2e%2e", ".")),
        f"{buckets}/public%2f..%2f{target}",
        f"{buckets}/public%00/../{target}",
        f"{buckets}//{target}",
        f"{buckets}/PRIVATE/objects/d/k",
        f"{buckets}/private%20/objects/d/k",
        f"{buckets}/public/objects?prefix=../private/",
        f"{buckets}/public/objects?prefix=..%2Fprivate%2Fobjects%2F&recursive=true",
        f"{buckets}/private/objects?prefix=d/",
        "/storage/download?token=../private/objects/d/k",
    ):
        for method in ("GET", "HEAD"):
            status, _, body = await project.ask(method, path)
            # Listing the public bucket is allowed, and finds nothing.
            assert status in (400, 401, 404, 422) or (status == 200 and "prefix" in path), (path, status)
            assert KEPT not in str(body) and '"d/k"' not in str(body), path


@pytest_twisted.ensureDeferred
async def test_writes_stay_in_their_bucket(project: Project) -> None:
    await put(project, "private", "stays")
    await put(project, "public", "other")
    public = "/storage/buckets/public"
    for what, body in (
        ("copy", {"from": "../private/stays", "to": "taken"}),
        ("copy", {"from": "private/stays", "to": "taken"}),
        ("move", {"from": "../../private/objects/stays", "to": "taken"}),
        ("move", {"from": "other", "to": "../private/stays"}),
        ("presign", {"key": "../private/stays"}),
        ("presign", {"key": "stays"}),
        ("copy", {"from": "stays", "to": "taken", "bucket": "private"}),
    ):
        status, _, answer = await project.ask("POST", f"{public}/{what}", token=project.ann, json=body)
        assert status in (404, 422), (what, body, answer)
    keys = {"keys": ["stays"]}
    status, _, answer = await project.ask("POST", f"{public}/delete", token=project.ann, json=keys)
    assert (status, answer) == (200, {"deleted": [], "missing": ["stays"]})
    status, _, body = await project.ask("GET", "/storage/buckets/private/objects/stays", token=project.ann)
    assert (status, body) == (200, KEPT.encode())


@pytest_twisted.ensureDeferred
async def test_a_database_is_not_reached_through_another(project: Project) -> None:
    for key in ("anon", "service"):
        for path in (
            f"{DEV}/others",
            f"{OTHER}/mains",
            *(
                f"{DEV}/{name}"
                for name in ("hidden.t", "%22hidden%22.t", "auth.users", "users", "t", "pg_authid")
            ),
            f"{DEV}/mains?select=*,users(*)",
            f"{DEV}/mains?select=*,t(*)",
            f"{DEV}/mains?select=hidden.t.a",
            f"{DEV}/mains?select=id,(select+a+from+hidden.t)",
            f"{DEV}/mains?id=eq.(select+a+from+hidden.t)&order=id;select+1",
            f"{DEV}/mains?select=id::text);select+a+from+hidden.t;--",
            f"{DEV}/../../other/rest/others",
            f"{DEV}/%2e%2e/%2e%2e/other/rest/others",
            "/dev/db/%6dain%2f..%2fother/rest/others",
            *(
                f"{DEV}/rpc/{name}"
                for name in ("pg_read_file", "pg_sleep", "set_config", "auth.uid", "query_to_xml")
            ),
            "/dev/db/nowhere/rest/mains",
            "/nowhere/db/main/rest/mains",
        ):
            status, _, body = await project.ask("GET", path, key=key)
            # SQL in the value of a filter is only a value, and matches nothing.
            assert status in (400, 401, 403, 404, 406) or body == [], (key, path, status, body)
            assert KEPT not in str(body), path
        for schema in (
            "hidden",
            "auth",
            "storage",
            "_project_service",
            "pg_catalog",
            "information_schema",
            "x",
        ):
            for name in ("t", "users", "buckets", "pg_authid", "tables"):
                for header in ("Accept-Profile", "Content-Profile"):
                    status, _, body = await project.ask(
                        "GET" if header.startswith("A") else "POST",
                        f"{DEV}/{name}",
                        key=key,
                        headers={header: schema},
                    )
                    assert (status, body["code"]) == (406, "PGRST106"), (schema, name, body)


@pytest_twisted.ensureDeferred
async def test_a_user_of_one_stage_is_unknown_in_another(project: Project) -> None:
    row = {"id": "ann's"}
    status, _, body = await project.ask("POST", f"{DEV}/mains", token=project.ann, json=row)
    assert status == 201, body
    # Neither another user, nor nobody, nor the same user in another database sees it.
    assert (await project.ask("GET", f"{DEV}/mains?select=id", token=project.ann))[2] == [row]
    assert (await project.ask("GET", f"{DEV}/mains?select=id", token=project.bob))[2] == []
    assert (await project.ask("GET", f"{DEV}/mains?select=id"))[2] == []
    for change in ("PATCH", "DELETE"):
        status, _, body = await project.ask(
            change, f"{DEV}/mains?id=eq.ann's", token=project.bob, json={"id": "bob's"},
            headers={"Prefer": "return=representation"},
        )  # fmt: skip
        assert (status, body) == (200, [])
    status, _, body = await project.ask("GET", f"{PROD}/mains", token=project.ann)
    assert (status, body["code"]) == (401, "PGRST301")

    # A token signed with the other stage's secret is valid there, and nowhere else.
    subject = jwt.decode(project.ann, options={"verify_signature": False})["sub"]
    claims = {"sub": subject, "role": "authenticated", "aud": "authenticated", "exp": 2**33, "sid": "x"}
    forged = jwt.encode(claims, PROD_SECRET, "HS256")
    assert (await project.ask("GET", f"{PROD}/mains", token=forged))[2] == []
    status, _, body = await project.ask("GET", f"{DEV}/mains", token=forged)
    assert (status, body["code"]) == (401, "PGRST301")
    for path in ("/auth/user", "/auth/sessions", "/storage/buckets/private/objects"):
        status, _, body = await project.ask("GET", path, token=forged)
        assert (status, body["error"]["code"]) == (401, "invalid_token"), path


@pytest_twisted.ensureDeferred
async def test_the_role_none_does_not_run_as_the_role_that_connects(project: Project) -> None:
    """PostgreSQL takes that name for ``RESET ROLE``, and the role that connects owns the tables."""
    token = jwt.encode({"role": "none", "exp": 2**33}, PROD_SECRET, "HS256")
    for path in ("/mains", "/"):
        status, _, body = await project.ask("GET", PROD + path, token=token)
        assert (status, body) == no_role("none")


def no_role(name: str) -> tuple[int, dict[str, object]]:
    return 401, {"code": "22023", "message": f'role "{name}" does not exist', "details": None, "hint": None}


@pytest_twisted.ensureDeferred
async def test_a_token_may_not_claim_the_role_that_connects(project: Project) -> None:
    """PostgreSQL lets every role become itself."""
    spellings = (OWNER, OWNER.upper(), OWNER.title(), f" {OWNER}", f"{OWNER} ", f'"{OWNER}"', f"{OWNER}\t")
    for role in (*spellings, OWNER.ljust(63), "NONE", " none", '"none"', "session_user", "default", ""):
        token = jwt.encode({"role": role, "exp": 2**33}, PROD_SECRET, "HS256")
        sent: dict[str, Any]
        for method, path, sent in (
            ("GET", "/mains", {}),
            ("GET", "/", {}),
            ("POST", "/mains", {"json": {"id": "x"}}),
            ("POST", "/rpc/given", {"json": {"a": "b"}}),
        ):
            status, _, body = await project.ask(method, PROD + path, token=token, **sent)
            assert (status, body) == no_role(role), (method, path)
        status, _, body = await project.ask(
            "POST",
            f"{PROD}/mains",
            token=token,
            data=b"id\n1\n" * 300_000,
            headers={"Content-Type": "text/csv"},
        )
        assert (status, body) == no_role(role)


@pytest_twisted.ensureDeferred
async def test_a_role_is_not_claimed_by_a_name_that_postgresql_would_cut(
    project: Project, services: Services
) -> None:
    role = services.unique("cut").replace("-", "_").ljust(63, "x")
    services.admin(f"create role {role}; grant {role} to {OWNER}; grant anon to {role}")
    try:
        for more, expected in (("", 200), ("y", 401), ("yy" * 40, 401), ("é", 401)):
            token = jwt.encode({"role": role + more, "exp": 2**33}, PROD_SECRET, "HS256")
            status, _, body = await project.ask("POST", f"{PROD}/rpc/given", token=token, json={"a": "b"})
            assert (status, body) == (200, "b") if expected == 200 else no_role(role), more
    finally:
        services.admin(f"drop role {role}")


@pytest_twisted.ensureDeferred
async def test_of_a_superusers_roles_only_those_that_it_was_granted_may_be_claimed(
    services: Services, database: str, store_settings: Store, tmp_path: Path
) -> None:
    """A superuser may become every role."""
    with_tables(database, "mains")
    admin = services.admin_dsn(database)
    granted, member, other = (
        services.unique(name).replace("-", "_") for name in ("granted", "member", "other")
    )
    services.admin(
        f"create role {granted}; create role {member}; create role {other} superuser;"
        f"grant {member} to {granted}; grant {other} to {OWNER}"
    )
    own = StageDatabase(dsn=Secret(admin), pool_size=2, jwt_secret=Secret(PROD_SECRET))
    settings = evolve(settings_for(database, store_settings, tmp_path), stages={"dev": Stage({"main": own})})

    async def answered(role: str) -> object:
        token = jwt.encode({"role": role, "exp": 2**33}, PROD_SECRET, "HS256")
        status, _, body = await api.request("POST", f"{DEV}/rpc/given", token=token, json={"a": "b"})
        return body if status == 200 else (status, body)

    try:
        async with serving(settings) as api:
            for role in ("postgres", OWNER, granted, member, other, "pg_read_all_data", "nobody"):
                assert await answered(role) == no_role(role)
            for role in ("anon", "authenticated", "service_role"):
                assert await answered(role) == "b"
            services.admin(f"grant {granted} to postgres")
            assert [await answered(role) for role in (granted, member)] == ["b", "b"]
            assert await answered(other) == no_role(other)
            services.admin(f"revoke {granted} from postgres")
            assert await answered(granted) == no_role(granted)
    finally:
        services.admin(
            f"drop role {member}; revoke {other} from {OWNER}; drop role {granted}; drop role {other}"
        )
