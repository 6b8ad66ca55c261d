"""``createClient(url, key)`` of supabase-js for tables, unconfigured, also with a key brought along."""

from __future__ import annotations

from pathlib import Path

import pytest_twisted
from twisted.internet.threads import deferToThread

from project_service.http.caller import digest
from tests.live.npm import install, run_node
from tests.live.sql import run_sql
from tests.live.tables.service import Tables, tables, until_answered

__all__ = ["tables"]

# What a project that moves here has compiled into its apps: a JWT of somebody else's secret.
BROUGHT = "eyJhbGciOiJIUzI1NiJ9.eyJyb2xlIjoiYW5vbiIsImV4cCI6MTk4MzgxMjk5Nn0.c2lnbmVkLWJ5LXNvbWVib2R5LWVsc2U"
PROGRAM = """
import { createClient } from '@supabase/supabase-js'
import ws from 'ws'

globalThis.WebSocket ??= ws  // Node has one since version 22
const [url, key, token] = process.argv.slice(2)
const out = {}
const anybody = createClient(url, key)
out.read = (await anybody.from('books').select('title, authors(name)').lt('price', 10).order('title')).data
out.count = (await anybody.from('books').select('id', { count: 'exact', head: true })).count
out.refused = (await anybody.from('tags').insert({ id: 60, label: 'no' })).error.code
out.missing = (await anybody.from('none').select()).error.code
const user = createClient(url, key, { accessToken: async () => token })
out.made = (await user.from('tags').insert({ id: 61, label: 'js' }).select()).data
out.merged = (await user.from('tags').upsert({ id: 61, label: 'javascript' }).select().single()).data
out.gone = (await user.from('tags').delete().eq('id', 61).select()).data
out.sum = (await user.rpc('add', { a: 40, b: 2 })).data
out.wrong = (await createClient(url, key + 'x').from('books').select()).status
process.stdout.write(JSON.stringify(out))
"""
SEEN = {
    "read": [
        {"title": "Kindred", "authors": {"name": "Butler"}},
        {"title": "The Lathe of Heaven", "authors": {"name": "Le Guin"}},
    ],
    "refused": "42501",
    "missing": "PGRST205",
    "made": [{"id": 61, "label": "js"}],
    "merged": {"id": 61, "label": "javascript"},
    "gone": [{"id": 61, "label": "javascript"}],
    "sum": 42,
    "wrong": 401,
}


@pytest_twisted.ensureDeferred
async def test_supabase_js_reads_and_writes_tables(tables: Tables, tmp_path: Path) -> None:
    run_sql(
        tables.api.dsn,
        "insert into auth.project_keys (kind, sha256) values ('anon', %s) returning 1",
        digest(BROUGHT),
    )
    await until_answered(tables, "GET", "/books", 200, key=BROUGHT)
    count = tables.sql("select count(*) from books")[0][0]

    def session() -> None:
        install(tmp_path, "@supabase/supabase-js@2", "ws@8")
        # The URL of a database is one too.
        for url in (tables.api.base_url, f"{tables.api.base_url}/dev/db/main"):
            for key in (tables.api.anon_key, BROUGHT):
                assert run_node(tmp_path, PROGRAM, url, key, tables.token) == {**SEEN, "count": count}

    await deferToThread(session)
