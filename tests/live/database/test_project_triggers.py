"""Triggers of the project refuse signups and uploads with a status and a message of their own (docs/auth.rst, "In the
database", whose example is run here; docs/storage.rst)."""

from __future__ import annotations

from pathlib import Path

import pytest_twisted

from project_service.settings.model import Store
from tests.live.application import serving, settings_for
from tests.live.auth.service import PASSWORD, api_on, post
from tests.live.service.documented_clients import BLOCK
from tests.live.sql import run_sql
from tests.live.waiting import until

PAGE = Path(__file__).parents[3] / "docs" / "auth.rst"
# The functions of triggers see an empty search path, hence the schema.
NO_DRAFTS = """
create function public.no_drafts() returns trigger language plpgsql as $$
begin
    if new.key like 'draft%' then
        raise sqlstate 'PT409' using message = 'No drafts.';
    end if;
    return new;
end $$;
create trigger no_drafts before insert or update on storage.objects
    for each row execute function public.no_drafts()
"""


def documented() -> str:
    blocks = {name: text for _, name, text in BLOCK.findall(PAGE.read_text("utf-8"))}
    return str(blocks["only-members"])


@pytest_twisted.ensureDeferred
async def test_a_trigger_refuses_signups(database: str, store_settings: Store, tmp_path: Path) -> None:
    run_sql(database, documented())
    async with api_on(database, store_settings, tmp_path) as api:
        status, answer = await post(api, "/auth/signup", {"email": "eve@example.net", "password": PASSWORD})
        assert (status, answer["error"]) == (
            403,
            {"code": "refused_by_project", "message": "Sign up with your address at example.com."},
        )
        await api.sign_up("ada@example.com")
    assert run_sql(database, "select email from auth.users") == [("ada@example.com",)]


@pytest_twisted.ensureDeferred
async def test_a_trigger_refuses_uploads_and_moves(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    run_sql(database, NO_DRAFTS)
    objects = "/storage/buckets/private/objects"
    settings = settings_for(database, store_settings, tmp_path, storage={"sweep_seconds": 0.05})
    async with serving(settings) as api:

        async def refused(method: str, path: str, **sent: object) -> tuple[int, str]:
            status, _, body = await api.request(method, path, key="service", **sent)  # type: ignore[arg-type]  # what treq takes
            return status, body["error"]["code"]

        assert await refused("PUT", f"{objects}/draft", data=b"bytes") == (409, "refused_by_project")
        assert (await api.request("PUT", f"{objects}/final", key="service", data=b"bytes"))[0] == 201
        move = {"from": "final", "to": "draft-2"}
        assert await refused("POST", "/storage/buckets/private/move", json=move) == (
            409,
            "refused_by_project",
        )
        assert run_sql(database, "select key from storage.objects") == [("final",)]
        # Of what was refused nothing is left in the store.
        await until(
            lambda: (
                not run_sql(
                    database, "select version from storage.uploads union select version from storage.garbage"
                )
            )
        )
