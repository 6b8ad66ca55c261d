"""The types of a database's rows and functions, as text in the language of a client.

``TYPES_SQL`` reads everything in one statement, ``catalog_of`` makes values of the result, and ``typescript`` and
``python`` write them: what postgrest-js and supabase-js take as ``Database``, and dataclasses. The types are those of
the JSON that the table API sends: numbers of any size are numbers, dates are strings, composite values are objects.
"""

from __future__ import annotations

import keyword
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from attrs import field, frozen

from project_service.tables.values import Key, Relationship

# %(schemas)s are the exposed schemas. A type is written as its oid, and all types are in "types".
TYPES_SQL = """
select json_build_object(
  'types', (select json_agg(json_build_object(
      'oid', t.oid::int8, 'schema', n.nspname, 'name', t.typname, 'kind', t.typtype,
      'element', case when t.typcategory = 'A' then t.typelem::int8 end,
      'base', case when t.typtype = 'd' then t.typbasetype::int8 end,
      'relation', c.relkind,
      'labels', (select json_agg(e.enumlabel order by e.enumsortorder) from pg_enum e where e.enumtypid = t.oid),
      'fields', case when c.relkind = 'c' then (
        select coalesce(json_agg(json_build_array(a.attname, a.atttypid::int8) order by a.attnum), '[]')
        from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) end))
    from pg_type t join pg_namespace n on n.oid = t.typnamespace left join pg_class c on c.oid = t.typrelid),
  'relations', (select coalesce(json_agg(json_build_object(
      'schema', n.nspname, 'name', c.relname, 'is_view', c.relkind in ('v', 'm'),
      'writable', case when c.relkind in ('r', 'p') then 28 else pg_relation_is_updatable(c.oid, true) end,
      'comment', obj_description(c.oid, 'pg_class'),
      'columns', (select coalesce(json_agg(json_build_object(
          'name', a.attname, 'type', a.atttypid::int8,
          'nullable', not (a.attnotnull or t.typnotnull),
          'optional', a.atthasdef or a.attidentity <> '' or not (a.attnotnull or t.typnotnull)
            or t.typdefault is not null or c.relkind in ('v', 'm'),
          'generated', a.attgenerated <> '' or a.attidentity = 'a',
          'comment', col_description(c.oid, a.attnum)) order by a.attnum), '[]')
        from pg_attribute a join pg_type t on t.oid = a.atttypid
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped)) order by n.nspname, c.relname), '[]')
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'v', 'm', 'f', 'p') and not c.relispartition and n.nspname = any(%(schemas)s)),
  'functions', (select coalesce(json_agg(json_build_object(
      'schema', n.nspname, 'name', p.proname, 'returns', p.prorettype::int8, 'is_set', p.proretset,
      'arguments', (select coalesce(json_agg(json_build_object(
          'name', coalesce(p.proargnames[i], ''), 'mode', coalesce(p.proargmodes[i]::text, 'i'),
          'type', coalesce(p.proallargtypes[i], p.proargtypes[i - 1])::int8,
          'position', (select count(*) from generate_series(1, i) j
                       where coalesce(p.proargmodes[j]::text, 'i') in ('i', 'b', 'v'))) order by i), '[]')
        from generate_series(1, coalesce(array_length(p.proallargtypes, 1), p.pronargs)) i),
      'required', p.pronargs - p.pronargdefaults) order by n.nspname, p.proname, p.pronargs, p.oid), '[]')
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where p.prokind = 'f' and n.nspname = any(%(schemas)s)
      and p.prorettype not in ('trigger'::regtype, 'event_trigger'::regtype)
      and not exists (select from pg_depend d where d.objid = p.oid and d.classid = 'pg_proc'::regclass
                      and d.deptype = 'e'))
)::text
"""

# pg_relation_is_updatable: bit 2 is UPDATE, 3 INSERT, 4 DELETE.
_UPDATE, _INSERT = 4, 8


@frozen
class Type:
    """``element`` is the oid of an array's elements, ``base`` that of a domain's type. ``relation`` is the kind of
    the relation whose row it is (``pg_class.relkind``): ``c`` for a composite type."""

    oid: int
    schema: str
    name: str
    kind: str
    element: int | None = None
    base: int | None = None
    relation: str | None = None
    labels: tuple[str, ...] = ()
    fields: tuple[tuple[str, int], ...] = ()


@frozen
class Column:
    """``optional``: an insert may leave it out. ``generated``: no insert or update may set it."""

    name: str
    type: int
    nullable: bool = True
    optional: bool = True
    generated: bool = False
    comment: str | None = None


@frozen
class Relation:
    schema: str
    name: str
    is_view: bool
    insertable: bool
    updatable: bool
    columns: tuple[Column, ...]
    comment: str | None = None


@frozen
class Argument:
    name: str
    type: int
    required: bool


@frozen
class Function:
    """``columns`` are its OUT arguments or the columns of ``returns table``."""

    schema: str
    name: str
    arguments: tuple[Argument, ...]
    returns: int
    is_set: bool
    columns: tuple[tuple[str, int], ...] = ()


@frozen
class TypeCatalog:
    """What ``TYPES_SQL`` has read. ``schemas`` are the exposed ones, in their order."""

    schemas: tuple[str, ...]
    types: Mapping[int, Type] = field(repr=False)
    relations: tuple[Relation, ...]
    functions: tuple[Function, ...]
    relationships: Mapping[Key, Sequence[Relationship]] = field(factory=dict, repr=False)

    def computed(self, relation: Relation) -> Iterator[Function]:
        """The computed columns of ``relation``: functions whose one argument is a row of it, and whose result is one
        value but no row of a table."""
        for one in self.functions:
            if len(one.arguments) != 1 or one.is_set or one.columns:
                continue
            row, result = self.types[one.arguments[0].type], self.types[one.returns]
            takes_row = row.relation is not None and (row.schema, row.name) == (
                relation.schema,
                relation.name,
            )
            if takes_row and result.relation in (None, "c") and result.name != "void":
                yield one

    def called(self, schema: str) -> Mapping[str, list[Function]]:
        """The functions of ``schema`` that requests can call, by name: those whose arguments all have names, or that
        have a single one without."""
        by_name: dict[str, list[Function]] = defaultdict(list)
        for one in self.functions:
            named = all(argument.name for argument in one.arguments)
            takes_row = any(
                self.types[argument.type].relation not in (None, "c") for argument in one.arguments
            )
            if one.schema == schema and (named or len(one.arguments) == 1) and not takes_row:
                by_name[one.name].append(one)
        return by_name


def catalog_of(
    text: str, schemas: Sequence[str], relationships: Mapping[Key, Sequence[Relationship]]
) -> TypeCatalog:
    """``text`` is the result of ``TYPES_SQL``."""
    read = orjson.loads(text)
    types = {one["oid"]: _type(one) for one in read["types"]}
    relations = tuple(_relation(one) for one in read["relations"])
    functions = tuple(_function(one) for one in read["functions"])
    return TypeCatalog(tuple(schemas), types, relations, functions, relationships)


def _type(one: Mapping[str, Any]) -> Type:
    fields = tuple((name, type_) for name, type_ in one["fields"] or ())
    return Type(
        one["oid"],
        one["schema"],
        one["name"],
        one["kind"],
        one["element"],
        one["base"],
        one["relation"],
        tuple(one["labels"] or ()),
        fields,
    )


def _relation(one: Mapping[str, Any]) -> Relation:
    return Relation(
        one["schema"],
        one["name"],
        one["is_view"],
        bool(one["writable"] & _INSERT),
        bool(one["writable"] & _UPDATE),
        tuple(Column(**column) for column in one["columns"]),
        one["comment"],
    )


def _function(one: Mapping[str, Any]) -> Function:
    taken = tuple(
        Argument(argument["name"], argument["type"], argument["position"] <= one["required"])
        for argument in one["arguments"]
        if argument["mode"] in ("i", "b", "v")
    )
    columns = tuple(
        (argument["name"], argument["type"])
        for argument in one["arguments"]
        if argument["mode"] in ("o", "b", "t")
    )
    return Function(one["schema"], one["name"], taken, one["returns"], one["is_set"], columns)


# PostgreSQL's own types that are no strings in JSON, by name.
_NUMBERS = frozenset({"int2", "int4", "int8", "float4", "float8", "numeric", "oid"})
_JSON = frozenset({"json", "jsonb"})


@frozen
class _Language:
    """How a language writes each kind of type. ``named`` writes a reference to a type of the project's own."""

    number: Callable[[str], str]
    boolean: str
    text: str
    json: str
    record: str
    void: str
    array: Callable[[str], str]
    named: Callable[[str, Type], str]


def _written(catalog: TypeCatalog, oid: int, language: _Language) -> str:
    type_ = catalog.types[oid]
    if type_.base is not None:
        return _written(catalog, type_.base, language)
    if type_.element is not None:
        return language.array(_written(catalog, type_.element, language))
    if type_.kind == "e" or type_.relation is not None:
        return _own(catalog, type_, language)
    if type_.name in _NUMBERS:
        return language.number(type_.name)
    if type_.name in _JSON or (type_.kind == "p" and type_.name.startswith("any")):
        return language.json
    others = {"bool": language.boolean, "record": language.record, "void": language.void}
    return others.get(type_.name, language.text)


def _own(catalog: TypeCatalog, type_: Type, language: _Language) -> str:
    """A reference to an enum or a row type, as far as its schema is exposed."""
    if type_.schema not in catalog.schemas:
        return language.text if type_.kind == "e" else language.record
    kind = "e" if type_.relation is None else type_.relation
    groups = {"e": "Enums", "c": "CompositeTypes", "v": "Views", "m": "Views"}
    return language.named(groups.get(kind, "Tables"), type_)


# TypeScript: https://supabase.com/docs/reference/javascript/typescript-support has the shape of ``Database``.

_HEAD = """\
// Made by `project-service types typescript`. Make it again when the schema has changed.

export type Json = string | number | boolean | null | { [key: string]: Json | undefined } | Json[]

export type Database = {
"""
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_NOTHING = "{ [_ in never]: never }"


def _member(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _named_in_typescript(group: str, type_: Type) -> str:
    row = '["Row"]' if group in ("Tables", "Views") else ""
    return f'Database[{_quoted(type_.schema)}]["{group}"][{_quoted(type_.name)}]{row}'


_TYPESCRIPT = _Language(
    number=lambda name: "number",
    boolean="boolean",
    text="string",
    json="Json",
    record="Record<string, unknown>",
    void="undefined",
    array=lambda item: f"({item})[]" if "|" in item else f"{item}[]",
    named=_named_in_typescript,
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
    yield (
        "Functions",
        [
            line
            for name, overloads in sorted(catalog.called(schema).items())
            for line in _ts_function(catalog, name, overloads)
        ],
    )
    own = sorted((one for one in catalog.types.values() if one.schema == schema), key=lambda one: one.name)
    yield (
        "Enums",
        [
            f"{_member(one.name)}: {' | '.join(map(_quoted, one.labels)) or 'never'}"
            for one in own
            if one.kind == "e"
        ],
    )
    yield (
        "CompositeTypes",
        [
            line
            for one in own
            if one.relation == "c"
            for line in _block(
                "", _member(one.name), [_ts_column(catalog, name, type_) for name, type_ in one.fields]
            )
        ],
    )


def _block(indent: str, name: str, members: Sequence[str]) -> list[str]:
    if not members:
        return [f"{indent}{name}: {_NOTHING}"]
    return [f"{indent}{name}: {{", *(f"{indent}  {line}" for line in members), f"{indent}}}"]


def _ts_column(catalog: TypeCatalog, name: str, type_: int, nullable: bool = True, mark: str = "") -> str:
    return f"{_member(name)}{mark}: {_written(catalog, type_, _TYPESCRIPT)}{' | null' if nullable else ''}"


def _ts_relation(catalog: TypeCatalog, one: Relation) -> Iterator[str]:
    row = [_ts_column(catalog, column.name, column.type, column.nullable) for column in one.columns]
    row += [_ts_column(catalog, computed.name, computed.returns) for computed in catalog.computed(one)]
    body = _block("", "Row", row)
    if one.insertable:
        body += _block("", "Insert", [_ts_given(catalog, column, column.optional) for column in one.columns])
    if one.updatable:
        body += _block("", "Update", [_ts_given(catalog, column, True) for column in one.columns])
    body += _ts_relationships(catalog, one)
    if one.comment:
        yield f"/** {' '.join(one.comment.split()).replace('*/', '* /')} */"
    yield from _block("", _member(one.name), body)


def _ts_given(catalog: TypeCatalog, column: Column, optional: bool) -> str:
    if column.generated:
        return f"{_member(column.name)}?: never"
    return _ts_column(catalog, column.name, column.type, column.nullable, "?" if optional else "")


def _ts_relationships(catalog: TypeCatalog, one: Relation) -> list[str]:
    keys = [
        link
        for link in catalog.relationships.get((one.schema, one.name), ())
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


def _ts_function(catalog: TypeCatalog, name: str, overloads: Sequence[Function]) -> Iterator[str]:
    made = [_ts_call(catalog, one) for one in overloads]
    if len(made) == 1:
        first, *rest = made[0]
        yield f"{_member(name)}: {first}"
        yield from rest
        return
    yield f"{_member(name)}:"
    for lines in made:
        first, *rest = lines
        yield f"  | {first}"
        yield from (f"    {line}" for line in rest)


def _ts_call(catalog: TypeCatalog, one: Function) -> list[str]:
    arguments = [
        _ts_column(catalog, argument.name, argument.type, False, "" if argument.required else "?")
        for argument in one.arguments
    ]
    given = f"{{ {'; '.join(arguments)} }}" if arguments else "Record<PropertyKey, never>"
    if one.columns and (one.is_set or len(one.columns) > 1):
        result = f"{{ {'; '.join(_ts_column(catalog, name, type_) for name, type_ in one.columns)} }}"
    else:
        result = _written(catalog, one.returns, _TYPESCRIPT)
    if one.is_set:
        result = _TYPESCRIPT.array(result)
    return ["{", f"  Args: {given}", f"  Returns: {result}", "}"]


# Python: a dataclass for the rows of each relation, and what inserts and updates take.

_PYTHON_HEAD = '''\
"""Made by `project-service types python`. Make it again when the schema has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NotRequired, TypedDict, TypeVar

T = TypeVar("T")


def row_of(kind: type[T], value: Mapping[str, Any]) -> T:
    """A row as an instance of one of the classes below: ``row_of(Notes, response.json()[0])``."""
    names = {one.name: one.metadata.get("column", one.name) for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value[column] for name, column in names.items()})
'''


@frozen
class _Python:
    """The names of a module's classes: of a type's schema and name, without two that are alike."""

    catalog: TypeCatalog
    names: Mapping[Key, str]

    @property
    def language(self) -> _Language:
        return _Language(
            number=lambda name: "float" if name in ("float4", "float8", "numeric") else "int",
            boolean="bool",
            text="str",
            json="Any",
            record="dict[str, Any]",
            void="None",
            array="list[{}]".format,
            named=lambda group, type_: self.names[(type_.schema, type_.name)],
        )

    def type_of(self, oid: int, nullable: bool) -> str:
        written = _written(self.catalog, oid, self.language)
        return f"{written} | None" if nullable and written not in ("Any", "None") else written


def python(catalog: TypeCatalog) -> str:
    """A module with a dataclass for each relation and composite type, ``Literal`` for each enum, and ``TypedDict``
    for what inserts and updates take. Numeric values are floats, as ``json`` reads them."""
    exposed = [one for one in catalog.types.values() if one.schema in catalog.schemas]
    own = [one for one in exposed if one.kind == "e" or one.relation is not None]
    module = _Python(catalog, _class_names(own, catalog.schemas))
    blocks = [_PYTHON_HEAD.rstrip("\n")]
    for one in sorted(own, key=lambda one: (catalog.schemas.index(one.schema), one.name)):
        if one.kind == "e":
            labels = ", ".join(map(repr, one.labels))
            blocks.append(f"{module.names[(one.schema, one.name)]} = Literal[{labels}]")
    for one in sorted(own, key=lambda one: (catalog.schemas.index(one.schema), one.name)):
        if one.relation == "c":
            columns = [Column(name, type_) for name, type_ in one.fields]
            blocks.append(_dataclass(module, module.names[(one.schema, one.name)], columns, None))
    for relation in catalog.relations:
        name = module.names[(relation.schema, relation.name)]
        # Without computed columns, which a row has only if they were selected.
        blocks.append(_dataclass(module, name, relation.columns, relation.comment))
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
    taken = {"Any", "Literal", "Mapping", "NotRequired", "T", "TypedDict", "TypeVar", "None", "True", "False"}
    for one in sorted(own, key=lambda one: (schemas.index(one.schema), one.name)):
        words = [one.name] if one.schema == schemas[0] else [one.schema, one.name]
        plain = "".join(
            word[:1].upper() + word[1:] for text in words for word in re.split(r"[^0-9A-Za-z]+", text) if word
        )
        name = plain if plain[:1].isalpha() else f"T{plain}"
        while name in taken:
            name += "_"
        # The names of what inserts and updates take are made of this one.
        taken |= {name, f"{name}Insert", f"{name}Update"}
        names[(one.schema, one.name)] = name
    return names


def _attribute(name: str, taken: set[str]) -> str:
    plain = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
    if plain[0].isdigit() or keyword.iskeyword(plain) or plain.startswith("__"):
        plain = f"f_{plain.lstrip('_')}"
    while plain in taken:
        plain += "_"
    taken.add(plain)
    return plain


def _dataclass(module: _Python, name: str, columns: Sequence[Column], comment: str | None) -> str:
    lines = ["@dataclass(frozen=True)", f"class {name}:"]
    if comment:
        lines.append(f"    {_docstring(comment)}")
    # The names that the class body itself uses must not be hidden by an attribute.
    taken: set[str] = {"field", "dataclass"}
    for column in columns:
        attribute = _attribute(column.name, taken)
        line = f"    {attribute}: {module.type_of(column.type, column.nullable)}"
        if attribute != column.name:
            line += f' = field(metadata={{"column": {column.name!r}}})'
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
        type_ = module.type_of(column.type, column.nullable)
        written = f"NotRequired[{type_}]" if column.name in optional else type_
        lines.append(f"        {column.name!r}: {written!r},")
    return "\n".join([*lines, "    },", ")"])
