"""A small schema cache to plan against: authors write works, works have tags through a junction."""

from __future__ import annotations

import json

from project_service.tables.schema_cache.build import build
from project_service.tables.values import SchemaCache

EXTRAS = {
    "postgis": False,
    "connects_as": "project_service",
    "as_superuser": False,
    "comments": {},
    "fingerprint": "1",
    "row_functions": ["array_agg", "json_agg", "jsonb_agg"],
}
# A database without functions of its own.
TRUST: dict[str, object] = {
    "functions": [],
    "aggregates": [],
    "constants": None,
    "behind": [],
    "used": [],
    "readable": [],
    "relations": None,
    "unclear": False,
    "weak": None,
    "kept": False,
    "expressions": False,
    "exposed": False,
    "triggers": [],
}


def _column(name: str, type_: str, nullable: bool = True, default: str | None = None) -> list[object]:
    return [name, type_, type_, nullable, default, None, None, None]


def _relation(name: str, columns: list[list[object]], kind: str = "r", events: int = 28) -> dict[str, object]:
    return {
        "schema": "api",
        "name": name,
        "kind": kind,
        "description": None,
        "events": events,
        "row_bytes": None,
        "inherited": False,
        "columns": columns,
    }


def _keyed(oid: int, name: str, columns: list[tuple[int, str]], key: list[int], view: bool = False) -> object:
    return {"oid": oid, "schema": "api", "name": name, "is_view": view, "columns": columns, "key": key}


def _foreign_key(name: str, origin: int, columns: list[int], target: int) -> dict[str, object]:
    return {
        "name": name,
        "origin": origin,
        "target": target,
        "origin_key": columns,
        "target_key": [1],
        "is_unique": False,
    }


def _routine(name: str, arguments: list[object], **more: object) -> dict[str, object]:
    return {
        "schema": "api",
        "name": name,
        "description": None,
        "volatility": "s",
        "is_set": False,
        "return_media": None,
        "is_bytes": False,
        "is_sql": True,
        "is_void": False,
        "shows_records": False,
        "is_composite": False,
        "returns": None,
        "settings": [],
        "columns": None,
        "arguments": arguments,
        **more,
    }


def _computed(name: str, relation: str) -> dict[str, object]:
    row = ["api", relation]
    return {"schema": "api", "name": name, "row": row, "relation": row, "is_record": False}


# The rule of a view "recent" that shows columns 1, 2 and 3 of works under other names.
_RULE = (
    "({QUERY :targetList ("
    + " ".join(
        f"{{TARGETENTRY :expr {{VAR :varno 1}} :resno {number} :resname {name} :ressortgroupref 0 "
        f":resorigtbl 2 :resorigcol {number} :resjunk false}}"
        for number, name in ((1, "work"), (2, "title\\)"), (3, "author"))
    )
    + ") :override 0})"
)


def cache() -> SchemaCache:
    answers = {
        "relations": [
            _relation("authors", [_column("id", "integer", False, "nextval('s')"), _column("name", "text")]),
            _relation(
                "works",
                [
                    _column("id", "integer", False),
                    _column("title", "text"),
                    _column("author_id", "integer"),
                    _column("editor_id", "integer"),
                    _column("data", "jsonb"),
                ],
            ),
            _relation("tags", [_column("id", "integer", False), _column("label", "text")]),
            _relation(
                "works_tags", [_column("work_id", "integer", False), _column("tag_id", "integer", False)]
            ),
            _relation("recent", [_column(name, "integer") for name in ("work", "title", "author")], "v", 0),
        ],
        "keys": [
            _keyed(1, "authors", [(1, "id")], [1]),
            _keyed(2, "works", [(1, "id"), (3, "author_id"), (4, "editor_id")], [1]),
            _keyed(3, "tags", [(1, "id")], [1]),
            _keyed(4, "works_tags", [(1, "work_id"), (2, "tag_id")], [1, 2]),
            _keyed(5, "recent", [(1, "work"), (2, "title"), (3, "author")], [], view=True),
        ],
        "foreign_keys": [
            _foreign_key("works_author_fkey", 2, [3], 1),
            _foreign_key("works_editor_fkey", 2, [4], 1),
            _foreign_key("works_tags_tag_fkey", 4, [2], 3),
            _foreign_key("works_tags_work_fkey", 4, [1], 2),
        ],
        "rules": [{"oid": 5, "rule": _RULE}],
        "routines": [
            _routine(
                "add", [["a", "integer", "integer", True, None], ["b", "integer", "integer", False, None]]
            ),
            _routine("add", [["a", "integer", "integer", True, None], ["c", "text", "text", True, None]]),
            _routine("whole", [["", "json", "json", True, None]], volatility="v"),
            *(
                _routine(f"whole_{type_}", [["", type_, type_, True, None]], volatility="v")
                for type_ in ("jsonb", "text", "xml", "bytea")
            ),
            _routine(
                "find",
                [["q", "text", "text", True, None]],
                is_set=True,
                is_composite=True,
                returns=["api", "works"],
            ),
        ],
        "computed": [],
        "computed_columns": [
            _computed("age", "works"),
            _computed("computed", "works"),
            _computed("computed", "tags"),
            {"schema": "api", "name": "of_any", "row": None, "relation": None, "is_record": False},
        ],
        "row_columns": [{"schema": "hidden", "name": "things", "columns": ["k", "m", "n", "name"]}],
        "representations": [],
        "handlers": [],
        "roles": [],
        "extras": EXTRAS,
        "trust": TRUST,
    }
    return build({name: json.dumps(found) for name, found in answers.items()}, ("api",), 1)
