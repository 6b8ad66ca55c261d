"""The types of a database for clients: whatever its names are, the text is valid."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.tables.description.client_types import python, typescript
from project_service.tables.description.type_catalog import Column, Relation, Type, TypeCatalog

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
KEYWORDS = st.sampled_from(
    ["class", "field", "dataclass", "__init__", "1st", "T", "Any", "None", "a b", "a_b", 'q"', "\\"]
)
COLUMNS = st.lists(NAMES | KEYWORDS, max_size=6, unique=True)


def catalog(tables: dict[str, list[str]]) -> TypeCatalog:
    types = {23: Type(23, "pg_catalog", "int4", "b")}
    relations = []
    for number, (name, columns) in enumerate(tables.items()):
        types[1000 + number] = Type(1000 + number, "public", name, "c", relation="r")
        made = tuple(Column(column, 23, nullable=False) for column in columns)
        relations.append(Relation("public", name, False, True, True, made, comment=name))
    return TypeCatalog(("public",), types, tuple(relations), ())


class Modules(TestCase):
    @given(st.dictionaries(NAMES | KEYWORDS, COLUMNS, max_size=5))
    def test_any_names_give_a_module_that_reads_rows_back(self, tables: dict[str, list[str]]) -> None:
        module: Any = ModuleType("made_of_names")
        # Dataclasses look for the module that they are defined in.
        self.patch(sys, "modules", {**sys.modules, "made_of_names": module})
        exec(compile(python(catalog(tables)), "made", "exec", dont_inherit=True), module.__dict__)
        classes = [
            one for one in vars(module).values() if isinstance(one, type) and dataclasses.is_dataclass(one)
        ]
        self.assertEqual(len(classes), len(tables))
        for kind, columns in zip(classes, tables.values(), strict=True):
            row = {column: position for position, column in enumerate(columns)}
            self.assertEqual(list(dataclasses.asdict(module.row_of(kind, row)).values()), list(row.values()))

    def test_names_that_are_no_identifiers_are_quoted_in_typescript(self) -> None:
        text = typescript(catalog({'my "own"': ["first name", "class"]}))
        self.assertIn(
            '      "my \\"own\\"": {\n        Row: {\n          "first name": number\n          class: number\n',
            text,
        )
