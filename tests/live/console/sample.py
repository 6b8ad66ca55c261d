"""A small project with something of everything, for pictures and for looking at pages: people who watch birds."""

from __future__ import annotations

from random import Random
from time import monotonic, sleep

from tests.live.console.browsing import FIREFOX, IPHONE, Running
from tests.pictures import encoded

PASSWORD = "a long enough password"
PEOPLE = ("ann", "bela", "chidi", "dora", "emre", "fatima", "goran", "hana")

_TABLES = """
create type public.weather as enum ('clear', 'cloudy', 'rain', 'snow');

create table public.species (
  id bigint generated always as identity primary key,
  name text not null unique,
  latin text not null,
  threatened boolean not null default false
);
comment on table public.species is 'Birds that somebody has seen here';

create table public.sightings (
  id bigint generated always as identity primary key,
  species_id bigint not null references public.species,
  seen_by uuid references auth.users default auth.uid(),
  place text not null,
  seen_at timestamptz not null default now(),
  count integer not null default 1 check (count > 0),
  weather public.weather,
  marks text[],
  details jsonb not null default '{}',
  remark text
);
comment on table public.sightings is 'Who has seen which bird, where and when';

create view public.sightings_by_place as
  select place, count(*) as sightings, sum(count) as birds from public.sightings group by place;

grant select (id, species_id, place, seen_at, count) on public.sightings to anon;
grant select, insert, update, delete on public.sightings to authenticated;
grant select on public.species, public.sightings_by_place to anon, authenticated;
alter table public.species enable row level security;
alter table public.sightings enable row level security;
create policy "Everybody may read" on public.species for select using (true);
create policy "Everybody may see what was seen" on public.sightings for select using (true);
create policy "One's own" on public.sightings for all to authenticated
  using (seen_by = auth.uid()) with check (seen_by = auth.uid());

insert into public.species (name, latin, threatened) values
  ('Blackbird', 'Turdus merula', false), ('Robin', 'Erithacus rubecula', false),
  ('Wren', 'Troglodytes troglodytes', false),
  ('Kingfisher', 'Alcedo atthis', true), ('Grey heron', 'Ardea cinerea', false), ('Barn owl', 'Tyto alba', true),
  ('Lapwing', 'Vanellus vanellus', true), ('Goldfinch', 'Carduelis carduelis', false);
"""
_SIGHTINGS = """
insert into public.sightings (species_id, seen_by, place, seen_at, count, weather, marks, details, remark)
select 1 + i %% 8, (%s::uuid[])[1 + i %% 8], (array['Mill pond', 'North wood', 'Harbour', 'Orchard'])[1 + i %% 4],
  '2026-11-20T07:30:00Z'::timestamptz - i * interval '97 minutes', 1 + (i * i + i / 7) %% 9,
  (array['clear', 'cloudy', 'rain', null]::public.weather[])[1 + i %% 4],
  case when i %% 5 = 0 then array['ringed', 'juvenile'] end,
  jsonb_build_object('distance', 5 + i %% 60, 'binoculars', i %% 3 = 0),
  case when i %% 6 = 0 then 'Sang from the top of the hedge' end
from generate_series(0, 419) i
"""


def landscape(number: int, width: int = 480, height: int = 320) -> bytes:
    """A picture: a sky and a hill, in colours of their own."""
    rows = []
    for y in range(height):
        shade = y * 90 // height
        hill, sky = bytes((60 + shade, 120 + number * 9 % 60, 70)), bytes((150 + shade, 190, 235 - shade))
        top = (height * 0.62 + (x - width * (0.3 + 0.1 * (number % 5))) ** 2 / 900 for x in range(width))
        rows.append(b"".join(hill if y > each else sky for each in top))
    return encoded(width, rows)


def fill(running: Running) -> None:
    """Make the tables, people, buckets and objects of the project."""
    running.sql(_TABLES)
    ids = []
    for name in PEOPLE:
        body = {"email": f"{name}@example.com", "password": PASSWORD, "metadata": {"name": name.title()}}
        made = running.call("POST", "/admin/users", json=body)
        assert made.status_code == 201, made.text
        ids.append(made.json()["data"]["user"]["id"])
    running.sql(_SIGHTINGS, ids)
    running.sql("analyze")
    rules = {"visibility": "public", "anonymous_reads": True, "max_bucket_bytes": 50 * 2**20}
    made = running.call("POST", "/admin/buckets", json={"name": "pictures", **rules})
    assert made.status_code == 201, made.text
    for number in range(6):
        key = f"2026/{'spring' if number < 3 else 'autumn'}/hill-{number}.png"
        _put(running, f"pictures/objects/{key}", landscape(number), "image/png")
    _put(running, "pictures/objects/2026/readme.txt", b"Pictures of the places.\n", "text/plain")
    for name, agent in (("ann", FIREFOX), ("ann", IPHONE), ("chidi", FIREFOX)):
        body = {"email": f"{name}@example.com", "password": PASSWORD}
        made = running.call("POST", "/auth/login", json=body, headers={"User-Agent": agent})
        assert made.status_code == 200, made.text
    running.call("POST", "/auth/recover", json={"email": "ann@example.com"})


def use(running: Running, seconds: float = 180.0) -> None:
    """As people do, for so long that charts have something to show."""
    random, until = Random(7), monotonic() + seconds
    paths = (
        "/dev/db/main/rest/sightings?select=*,species(name)&order=seen_at.desc&limit=50",
        "/dev/db/main/rest/sightings_by_place",
        "/storage/public/pictures/2026/spring/hill-1.png",
        "/storage/buckets/pictures/objects?prefix=2026/",
        "/auth/user",  # without a token
    )
    while monotonic() < until:
        for _ in range(random.randint(5, 60)):
            path = random.choices(paths, (9, 3, 6, 2, 1))[0]
            answer = running.call("GET", path)
            assert answer.ok or path == "/auth/user", answer.text
            sleep(random.uniform(0, 0.03))
        sleep(random.uniform(0, 3))


def _put(running: Running, path: str, data: bytes, kind: str) -> None:
    made = running.call("PUT", f"/storage/buckets/{path}", data=data, headers={"Content-Type": kind})
    assert made.status_code in (200, 201), made.text
