"""Schemas made at random: names that languages have uses for, and types within types."""

from __future__ import annotations

import random

_NAMES = (
    *(
        "list",
        "int",
        "str",
        "class",
        "None",
        "type",
        "field",
        "Any",
        "Insert",
        "Row",
        "constructor",
        "__proto__",
    ),
    *(
        "a b",
        "a-b",
        'q"q',
        "1st",
        "\N{LATIN SMALL LETTER E WITH ACUTE}",
        "'",
        "\\",
        "$",
        "_",
        "__init__",
        "T",
        "dict",
    ),
    *("self", "row of", "Literal"),
)
_SIMPLE = {
    **{
        "int": "1",
        "int8": "9007199254740993",
        "numeric": "1.50",
        "bool": "true",
        "text": "'a'",
        "oid": "'3'",
    },
    **{
        "jsonb": """'{"a": {}}'""",
        "json": "'[1]'",
        "date": "'2026-01-01'",
        "bytea": "'a'",
        "interval": "'1 day'",
    },
    **{"int4range": "'[1,2)'", "uuid": "gen_random_uuid()", "timestamptz": "now()", "varchar(3)": "'abc'"},
}


class RandomSchema:
    """Enums, composite types, domains and tables; ``sql`` makes them. Each of ``tables`` has a row, and each of
    ``functions`` returns the rows of one."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._types = dict(_SIMPLE)
        self._statements: list[str] = []
        self.tables: list[str] = []
        self.functions: list[str] = []
        self.sql = self._made()

    def _names(self, count: int) -> list[str]:
        return self._random.sample(_NAMES, count)

    def _type(self) -> tuple[str, str]:
        """A type, and a value of it."""
        name, value = self._random.choice(list(self._types.items()))
        # The types of TypeScript say that arrays have no nulls.
        dimensions = 0 if "null" in value else self._random.choice((0, 0, 0, 1, 2))
        value = f"{'array[' * dimensions}{value}::{name}{']' * dimensions}"
        return name + "[]" * dimensions, value

    def _columns(self, count: int) -> list[tuple[str, str, str]]:
        return [(quoted(name), *self._type()) for name in self._names(count)]

    def _made(self) -> str:
        for number in range(8):
            name = quoted(f"{self._random.choice(_NAMES)} {number}t")
            kind = self._random.choice(("enum", "composite", "composite", "domain"))
            if kind == "enum":
                labels = [literal(label) for label in self._names(self._random.randrange(3))]
                self._statements.append(f"create type {name} as enum ({', '.join(labels)})")
                self._types[name] = labels[0] if labels else "null"
            elif kind == "composite":
                columns = self._columns(self._random.randrange(1, 4))
                self._statements.append(
                    f"create type {name} as ({', '.join(f'{a} {b}' for a, b, _ in columns)})"
                )
                self._types[name] = f"row({', '.join(value for *_, value in columns)})"
            else:
                type_, value = self._type()
                self._statements.append(f"create domain {name} as {type_}")
                self._types[name] = value
        for number in range(4):
            self._table(f"{self._random.choice(_NAMES)} {number}")
        return ";\n".join([*self._statements, "grant all on all tables in schema public to anon"])

    def _table(self, name: str) -> None:
        columns = self._columns(6)
        nullable = [
            "" if "null" in value or self._random.random() < 0.5 else " not null" for *_, value in columns
        ]
        declared = ", ".join(f"{a} {b}{c}" for (a, b, _), c in zip(columns, nullable, strict=True))
        table = quoted(name)
        values = ", ".join(value for *_, value in columns)
        function = quoted(f"f {name}")
        result = self._random.choice((f"setof {table}", table, f"setof {table} rows 1"))
        self._statements += [
            f"create table {table} ({declared})",
            f"insert into {table} values ({values})",
            f"create function {function}() returns {result} language sql stable as $$ select * from {table} $$",
        ]
        self._types[table] = f"row({values})"
        self.tables.append(name)
        self.functions.append(f"f {name}")


def quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def literal(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))
