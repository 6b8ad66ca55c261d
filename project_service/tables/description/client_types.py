"""The types of a database's rows and functions, as text in the language of a client.

``typescript`` and ``python`` write what ``type_catalog`` has read: what postgrest-js and supabase-js take as
``Database``, and dataclasses. The types are those of the JSON that the table API sends: numbers of any size are
numbers, dates are strings, composite values are objects.
"""

from __future__ import annotations

import keyword
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import orjson
from attrs import evolve, frozen

from project_service.tables.description.type_catalog import (
    Column,
    Function,
    Relation,
    Shape,
    Type,
    TypeCatalog,
)
from project_service.tables.values import Key


@frozen
class _Language:
    """How a language writes each kind of type: ``plain`` those that need nothing more, ``row`` composite values."""

    plain: Mapping[Shape, str]
    number: Callable[[str], str]
    array: Callable[[str], str]
    enum: Callable[[TypeCatalog, Type], str]
    row: Callable[[TypeCatalog, Type], str]


def _written(catalog: TypeCatalog, oid: int, language: _Language, dimensions: int = 0) -> str:
    type_ = catalog.below(oid)
    shape = catalog.shape(type_)
    if type_.element is not None:
        item = _written(catalog, type_.element, language)
        for _ in range(max(catalog.dimensions(oid, dimensions), 1)):
            item = language.array(item)
        return item
    if shape == "enum":
        return language.enum(catalog, type_)
    if shape == "row":
        return language.row(catalog, type_)
    return language.number(type_.name) if shape == "number" else language.plain[shape]


# TypeScript: https://supabase.com/docs/reference/javascript/typescript-support has the shape of ``Database``.

_HEAD = """\
// Made by `project-service types typescript`. Make it again when the schema has changed.

export type Json = string | number | boolean | null | { [key: string]: Json | undefined } | Json[]

export type Database = {
"""
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_NOTHING = "{ [_ in never]: never }"
# The arguments of a computed column: it cannot be called. postgrest-js takes a column that has a function with an
# argument of this name, for a row of any of the relations, for one that "*" does not select.
_COMPUTED = '{ "": never }'


def _member(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _ts_enum(catalog: TypeCatalog, type_: Type) -> str:
    if type_.schema in catalog.schemas:
        return f'Database[{_quoted(type_.schema)}]["Enums"][{_quoted(type_.name)}]'
    return _ts_labels(type_)


def _ts_labels(type_: Type) -> str:
    return " | ".join(map(_quoted, type_.labels)) or "never"


def _ts_value(catalog: TypeCatalog, type_: Type) -> str:
    """A composite value. Those that are rows of relations have neither computed columns nor data representations, and
    what is not null in the relation may be null in them."""
    if type_.relation == "c" and type_.schema in catalog.schemas:
        return f'Database[{_quoted(type_.schema)}]["CompositeTypes"][{_quoted(type_.name)}]'
    return _ts_object(catalog, [evolve(one, nullable=True) for one in type_.fields])


def _ts_object(catalog: TypeCatalog, columns: Sequence[Column]) -> str:
    return f"{{ {'; '.join(_ts_column(catalog, one) for one in columns)} }}" if columns else _NOTHING


_TYPESCRIPT = _Language(
    {
        "boolean": "boolean",
        "text": "string",
        "json": "Json",
        "record": "Record<string, unknown>",
        "void": "undefined",
    },
    number=lambda name: "number",
    array=lambda item: f"({item})[]" if "|" in item else f"{item}[]",
    enum=_ts_enum,
    row=_ts_value,
)


def typescript(catalog: TypeCatalog) -> str:
    """The type ``Database``, with a member for each exposed schema."""
    lines = list(_HEAD.splitlines())
    for schema in catalog.schemas:
        lines.append(f"  {_member(schema)}: {{")
        for group, members in _groups(catalog, schema):
            lines += _block("    ", group, members)
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _groups(catalog: TypeCatalog, schema: str) -> Iterator[tuple[str, list[str]]]:
    mine = [one for one in catalog.relations if one.schema == schema]
    yield "Tables", [line for one in mine if not one.is_view for line in _ts_relation(catalog, one)]
    yield "Views", [line for one in mine if one.is_view for line in _ts_relation(catalog, one)]
    functions = sorted(_ts_functions(catalog, schema).items())
    yield "Functions", [line for name, calls in functions for line in _ts_overloads(name, calls)]
    own = sorted((one for one in catalog.types.values() if one.schema == schema), key=lambda one: one.name)
    yield "Enums", [f"{_member(one.name)}: {_ts_labels(one)}" for one in own if one.kind == "e"]
    yield (
        "CompositeTypes",
        [
            line
            for one in own
            if one.relation == "c"
            for line in _block("", _member(one.name), [_ts_column(catalog, column) for column in one.fields])
        ],
    )


def _block(indent: str, name: str, members: Sequence[str]) -> list[str]:
    if not members:
        return [f"{indent}{name}: {_NOTHING}"]
    return [f"{indent}{name}: {{", *(f"{indent}  {line}" for line in members), f"{indent}}}"]


def _ts_column(catalog: TypeCatalog, column: Column, mark: str = "", as_json: bool = False) -> str:
    """The member of an interface for a column. With ``as_json`` a data representation may make anything of it."""
    type_ = "Json" if as_json else _written(catalog, column.type, _TYPESCRIPT, column.dimensions)
    return f"{_member(column.name)}{mark}: {type_}{' | null' if column.nullable else ''}"


def _ts_relation(catalog: TypeCatalog, one: Relation) -> Iterator[str]:
    row = [_ts_column(catalog, column, as_json=catalog.sent_as_json(column)) for column in one.columns]
    row += [
        _ts_column(catalog, Column(name, computed.returns))
        for name, computed in _computed(catalog, one).items()
    ]
    body = _block("", "Row", row)
    if one.insertable:
        body += _block("", "Insert", [_ts_given(catalog, column, column.optional) for column in one.columns])
    if one.updatable:
        body += _block("", "Update", [_ts_given(catalog, column, True) for column in one.columns])
    body += _ts_relationships(catalog, one)
    if one.comment:
        yield f"/** {' '.join(one.comment.split()).replace('*/', '* /')} */"
    yield from _block("", _member(one.name), body)


def _computed(catalog: TypeCatalog, one: Relation) -> dict[str, Function]:
    """The computed columns that a request can name: a column of the same name would be taken instead."""
    columns = {column.name for column in one.columns}
    return {made.name: made for made in catalog.computed(one) if made.name not in columns}


def _ts_given(catalog: TypeCatalog, column: Column, optional: bool) -> str:
    if column.generated:
        return f"{_member(column.name)}?: never"
    return _ts_column(catalog, column, "?" if optional else "", catalog.given_as_json(column))


def _ts_relationships(catalog: TypeCatalog, one: Relation) -> list[str]:
    keys = [
        link
        for link in catalog.relationships.get(one.key, ())
        if link.cardinality in ("m2o", "o2o") and link.pairs and not link.is_parent
    ]
    lines = []
    for link in sorted(keys, key=lambda link: (link.constraint, link.target, link.pairs)):
        lines += [
            "  {",
            f"    foreignKeyName: {_quoted(link.constraint)}",
            f"    columns: [{', '.join(_quoted(ours) for ours, _ in link.pairs)}]",
            f"    isOneToOne: {str(link.cardinality == 'o2o').lower()}",
            f"    referencedRelation: {_quoted(link.target[1])}",
            f"    referencedColumns: [{', '.join(_quoted(theirs) for _, theirs in link.pairs)}]",
            "  },",
        ]
    return ["Relationships: [", *lines, "]"] if lines else ["Relationships: []"]


def _ts_functions(catalog: TypeCatalog, schema: str) -> dict[str, list[list[str]]]:
    """By name: the functions that requests can call, and those that take a row of a relation of this schema, because
    postgrest-js looks there for what can be selected of the relation."""
    calls: dict[str, list[list[str]]] = defaultdict(list)
    for name, overloads in catalog.called(schema).items():
        calls[name] += [_ts_call(catalog, schema, one, "*") for one in overloads]
    for one, relation in catalog.of_rows(schema):
        call = _ts_call(catalog, schema, one, relation.name)
        if call not in calls[one.name]:
            calls[one.name].append(call)
    return calls


def _ts_overloads(name: str, calls: Sequence[Sequence[str]]) -> Iterator[str]:
    if len(calls) == 1:
        first, *rest = calls[0]
        yield f"{_member(name)}: {first}"
        yield from rest
        return
    yield f"{_member(name)}:"
    for lines in calls:
        first, *rest = lines
        yield f"  | {first}"
        yield from (f"    {line}" for line in rest)


def _ts_call(catalog: TypeCatalog, schema: str, one: Function, origin: str) -> list[str]:
    """The lines of the type of a function, for ``rpc()``. ``origin`` is the relation whose row the function takes;
    "*" for others."""
    target = catalog.returned(one)
    embeds = target is not None and target.schema == schema
    result = _ts_result(catalog, one)
    # postgrest-js makes an array of the result again where the function is called.
    if one.is_set and result != "undefined" and not (embeds and one.to_one):
        result = _TYPESCRIPT.array(result)
    lines = ["{", f"  Args: {_ts_arguments(catalog, one)}", f"  Returns: {result}"]
    if target is not None and embeds:
        lines += [
            "  SetofOptions: {",
            f"    from: {_quoted(origin)}",
            f"    to: {_quoted(target.name)}",
            f"    isOneToOne: {str(one.to_one).lower()}",
            f"    isSetofReturn: {str(one.is_set).lower()}",
            "  }",
        ]
    return [*lines, "}"]


def _ts_arguments(catalog: TypeCatalog, one: Function) -> str:
    relation = catalog.row_argument(one)
    if relation is not None and (not one.arguments[0].name or one in catalog.computed(relation)):
        return _COMPUTED
    arguments = [
        _ts_column(catalog, Column(argument.name, argument.type, False), "" if argument.required else "?")
        for argument in one.arguments
    ]
    return f"{{ {'; '.join(arguments)} }}" if arguments else "Record<PropertyKey, never>"


def _ts_result(catalog: TypeCatalog, one: Function) -> str:
    """The result, or one of the results, of calling a function."""
    columns = catalog.result_columns(one)
    if columns:
        return _ts_object(catalog, columns)
    relation, type_ = catalog.returned(one), catalog.result_type(one)
    if relation is not None:
        group = "Views" if relation.is_view else "Tables"
        row = f'Database[{_quoted(relation.schema)}]["{group}"][{_quoted(relation.name)}]["Row"]'
        computed = " | ".join(map(_quoted, sorted(_computed(catalog, relation))))
        return f"Omit<{row}, {computed}>" if computed else row
    if type_.relation not in (None, "c"):
        return _ts_object(catalog, type_.fields)
    return _written(catalog, type_.oid, _TYPESCRIPT)


# Python: a dataclass for the rows of each relation, and what inserts and updates take.

_PYTHON_HEAD = '''\
"""Made by `project-service types python`. Make it again when the schema has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Never, NotRequired, TypedDict, TypeVar

T = TypeVar("T")


def row_of(kind: type[T], value: Mapping[str, Any]) -> T:
    """A row as an instance of one of the classes below: ``row_of(Notes, response.json()[0])``. The composite values
    in it are instances too."""
    made: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]
        given = value[one.metadata.get("column", one.name)]
        made[one.name] = _rows_of(one.metadata["kind"](), given) if "kind" in one.metadata else given
    return kind(**made)


def _rows_of(kind: type[Any], value: Any) -> Any:
    """Composite values, in arrays or not."""
    if isinstance(value, list):
        return [_rows_of(kind, one) for one in value]
    return None if value is None else row_of(kind, value)
'''
# The names that the annotations below use, which neither a class nor an attribute of one may have.
_PYTHON_NAMES = frozenset({"Any", "Literal", "Mapping", "Never", "NotRequired", "T", "TypedDict", "TypeVar"})

_BODY_NAMES = frozenset({"Any", "bool", "dataclass", "dict", "field", "float", "int", "list", "str"})


@frozen
class _Python:
    """The names of a module's classes: of a type's schema and name, without two that are alike."""

    catalog: TypeCatalog
    names: Mapping[Key, str]

    @property
    def sent(self) -> _Language:
        return _Language(
            {"boolean": "bool", "text": "str", "json": "Any", "record": "dict[str, Any]", "void": "None"},
            number=lambda name: "float" if name in ("float4", "float8", "numeric") else "int",
            array="list[{}]".format,
            enum=lambda catalog, type_: self.names.get(type_.key, "str"),
            row=lambda catalog, type_: self.names.get(type_.key, "dict[str, Any]"),
        )

    @property
    def given(self) -> _Language:
        """Of the bodies of requests, which have composite values as they are in JSON."""
        return evolve(self.sent, row=lambda catalog, type_: "Mapping[str, Any]")

    def type_of(self, column: Column, language: _Language, as_json: bool) -> str:
        if as_json:
            return language.plain["json"]
        written = _written(self.catalog, column.type, language, column.dimensions)
        return f"{written} | None" if column.nullable and written not in ("Any", "None") else written

    def class_of(self, oid: int) -> str | None:
        """The class of the composite values of a type, also of those in arrays of it."""
        type_ = self.catalog.below(oid)
        if type_.element is not None:
            return self.class_of(type_.element)
        return self.names.get(type_.key) if type_.relation is not None else None


def python(catalog: TypeCatalog) -> str:
    """A module with a dataclass for each relation and composite type, ``Literal`` for each enum, and ``TypedDict``
    for what inserts and updates take. Numeric values are floats, as ``json`` reads them."""
    exposed = [one for one in catalog.types.values() if one.schema in catalog.schemas]
    own = sorted(
        (one for one in exposed if one.kind == "e" or one.relation is not None),
        key=lambda one: (catalog.schemas.index(one.schema), one.name),
    )
    module = _Python(catalog, _class_names(own, catalog.schemas))
    blocks = [_PYTHON_HEAD.rstrip("\n")]
    for one in own:
        if one.kind == "e":
            labels = f"Literal[{', '.join(map(repr, one.labels))}]" if one.labels else "Never"
            blocks.append(f"{module.names[one.key]} = {labels}")
    # Partitions are no relations of the table API, but functions return their rows.
    blocks += [
        _dataclass(module, module.names[one.key], one.fields, None)
        for one in own
        if one.relation is not None and one.key not in catalog.by_key
    ]
    for relation in catalog.relations:
        name = module.names[relation.key]
        # Without computed columns, which a row has only if they were selected.
        blocks.append(_dataclass(module, name, relation.columns, relation.comment, rows=True))
        given = [column for column in relation.columns if not column.generated]
        if relation.insertable:
            blocks.append(
                _typed_dict(module, f"{name}Insert", given, {one.name for one in given if one.optional})
            )
        if relation.updatable:
            blocks.append(_typed_dict(module, f"{name}Update", given, {one.name for one in given}))
    return "\n\n\n".join(blocks) + "\n"


def _class_names(own: Iterable[Type], schemas: Sequence[str]) -> dict[Key, str]:
    """``order_lines`` is ``OrderLines``; in other schemas than the first one, with the schema's name before it."""
    names: dict[Key, str] = {}
    taken = {*_PYTHON_NAMES, "None", "True", "False"}
    for one in own:
        words = [one.name] if one.schema == schemas[0] else [one.schema, one.name]
        plain = "".join(
            word[:1].upper() + word[1:] for text in words for word in re.split(r"[^0-9A-Za-z]+", text) if word
        )
        name = plain if plain[:1].isalpha() else f"T{plain}"
        while taken & {name, f"{name}Insert", f"{name}Update"}:
            name += "_"
        # The names of what inserts and updates take are made of this one.
        taken |= {name, f"{name}Insert", f"{name}Update"}
        names[one.key] = name
    return names


def _attribute(name: str, taken: set[str]) -> str:
    plain = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
    if plain[0].isdigit() or keyword.iskeyword(plain) or plain.startswith("__"):
        plain = f"f_{plain.lstrip('_')}"
    while plain in taken:
        plain += "_"
    taken.add(plain)
    return plain


def _dataclass(
    module: _Python, name: str, columns: Sequence[Column], comment: str | None, rows: bool = False
) -> str:
    """The text of a dataclass with these columns. With ``rows`` they are those of a relation of the table API, with
    data representations."""
    lines = ["@dataclass(frozen=True)", f"class {name}:"]
    if comment:
        lines.append(f"    {_docstring(comment)}")
    written = [
        module.type_of(column, module.sent, rows and module.catalog.sent_as_json(column))
        for column in columns
    ]
    # The names that the class body itself uses must not be hidden by an attribute.
    taken = {*_BODY_NAMES, *(word for type_ in written for word in re.findall(r"\w+", type_))}
    for column, type_ in zip(columns, written, strict=True):
        attribute = _attribute(column.name, taken)
        metadata = [f'"column": {column.name!r}'] if attribute != column.name else []
        kind = module.class_of(column.type)
        # A data representation makes something else of a composite value.
        if kind is not None and kind in re.findall(r"\w+", type_):
            metadata.append(f'"kind": lambda: {kind}')
        line = f"    {attribute}: {type_}"
        if metadata:
            line += f" = field(metadata={{{', '.join(metadata)}}})"
        lines.append(line)
    return "\n".join(lines if columns or comment else [*lines, "    pass"])


def _docstring(text: str) -> str:
    plain = " ".join(text.split()).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{plain}{" " if plain.endswith(chr(34)) else ""}"""'


def _typed_dict(module: _Python, name: str, columns: Sequence[Column], optional: set[str]) -> str:
    """In the form of a call, because a column's name need not be one of Python."""
    if not columns:
        return f'{name} = TypedDict("{name}", {{}})'
    lines = [f"{name} = TypedDict(", f'    "{name}",', "    {"]
    for column in columns:
        type_ = module.type_of(column, module.given, module.catalog.given_as_json(column))
        written = f"NotRequired[{type_}]" if column.name in optional else type_
        lines.append(f"        {column.name!r}: {written!r},")
    return "\n".join([*lines, "    },", ")"])
