"""Everyday requests to the table API, and the tables that they read and write, which the yardstick knows too."""

from __future__ import annotations

from attrs import field, frozen

from benchmarks.load import Request
from benchmarks.running import Running

SCHEMA = """
create table items
  (id int primary key, name text not null, price numeric, tags text[], made timestamptz default now());
insert into items select i, 'item number ' || i, i * 1.5, array['a', 'b'], now() from generate_series(1, 10000) i;
create table parts
  (id int generated always as identity primary key, item_id int not null references items, label text);
create index parts_item on parts (item_id);
insert into parts (item_id, label) select 1 + i % 10000, 'part ' || i from generate_series(1, 30000) i;
create table notes (id bigint generated always as identity primary key, text text not null);
create table own_items (like items including all, owner uuid not null);
alter table own_items enable row level security;
create policy own on own_items to authenticated using (owner = auth.uid());
create view slow as select 1 as id from pg_sleep(0.2);
grant select on items, parts, slow to anon;
grant select on own_items to authenticated;
grant select, insert on notes to anon;
vacuum analyze items;
vacuum analyze parts;
notify pgrst
"""


@frozen
class Case:
    name: str
    path: str
    body: str = ""
    headers: dict[str, str] = field(factory=dict)
    base: str = "/dev/db/main/rest"

    def request(self, running: Running, address: str = "") -> Request:
        """Sent to ``running``, or to the yardstick at ``address``, by the anon key."""
        headers = {"X-Service-Key": running.anon_key, **self.headers}
        url = f"{address or running.url}{self.base}{self.path}"
        if not self.body:
            return Request(url, headers)
        headers |= {"Content-Type": "application/json", "Prefer": "return=representation"}
        return Request(url, headers, "POST", self.body)


ROW = Case("one row by key", "/items?id=eq.7")
CLIENT_ROW = Case(
    "one row by key, where clients of the Supabase family look", "/items?id=eq.7", base="/rest/v1"
)
PAGE = Case("100 rows", "/items?limit=100")
LEVELS = Case("two levels", "/items?select=id,name,parts(id,label)&id=eq.7")
INSERT = Case("insert", "/notes", '{"text": "a note"}')
SLOW = Case("200 ms", "/slow")
