"""Attempts to reach another bucket, another database or another stage than the caller may use."""

from __future__ import annotations

import jwt
import pytest_twisted

from tests.live.attacks.attacked import DEV, KEPT, OTHER, PROD, PROD_SECRET, Project, project

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
        assert (status, body) == (
            401,
            {"code": "22023", "message": 'role "none" does not exist', "details": None, "hint": None},
        )
