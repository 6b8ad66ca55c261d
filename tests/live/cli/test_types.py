"""``project-service types``: what it writes is accepted by the strict modes of TypeScript and mypy, with the clients
that it is made for, and refuses what the database would refuse."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from project_service.settings.model import Store
from tests.live.cli.command_here import Command, beside_the_reactor, commands_of, failed
from tests.live.cli.compilers import install_typescript, mypy, tsc
from tests.live.sql import run_sql
from tests.live.storage.cli import config_file

SCHEMA = """
create type mood as enum ('sad', 'very "happy"');
create type address as (street text, zip int);
create domain email as text check (value like '%@%');
create table authors (
  id bigint generated always as identity primary key, name text not null, mood mood, home address,
  mails email[], extra jsonb not null default '{}', "first name" text, class int
);
comment on table authors is 'People who write. */ "Some" \\ do';
create table books (
  id uuid primary key default gen_random_uuid(), title text not null, author bigint references authors,
  price numeric(10, 2) default 0, twice numeric generated always as (price * 2) stored, at timestamptz not null
);
create table profiles (author bigint primary key references authors, bio text);
create table empty ();
create view cheap as select id, title, author from books where price < 10;
create view totals as select author, sum(price) as price from books group by author;
create function full_title(books) returns text language sql stable as 'select $1.title';
create function add(a int, b int default 2) returns int language sql as 'select a + b';
create function find(q text) returns setof books language sql stable as 'select * from books';
create function pair(out x int, out y text) language sql as $$select 1, 'a'$$;
create function over(a int) returns int language sql as 'select 1';
create function over(a text) returns table (i int, m mood) language sql as $$select 1, 'sad'::mood$$;
create function nothing() returns void language sql as 'select';
create schema api;
create table api.books (id int primary key, owner bigint references public.authors);
"""
USED = """
import { PostgrestClient } from '@supabase/postgrest-js'
import type { Database } from './database.js'
const client = new PostgrestClient<Database>('http://127.0.0.1')
const { data } = await client.from('books').select('title, full_title, authors(name, mood)').eq('title', 'x')
export const names: string[] = (data ?? []).map((row) => row.authors?.name ?? row.full_title ?? row.title)
await client.from('books').insert({ title: 'a', at: '2026-01-01' })
await client.from('authors').insert([{ name: 'b', mood: 'sad', home: { street: 'x', zip: null } }])
await client.from('cheap').update({ title: 'a' }).eq('title', 'b')
export const sum: number | null = (await client.rpc('add', { a: 1 })).data
export const found = (await client.rpc('find', { q: 'x' }).select('title')).data?.[0].title.length
const profile = await client.from('profiles').select('bio, authors(name)').single()
export const name: string | undefined = profile.data?.authors.name
export const owner: number | null | undefined = (await client.schema('api').from('books').select()).data?.[0].owner
"""
REFUSED = """
import { PostgrestClient } from '@supabase/postgrest-js'
import type { Database } from './database.js'
const client = new PostgrestClient<Database>('http://127.0.0.1')
await client.from('books').insert({ title: 'without at' })
await client.from('books').update({ twice: 1 })
await client.from('authors').insert([{ name: 'b', mood: 'glad' }])
await client.rpc('add', { b: 1 })
export const none: string = (await client.from('books').select('nope')).data![0].nope
await client.from('totals').insert({ price: 1 })
"""
TYPED = """
from database import Authors, AuthorsInsert, Books, BooksUpdate, row_of

author = row_of(Authors, {})
name: str = author.name
first: str | None = author.first_name
given: AuthorsInsert = {"name": "b", "mood": "sad"}
change: BooksUpdate = {"price": 1.5}
"""


@pytest.fixture
def project(database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    run_sql(database, SCHEMA)
    config = config_file(database, store_settings, tmp_path)
    with config.open("a") as file:
        file.write('[stages.dev.databases.main]\nschemas = ["public", "api"]\n')
    return commands_of(monkeypatch, "--config", config)


@beside_the_reactor
def test_typescript(project: Command, tmp_path: Path) -> None:
    install_typescript(tmp_path)
    assert project("types", "typescript", "--output", str(tmp_path / "database.ts")).out == ""
    for name, program in (("used.ts", USED), ("refused.ts", REFUSED)):
        (tmp_path / name).write_text(program)
    # From the first statement after the client is made, each has a fault.
    assert tsc(tmp_path, "used.ts", "refused.ts") == {("refused.ts", line) for line in range(5, 11)}


@beside_the_reactor
def test_python(project: Command, tmp_path: Path) -> None:
    text = project("types", "python").out
    (tmp_path / "database.py").write_text(text)
    (tmp_path / "typed.py").write_text(TYPED)
    assert mypy(tmp_path, "typed.py") == "Success: no issues found in 1 source file\n"
    (tmp_path / "typed.py").write_text(TYPED.replace('"mood": "sad"', '"mood": "glad"'))
    assert "glad" in mypy(tmp_path, "typed.py")

    specification = importlib.util.spec_from_file_location("made_database", tmp_path / "database.py")
    assert specification is not None and specification.loader is not None
    made: Any = importlib.util.module_from_spec(specification)
    sys.modules["made_database"] = made
    specification.loader.exec_module(made)
    row = {"id": 1, "name": "Le Guin", "mood": None, "home": None, "mails": [], "extra": {}, "class": 7}
    author = made.row_of(made.Authors, {**row, "first name": "Ursula", "more": 1})
    assert (author.first_name, author.f_class, made.Authors.__doc__) == (
        "Ursula",
        7,
        'People who write. */ "Some" \\ do',
    )


@beside_the_reactor
def test_openapi3(project: Command) -> None:
    described: Any = json.loads(project("types", "openapi3").out)
    validate(described)
    book = described["components"]["schemas"]["books"]
    assert described["openapi"] == "3.1.0"
    assert book["properties"]["author"]["type"] == ["integer", "null"]
    assert (book["properties"]["at"]["type"], book["properties"]["at"]["format"]) == ("string", "date-time")
    assert "default" not in book["properties"]["id"]
    insert = described["paths"]["/books"]["post"]
    assert insert["requestBody"] == {"$ref": "#/components/requestBodies/body.books"}
    assert set(described["paths"]["/rpc/add"]) == {"post"}
    api: Any = json.loads(project("types", "openapi3", "--schema", "api").out)
    assert set(api["components"]["schemas"]) == {"books"}


@beside_the_reactor
def test_what_is_refused(project: Command, tmp_path: Path) -> None:
    hidden = project("types", "python", "--schema", "auth")
    assert hidden == failed("the database does not expose the schema auth")
    assert project("types", "cobol").code == 2
    assert project("types", "python", "--output", str(tmp_path / "none" / "x.py")).code != 0
