"""Real client libraries, made for PostgREST, against the whole service."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import postgrest
import pytest
import pytest_twisted
from twisted.internet.threads import deferToThread

from tests.live.tables_service import BASE, Tables, tables

__all__ = ["tables"]

SCRIPT = Path(__file__).with_name("postgrest_js.mjs")


@pytest_twisted.ensureDeferred
async def test_the_python_client(tables: Tables) -> None:
    def session() -> None:
        headers = {"apikey": tables.api.anon_key, "Authorization": f"Bearer {tables.token}"}
        client: Any = postgrest.SyncPostgrestClient(tables.api.base_url + BASE, headers=headers)
        found = client.from_("books").select("title, authors(name)").lt("price", 10).order("title").execute()
        assert [row["title"] for row in found.data] == ["Kindred", "The Lathe of Heaven"]
        assert found.data[0]["authors"] == {"name": "Butler"}
        counted = (
            client.from_("books").select("id", count="exact").lte("id", 4).order("id").range(1, 2).execute()
        )
        assert (counted.count, counted.data) == (4, [{"id": 2}, {"id": 3}])
        assert client.from_("books").select("title").eq("id", 3).single().execute().data == {
            "title": "Solaris"
        }
        with pytest.raises(postgrest.APIError) as refused:
            client.from_("books").select("title").gt("id", 0).single().execute()
        assert refused.value.code == "PGRST116"
        made = client.from_("tags").insert([{"id": 50, "label": "py"}, {"id": 51, "label": "pi"}]).execute()
        assert len(made.data) == 2
        merged = client.from_("tags").upsert({"id": 50, "label": "python"}).execute()
        assert merged.data == [{"id": 50, "label": "python"}]
        changed = client.from_("tags").update({"label": "π"}).eq("id", 51).execute()
        assert changed.data == [{"id": 51, "label": "π"}]
        gone = client.from_("tags").delete().in_("id", [50, 51]).execute()
        assert sorted(row["id"] for row in gone.data) == [50, 51]
        assert client.rpc("add", {"a": 40, "b": 2}).execute().data == 42
        text = client.from_("tags").select("id,label").lte("id", 1).csv().execute().data
        assert text == "id,label\n1,utopia"

    await deferToThread(session)


def told_by_node(tables: Tables, folder: Path) -> dict[str, Any]:
    # Not --silent: what npm says of a failure is the reason for the skip.
    install = ["npm", "install", "--loglevel=error", "--no-audit", "--no-fund", "@supabase/postgrest-js@2"]
    (folder / "package.json").write_text('{"type": "module"}')
    made = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if made.returncode:
        pytest.skip(f"npm could not install @supabase/postgrest-js: {made.stderr.strip()[:200]}")
    shutil.copy(SCRIPT, folder / SCRIPT.name)
    command = ["node", SCRIPT.name, tables.api.base_url + BASE, tables.api.anon_key, tables.token]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm, which comes with Node, is not installed")
@pytest_twisted.ensureDeferred
async def test_the_javascript_client(tables: Tables, tmp_path: Path) -> None:
    told = await deferToThread(told_by_node, tables, tmp_path)
    assert told["select"]["data"] == [
        {"title": "Kindred", "authors": {"name": "Butler"}},
        {"title": "The Lathe of Heaven", "authors": {"name": "Le Guin"}},
    ]
    assert told["filters"]["data"] == [{"id": 1}]
    assert told["count"] == {"data": None, "status": 200, "count": 3}
    assert told["range"] == {"data": [{"id": 2}, {"id": 3}], "status": 206, "count": 4}
    assert told["single"]["data"] == {"title": "Solaris"}
    assert told["notSingle"] == {"data": None, "status": 406, "code": "PGRST116"}
    assert told["maybeSingle"] == {"data": None, "status": 200}
    assert told["csv"]["data"] == 'id,label\n1,utopia\n2,"first contact"'
    assert told["insert"] == {"data": [{"id": 100, "label": "js"}], "status": 201}
    assert told["upsert"]["data"] == {"id": 100, "label": "javascript"}
    assert told["update"]["data"] == [{"label": "ecmascript"}]
    assert told["delete"]["data"] == [{"id": 100}]
    assert told["unfiltered"] == {"data": None, "status": 400, "code": "21000"}
    assert told["rpc"]["data"] == 3
    assert told["rpcRows"]["data"] == [{"title": "Kindred"}]
    assert told["missing"] == {"data": None, "status": 404, "code": "PGRST205"}
