"""``project-service types`` and what the table API sends: rows of a schema with every kind of type, and of schemas
made at random, are read from a service and are of the types that are written for them."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from attrs import frozen
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from project_service.settings.model import Store
from tests.live.application import Api, serving, settings_for
from tests.live.cli.command_here import Command, beside_the_reactor, commands_of
from tests.live.cli.compilers import install_typescript, mypy, tsc
from tests.live.cli.random_schema import RandomSchema
from tests.live.services import held_open
from tests.live.sql import run_sql
from tests.live.storage.cli import config_file

SCHEMA = """
create type mood as enum ('sad', 'very "happy"');
create type unsaid as enum ();
create type address as (street text, zip int);
create domain home as address check ((value).zip > 0);
create domain color as int;
create domain grid as int[][];
create function color_json(color) returns json language sql immutable
  as $$ select json_build_object('hex', to_hex($1::int)) $$;
create function color_of(json) returns color language sql immutable as $$ select ($1->>'dec')::int::color $$;
create cast (color as json) with function color_json(color) as implicit;
create cast (json as color) with function color_of(json) as implicit;
create type wide as (at address, colors color[], tags text[][], mood mood);
create schema hidden;
create type hidden.size as enum ('s', 'm');
create type hidden.box as (size hidden.size, w int);
create table every (
  id bigint generated always as identity primary key, twice bigint generated always as (1 + 1) stored,
  color color not null, colors color[], o oid, wide wide, addresses address[], home home, box hidden.box,
  matrix int[][] not null, plain int[], v int2vector, one "char", range int4range, money money, raw bytea, named name,
  mood mood, unsaid unsaid, many mood[], size hidden.size, js json, jsb jsonb[], t timestamptz, d date, u uuid,
  i interval, yes boolean, f real, n numeric(5, 2), "list" int[], "int" int, "str" text, "class" bool[], "dict" jsonb,
  "float" float8, "bool" bool, "Any" text, "Address" address, "field" text, "id_" text, "type" text, "None" text,
  grid grid default '{{1},{2}}'
);
insert into every values (default, default, 7, '{1,2}', 5, row(row('x', 1), '{3}', '{{a,b},{c,d}}', 'sad'),
  array[row('y', 2)::address], row('z', 3), row('s', 1), '{{1,2},{3,4}}', '{1,2}', '1 2', 'x', '[1,2)', 3,
  'abc', 'n', 'sad', null, '{sad}', 'm', '{"a": [1]}', array['1'::jsonb, '"a"'], '2026-01-01', '2026-01-01',
  gen_random_uuid(), '1 day', true, 1.5, 2.25, '{1}', 2, 's', '{t}', '{}', 1, true, 'any', row('a', 4), 'f', 'i', 't',
  'n');
-- The types of TypeScript say that arrays have no nulls.
insert into every (color, matrix, addresses, plain) values (8, '{}', array[row('y', 2)::address, null], '{1,null}');
create view seen as select id, twice, color, matrix, matrix[1:1] as part, "Address" as "other one" from every;
create table parts (id int not null, color color, primary key (id)) partition by list (id);
create table part_1 partition of parts for values in (1);
insert into parts values (1, 2);
create table holds (id int primary key, every every, part part_1, color color default 4);
insert into holds select 1, every, part_1 from every, part_1 limit 1;
create function label(every) returns text language sql stable as $$ select 'a' $$;
create function label(holds) returns int language sql stable as $$ select 1 $$;
create function several(every) returns setof parts language sql stable as $$ select * from parts $$;
create function single(every) returns setof holds rows 1 language sql stable as $$ select * from holds $$;
create function whole(row_ holds) returns parts language sql stable as $$ select * from parts $$;
create function beside(row_ every, n int) returns int language sql as $$ select n + (row_).int $$;
create function out_one(out x int) language sql as $$ select 1 $$;
create function table_one() returns table (x color) language sql as $$ select 1::color $$;
create function out_row(out x address) language sql as $$ select row('a', 1)::address $$;
create function table_row() returns table (x address) language sql as $$ select row('a', 1)::address $$;
create function out_two(out x int, out y mood[]) language sql as $$ select 1, '{sad}'::mood[] $$;
create function out_unnamed(out int, out y int) language sql as $$ select 1, 2 $$;
create function partition_row() returns part_1 language sql as $$ select * from part_1 $$;
create function partition_rows() returns setof part_1 language sql as $$ select * from part_1 $$;
create function all_rows() returns setof every language sql stable as $$ select * from every where id = 1 $$;
create function one_row() returns setof holds rows 1 language sql stable as $$ select * from holds $$;
create function no_row() returns parts language sql stable as $$ select null::parts $$;
create function a_color() returns color language sql as $$ select 5::color $$;
create function a_home() returns home language sql as $$ select row('a', 1)::home $$;
create function addresses() returns address[] language sql as $$ select array[row('a', 1)::address] $$;
create function matrix() returns int[] language sql as $$ select '{{1},{2}}'::int[] $$;
create function nothing() returns void language sql as $$ select $$;
create function nothings() returns setof void language sql as $$ select $$;
create function no_number() returns int language sql as $$ select null::int $$;
create function numbers() returns setof oid language sql as $$ select 1::oid $$;
create function a_record(out a int, out b record) language sql as $$ select 1, row(1, 2) $$;
grant all on all tables in schema public to anon;
"""
CALLED = (
    *(
        "out_one",
        "table_one",
        "out_row",
        "table_row",
        "out_two",
        "out_unnamed",
        "partition_row",
        "partition_rows",
    ),
    *("all_rows", "one_row", "a_color", "a_home", "addresses", "numbers", "a_record"),
)
# Their results are nulls or arrays of arrays, which the types of functions in TypeScript do not say.
CALLED_BUT_NULL = ("no_row", "no_number", "matrix", "nothing", "nothings")

# Each statement of REFUSED has a fault.
USED = """
const embedded = await client.from('every').select('color, several(id), single(id, color), label').single()
export const rows: number[] | undefined = embedded.data?.several.map((one) => one.id)
export const single: number | null | undefined = embedded.data?.single?.id
export const label: string | null | undefined = embedded.data?.label
const star = await client.from('every').select().single()
export const noLabel: false = true as 'label' extends keyof NonNullable<typeof star.data> ? true : false
const held = await client.from('holds').select('id, whole(id)').single()
export const whole: number | null | undefined = held.data?.whole.id
const rpc = await client.rpc('one_row').select('id, whole(id), every')
export const id: number | undefined = rpc.data?.[0].id
export const after: string | null | undefined = rpc.data?.[0].every?.str
export const other: number | undefined = (await client.rpc('all_rows').select('several(id)')).data?.[0].several[0].id
await client.from('every').insert({ color: { dec: 1 }, matrix: [[1]], home: { street: 'x', zip: 1 }, o: '7' })
await client.from('seen').update({ color: 7 }).eq('id', 1)
export const oid: string | null | undefined = star.data?.o
type Row = NonNullable<Database['public']['Tables']['holds']['Row']['every']>
export const sum: number | null = (await client.rpc('beside', { row_: {} as Row, n: 1 })).data
"""
REFUSED = """
await client.from('every').select('several(nope)').then(({ data }) => data![0].several[0].nope.length)
await client.from('every').insert({ color: 1, matrix: [1] })
await client.from('seen').update({ twice: 1 })
await client.from('seen').update({ part: [[1]] })
await client.rpc('label', { x: 1 })
await client.rpc('beside', { n: 1 })
export const object: number | null = (await client.rpc('out_one')).data
export const oid: number | null = (await client.from('every').select('o').single()).data!.o
"""
HEAD = """
import { PostgrestClient } from '@supabase/postgrest-js'
import type { Database } from './database.js'
const client = new PostgrestClient<Database>('http://127.0.0.1')
"""
TYPED = """
from database import Every, EveryInsert, HoldsUpdate, SeenUpdate, row_of

row = row_of(Every, {})
zip: int | None = row.home.zip if row.home else None
streets: list[str | None] = [one.street for one in row.addresses or []]
lists: list[int] | None = row.list_
matrix: list[list[int]] = row.matrix
oid: str | None = row.o
given: EveryInsert = {"color": {"dec": 1}, "matrix": [[1]], "home": {"street": "x"}}
update: HoldsUpdate = {"id": 1, "part": {"id": 1}}
seen: SeenUpdate = {"color": 1}
"""


@frozen
class Described:
    """A running service, and the commands for its database."""

    api: Api
    command: Command
    folder: Path

    def read(self, path: str, arguments: Mapping[str, Any] | None = None) -> Any:
        data = None if arguments is None else json.dumps(arguments).encode()
        headers = {"X-Service-Key": self.api.anon_key, "Content-Type": "application/json"}
        with urlopen(Request(f"{self.api.base_url}/dev/db/main/rest/{path}", data, headers)) as answer:
            text = answer.read()
            return json.loads(text) if answer.status != 204 else None

    def write(self) -> Any:
        """The descriptions as ``database.ts`` and ``database.py``. Returns the one in OpenAPI 3."""
        for language, name in (("typescript", "database.ts"), ("python", "database.py")):
            assert self.command("types", language, "--output", str(self.folder / name)).code == 0
        description = json.loads(self.command("types", "openapi3").out)
        validate(description)
        return description


@pytest.fixture
def described(
    request: pytest.FixtureRequest,
    database: str,
    store_settings: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Described]:
    run_sql(database, request.param)
    config = config_file(database, store_settings, tmp_path)
    with config.open("a") as file:
        file.write("[stages.dev.databases.main]\n")
    with held_open(serving(settings_for(database, store_settings, tmp_path))) as api:
        yield Described(api, commands_of(monkeypatch, "--config", config), tmp_path)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the packages from npm are installed."""
    folder = Path(tmp_path_factory.mktemp("node"))
    install_typescript(folder)
    return folder


def link_modules(node: Path, folder: Path) -> None:
    for name in ("node_modules", "package.json"):
        (folder / name).symlink_to(node / name)


def python_module(folder: Path) -> Any:
    specification = importlib.util.spec_from_file_location("sent_database", folder / "database.py")
    assert specification is not None and specification.loader is not None
    made: Any = importlib.util.module_from_spec(specification)
    sys.modules["sent_database"] = made
    specification.loader.exec_module(made)
    return made


def matches(description: Any, schema: Any, value: Any) -> list[str]:
    """What is wrong with a value by a schema of the description."""
    whole = {**schema, "components": description["components"]}
    return [f"{one.json_path}: {one.message}" for one in Draft202012Validator(whole).iter_errors(value)]


def answer_of(description: Any, path: str, method: str) -> Any:
    return description["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]


def typed(rows: Mapping[str, Any], results: Mapping[str, Any]) -> Iterator[str]:
    """Statements that are right if what was sent has the type that the client says it has."""
    calls = {f"from({json.dumps(name)}).select()": value for name, value in rows.items()}
    calls |= {f"rpc({json.dumps(name)})": value for name, value in results.items()}
    for number, (call, value) in enumerate(calls.items()):
        yield f"const got{number} = await client.{call}"
        yield f"export const sent{number}: typeof got{number}.data = {json.dumps(value)}"


@beside_the_reactor
@pytest.mark.parametrize("described", [SCHEMA], indirect=True, ids=["every"])
def test_what_is_sent_has_the_type_that_is_written(described: Described, node: Path) -> None:
    description = described.write()
    rows = {name: described.read(name) for name in ("every", "seen", "parts", "holds")}
    results = {name: described.read(f"rpc/{name}", {}) for name in (*CALLED, *CALLED_BUT_NULL)}
    for name, value in rows.items():
        assert matches(description, answer_of(description, f"/{name}", "get"), value) == []
    for name, value in results.items():
        if name not in ("nothing", "nothings"):
            assert matches(description, answer_of(description, f"/rpc/{name}", "post"), value) == []
    assert set(description["paths"]["/rpc/nothings"]["post"]["responses"]) == {"204"}

    link_modules(node, described.folder)
    del rows["seen"]
    sent = typed({**rows, "every": rows["every"][:1]}, {name: results[name] for name in CALLED})
    (described.folder / "sent.ts").write_text(HEAD + "\n".join(sent) + USED)
    (described.folder / "refused.ts").write_text(HEAD + REFUSED)
    first = HEAD.count("\n") + 2
    wrong = {("refused.ts", line) for line in range(first, first + REFUSED.count("\n") - 1)}
    assert tsc(described.folder, "sent.ts", "refused.ts") == wrong

    module = python_module(described.folder)
    row = module.row_of(module.Every, rows["every"][0])
    assert (row.wide.at.street, row.addresses[0].zip, row.home.zip) == ("x", 2, 3)
    assert module.row_of(module.Every, rows["every"][1]).addresses == [module.Address("y", 2), None]
    assert (row.list_, row.int_, row.Address_.zip, row.color, row.f_None) == ([1], 2, 4, {"hex": "7"}, "n")
    held = module.row_of(module.Holds, rows["holds"][0])
    assert (held.every.wide.at.street, held.part.id) == ("x", 1)
    (described.folder / "typed.py").write_text(TYPED)
    assert mypy(described.folder, "typed.py", "database.py").startswith("Success")


@beside_the_reactor
@pytest.mark.parametrize("described", [SCHEMA], indirect=True, ids=["every"])
def test_bodies_that_openapi3_describes_can_be_written(described: Described) -> None:
    description = described.write()

    def body(name: str) -> Any:
        described_body = description["components"]["requestBodies"][f"body.{name}"]
        return described_body["content"]["application/json"]["schema"]["anyOf"][0]["properties"]

    assert not {"id", "twice"} & set(body("every"))
    assert not {"id", "twice", "part"} & set(body("seen"))
    assert body("every")["color"] == {}
    home = {"anyOf": [{"$ref": "#/components/schemas/address"}, {"type": "null"}]}
    assert body("every")["home"] == body("every")["Address"] == home
    beside = description["paths"]["/rpc/beside"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert beside["properties"]["n"] == {"type": "integer", "format": "int32"}
    assert beside["properties"]["row_"]["type"] == "object"


SCHEMAS = [RandomSchema(seed) for seed in (1, 2)]


@beside_the_reactor
@pytest.mark.parametrize(
    ("made", "described"), [(made, made.sql) for made in SCHEMAS], indirect=["described"], ids=["1", "2"]
)
def test_schemas_made_at_random(described: Described, node: Path, made: RandomSchema) -> None:
    description = described.write()
    rows = {name: described.read(quote(name)) for name in made.tables}
    results = {name: described.read(f"rpc/{quote(name)}", {}) for name in made.functions}
    for name, value in rows.items():
        assert matches(description, answer_of(description, f"/{name}", "get"), value) == []
    for name, value in results.items():
        assert matches(description, answer_of(description, f"/rpc/{name}", "post"), value) == []
    link_modules(node, described.folder)
    (described.folder / "sent.ts").write_text(HEAD + "\n".join(typed(rows, results)))
    assert tsc(described.folder, "sent.ts") == set()
    assert mypy(described.folder, "database.py").startswith("Success")
    module = python_module(described.folder)
    kinds = [
        one for one in vars(module).values() if isinstance(one, type) and hasattr(one, "__dataclass_fields__")
    ]
    for name, value in rows.items():
        wanted = set(value[0])
        mine = [
            kind for kind in kinds if {one.metadata.get("column", one.name) for one in fields(kind)} == wanted
        ]
        assert mine, name
        module.row_of(mine[0], value[0])
