"""A service with two stages, three databases and two users, which the tests named ``test_attacks_…`` attack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, frozen

from project_service.settings.model import Secret, Stage, StageDatabase, Store
from tests.live.application import Api, serving, settings_for
from tests.live.services import Services, held_open, wait
from tests.live.sql import run_sql

DEV, OTHER, PROD = "/dev/db/main/rest", "/dev/db/other/rest", "/prod/db/main/rest"
PROD_SECRET = "the production stage has a secret of its own"
KEPT = "kept from all others"
TABLES = """
create table {name} (id text primary key, owner uuid default auth.uid(), n numeric, j json, b jsonb);
alter table {name} enable row level security;
create policy own on {name} using (owner = auth.uid()) with check (owner = auth.uid());
grant all on {name} to anon, authenticated;
create schema hidden;
create table hidden.t (a text);
insert into hidden.t values ('{kept}');
grant usage on schema hidden to anon, authenticated, service_role;
grant all on hidden.t to anon, authenticated, service_role;
create function given(a text) returns text language sql return a;
"""


@frozen
class Project:
    """The service, and the access tokens of its two users."""

    api: Api
    ann: str
    bob: str

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, Any, Any]:
        return await self.api.request(method, path, **more)


def with_tables(dsn: str, name: str) -> str:
    run_sql(dsn, TABLES.format(name=name, kept=KEPT))
    return dsn


@pytest.fixture(scope="module")
def project(
    services: Services,
    template: str,
    module_database: str,
    store_settings: Store,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Project]:
    """The stage ``dev`` has two databases, and ``prod`` has one with a token secret of its own."""
    with services.database("other", template) as other, services.database("prod", template) as prod:
        with_tables(module_database, "mains")
        main = StageDatabase(pool_size=2)
        others = evolve(main, dsn=Secret(with_tables(other, "others")))
        production = evolve(main, dsn=Secret(with_tables(prod, "mains")), jwt_secret=Secret(PROD_SECRET))
        settings = settings_for(module_database, store_settings, Path(tmp_path_factory.mktemp("access")))
        stages = {"dev": Stage({"main": main, "other": others}), "prod": Stage({"main": production})}
        with held_open(serving(evolve(settings, stages=stages))) as api:
            ann = wait(lambda: api.sign_up("ann@example.test"))
            bob = wait(lambda: api.sign_up("bob@example.test"))
            yield Project(api, ann["access_token"], bob["access_token"])
