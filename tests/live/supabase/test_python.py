"""supabase-py's parts for accounts and files, unconfigured: what the tables of methods promise, in Python too."""

from __future__ import annotations

import re
import time
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import evolve
from storage3 import SyncStorageClient
from storage3.exceptions import StorageApiError
from supabase_auth import SyncGoTrueClient
from supabase_auth.errors import AuthApiError
from twisted.internet.threads import deferToThread

from project_service.settings.model import Stage, StageDatabase, Store
from tests.live.application import Api, serving, settings_for
from tests.live.sql import run_sql

PASSWORD = "correct horse battery"  # of users that the tests make
POLICIES = """
create policy "own folder" on storage.objects for all to authenticated
  using (bucket_id = 'files' and (storage.foldername(name))[1] = (select auth.uid())::text);
"""


def client(api: Api, key: str) -> Any:
    headers = {"apikey": key, "Authorization": f"Bearer {key}"}
    return SyncGoTrueClient(url=f"{api.base_url}/auth/v1", headers=headers, auto_refresh_token=False)


def code(mails: Path, number: int) -> str:
    """The code of an e-mail, which is on its way; the first has the number 1."""
    deadline = time.monotonic() + 30
    while len(files := sorted(mails.glob("*.eml"))) < number:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    message = message_from_bytes(files[number - 1].read_bytes(), policy=default)
    body = message.get_body(("plain",))
    assert body is not None
    (found,) = re.findall(r"^(\d{6})\r?$", body.get_content(), re.M)
    return str(found)


def accounts(api: Api, mails: Path) -> tuple[str, str]:
    """Everything that users and operators do. Returns the id and the access token of a user."""
    ada = {"email": "ada@example.test", "password": PASSWORD}
    one, admin = client(api, api.anon_key), client(api, api.service_key).admin
    made = one.sign_up({**ada, "options": {"data": {"name": "Ada"}}})
    assert made.session is not None and made.user.user_metadata == {"name": "Ada"}
    assert one.get_user().user.id == made.user.id
    assert one.get_claims()["claims"]["aal"] == "aal1"
    admin.update_user_by_id(made.user.id, {"email_confirm": True})
    refreshed = one.refresh_session()
    assert refreshed.session.refresh_token != made.session.refresh_token
    assert one.update_user({"data": {"colour": "blue"}}).user.user_metadata == {
        "name": "Ada",
        "colour": "blue",
    }
    with pytest.raises(AuthApiError) as refused:
        client(api, api.anon_key).sign_in_with_password({**ada, "password": "x"})
    assert (refused.value.status, refused.value.code) == (400, "invalid_credentials")
    by_code = client(api, api.anon_key)
    by_code.sign_in_with_otp({"email": "bob@example.test"})
    bob = by_code.verify_otp({"email": "bob@example.test", "token": code(mails, 1), "type": "email"})
    assert bob.user.email == "bob@example.test"
    by_code.reset_password_for_email("ada@example.test")
    recovered = client(api, api.anon_key).verify_otp(
        {"email": "ada@example.test", "token": code(mails, 2), "type": "recovery"}
    )
    assert recovered.user.id == made.user.id
    guest = client(api, api.anon_key).sign_in_anonymously()
    assert guest.user.is_anonymous
    assert len(admin.list_users()) == 3
    link = admin.generate_link({"type": "magiclink", "email": "ada@example.test"})
    hashed = {"token_hash": link.properties.hashed_token, "type": "magiclink"}
    session = client(api, api.anon_key).verify_otp(hashed).session
    assert admin.update_user_by_id(bob.user.id, {"ban_duration": "1h"}).user.id == bob.user.id
    assert admin.invite_user_by_email("eve@example.test").user.invited_at is not None
    admin.delete_user(guest.user.id)
    one.sign_out({"scope": "others"})
    with pytest.raises(AuthApiError):
        one.get_user(session.access_token)
    return made.user.id, one.get_session().access_token


def files(api: Api, user: str, token: str) -> None:
    def storage(bearer: str) -> Any:
        key = api.service_key if bearer == api.service_key else api.anon_key
        headers = {"apikey": key, "Authorization": f"Bearer {bearer}"}
        return SyncStorageClient(f"{api.base_url}/storage/v1", headers)

    storage(api.service_key).create_bucket("files", options={"public": False, "file_size_limit": 1000})
    mine, path = storage(token).from_("files"), f"{user}/a.txt"
    assert mine.upload(path, b"hello", {"content-type": "text/plain"}).path == path
    assert mine.download(path) == b"hello"
    assert [one["name"] for one in mine.list(user)] == ["a.txt"]
    assert mine.exists(path) and mine.info(path)["size"] == 5
    with pytest.raises(StorageApiError) as refused:
        mine.upload(path, b"again")
    assert refused.value.code == "ResourceAlreadyExists" or refused.value.status in (409, "409")
    with pytest.raises(StorageApiError):
        mine.upload("somebody/a.txt", b"x")
    assert mine.create_signed_url(path, 60)["signedURL"].startswith(api.base_url)
    mine.move(path, f"{user}/b.txt")
    mine.copy(f"{user}/b.txt", f"{user}/c.txt")
    assert {one["name"] for one in mine.remove([f"{user}/b.txt", f"{user}/none"])} == {f"{user}/b.txt"}
    assert storage(api.anon_key).from_("files").list(user) == []


@pytest_twisted.ensureDeferred
async def test_the_python_clients(database: str, store_settings: Store, tmp_path: Path) -> None:
    run_sql(database, POLICIES)
    mails = tmp_path / "mails"
    auth = {"anonymous_users": True, "email_seconds": 0}
    settings = settings_for(database, store_settings, tmp_path, smtp={"mail_dir": str(mails)}, auth=auth)
    settings = evolve(settings, stages={"dev": Stage(databases={"main": StageDatabase()})})
    async with serving(settings) as api:
        user, token = await deferToThread(accounts, api, mails)
        await deferToThread(files, api, user, token)
