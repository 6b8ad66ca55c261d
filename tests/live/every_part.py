"""A user who does something with each part of a service."""

from __future__ import annotations

from tests.live.application import Api

TABLES = """
create table notes (id int generated always as identity primary key,
                    owner uuid not null default auth.uid(), words text);
alter table notes enable row level security;
create policy own on notes to authenticated using (owner = auth.uid()) with check (owner = auth.uid());
grant select, insert, update, delete on notes to authenticated;
grant select on notes to anon;
"""


async def uses_all_parts(api: Api, name: str) -> None:
    """Has a user sign up, write and read with each part, and log out, after which he is refused."""
    email = f"{name}@example.test"
    session = await api.sign_up(email)
    token, user_id = session["access_token"], session["user"]["id"]
    status, _, body = await api.request(
        "POST", "/auth/login", key=None, json={"email": email, "password": "wrong for sure"}
    )
    assert (status, body["error"]["code"]) == (401, "invalid_credentials")

    stored = f"/storage/buckets/private/objects/{name}/a.txt"
    status, _, _ = await api.request("PUT", stored, token=token, data=b"kept")
    assert status == 201
    status, _, link = await api.request(
        "POST", "/storage/buckets/private/presign", token=token, json={"key": f"{name}/a.txt"}
    )
    assert status == 200
    status, _, body = await api.request("GET", link["url"].removeprefix(api.base_url), key=None)
    assert (status, body) == (200, b"kept")
    assert (await api.request("DELETE", stored, token=token))[0] == 204
    made = {"name": f"made-{name}", "visibility": "private"}
    assert (await api.request("POST", "/admin/buckets", key="service", json=made))[0] == 201

    notes = "/dev/db/main/rest/notes"
    sent = {"words": name}
    prefer = {"Prefer": "return=representation"}
    status, _, rows = await api.request("POST", notes, token=token, json=sent, headers=prefer)
    assert (status, rows[0]["owner"]) == (201, user_id), rows
    assert (await api.request("GET", f"{notes}?select=words", token=token))[2] == [sent]
    assert (await api.request("GET", notes))[2] == []
    status, _, rows = await api.request("GET", f"{notes}?select=words&words=eq.{name}", key="service")
    assert (status, rows) == (200, [sent])

    assert (await api.request("POST", "/auth/logout", key=None, token=token))[0] == 200
    status, _, body = await api.request("GET", "/auth/user", key=None, token=token)
    assert (status, body["error"]["code"]) == (401, "session_revoked")
