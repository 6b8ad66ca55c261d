"""Functions that somebody creates in a schema of the search path do not run with the service's rights
(CVE-2018-1058)."""

from __future__ import annotations

from pathlib import Path

import pytest_twisted

from project_service.settings.model import Store
from tests.live.application import serving, settings_for
from tests.live.every_part import TABLES, uses_all_parts
from tests.live.sql import run_each

# Each fits the service's calls better than PostgreSQL's own function, whose arguments may be of any type.
TRAPS = """
create table public.caught (what text);
create function public.caught_one(what text) returns void language sql as 'insert into public.caught values (what)';
create function public.keep(a jsonb, b json) returns jsonb language plpgsql as
  $$ begin perform public.caught_one('json_agg'); return coalesce(a, '[]') || b::jsonb; end $$;
create function public.kept(a jsonb) returns json language sql as 'select a::json';
create aggregate public.json_agg(json) (sfunc = public.keep, stype = jsonb, finalfunc = public.kept);
create function public.array_remove(a timestamptz[], b timestamptz) returns timestamptz[] language plpgsql as
  $$ begin perform public.caught_one('array_remove'); return pg_catalog.array_remove(a, b); end $$;
create function public.concat_ws(s text, a int8, b int8, c int8, d numeric) returns text language plpgsql as
  $$ begin perform public.caught_one('concat_ws'); return pg_catalog.concat_ws(s, a, b, c, d); end $$;
create function public.cardinality(a text[]) returns int language plpgsql as
  $$ begin perform public.caught_one('cardinality'); return pg_catalog.cardinality(a); end $$
"""
# These calls show that the functions would be called if the search path led to them.
CALLS = """
select json_agg(to_json(1)), array_remove(array[now()], now()), concat_ws(':', 1::int8, 1::int8, 1::int8, 1.5),
  cardinality(array['a'])
"""


@pytest_twisted.ensureDeferred
async def test_the_service_does_not_call_functions_made_by_others(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    run_each(database, TABLES, TRAPS)
    async with serving(settings_for(database, store_settings, tmp_path)) as api:
        await uses_all_parts(api, "one")
        assert (await api.request("GET", "/storage/buckets/private/objects", key="service"))[0] == 200
        assert (await api.request("GET", "/dev/db/main/rest/not_there"))[0] == 404
    assert run_each(database, "select * from caught") == []
    run_each(database, CALLS)
    assert len(run_each(database, "select distinct what from caught")) == 4
