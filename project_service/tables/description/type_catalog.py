"""The types of a database's rows and functions, read for the descriptions that clients get of them.

``TYPES_SQL`` reads everything in one statement, and ``catalog_of`` makes a ``TypeCatalog`` of the result. What its
types are in JSON, as the table API sends and takes it, is decided in ``TypeCatalog.shape``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import orjson
from attrs import evolve, field, frozen

from project_service.tables.schema_cache.build import Origin
from project_service.tables.values import WHOLE_TYPES, Key, Relationship

# %(schemas)s are the exposed schemas, %(search_path)s those that computed columns and relationships are found in. A
# type is written as its oid, and all types are in "types".
TYPES_SQL = """
with attributes as (
  select a.attrelid, json_agg(json_build_object(
      'name', a.attname, 'type', a.atttypid::int8, 'number', a.attnum, 'dimensions', a.attndims,
      'nullable', not (a.attnotnull or t.typnotnull),
      'optional', a.atthasdef or a.attidentity <> '' or not (a.attnotnull or t.typnotnull)
        or t.typdefault is not null or c.relkind in ('v', 'm'),
      'generated', a.attgenerated <> '' or a.attidentity = 'a'
        or c.relkind = 'v' and pg_relation_is_updatable(c.oid, true) & 12 <> 0
          and not pg_column_is_updatable(c.oid, a.attnum, true),
      'comment', col_description(c.oid, a.attnum)) order by a.attnum) as columns
  from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_type t on t.oid = a.atttypid
  where a.attnum > 0 and not a.attisdropped and c.relkind in ('r', 'v', 'm', 'f', 'p', 'c')
    and c.relnamespace <> all(array['pg_catalog'::regnamespace, 'information_schema'::regnamespace])
  group by a.attrelid
)
select json_build_object(
  'types', (select json_agg(json_build_object(
      'oid', t.oid::int8, 'schema', n.nspname, 'name', t.typname, 'kind', t.typtype,
      'element', case when t.typlen = -1 and t.typcategory = 'A' then nullif(t.typelem::int8, 0) end,
      'base', case when t.typtype = 'd' then t.typbasetype::int8 end, 'dimensions', t.typndims,
      'relation', c.relkind, 'relation_oid', c.oid::int8,
      'labels', (select json_agg(e.enumlabel order by e.enumsortorder) from pg_enum e where e.enumtypid = t.oid),
      'to_json', exists (select from pg_cast k where k.castsource = t.oid and k.casttarget = 'json'::regtype
        and k.castmethod = 'f' and (t.typtype <> 'd' or k.castcontext = 'i')),
      'from_json', t.typtype = 'd' and exists (select from pg_cast k where k.castsource = 'json'::regtype
        and k.casttarget = t.oid and k.castmethod = 'f' and k.castcontext = 'i'),
      'fields', a.columns))
    from pg_type t join pg_namespace n on n.oid = t.typnamespace left join pg_class c on c.oid = t.typrelid
    left join attributes a on a.attrelid = c.oid),
  'relations', (select coalesce(json_agg(json_build_object(
      'schema', n.nspname, 'name', c.relname, 'oid', c.oid::int8, 'is_view', c.relkind in ('v', 'm'),
      'writable', case when c.relkind in ('r', 'p') then 28 else pg_relation_is_updatable(c.oid, true) end,
      'comment', obj_description(c.oid, 'pg_class'), 'columns', a.columns) order by n.nspname, c.relname), '[]')
    from pg_class c join pg_namespace n on n.oid = c.relnamespace left join attributes a on a.attrelid = c.oid
    where c.relkind in ('r', 'v', 'm', 'f', 'p') and not c.relispartition and n.nspname = any(%(schemas)s)),
  'functions', (select coalesce(json_agg(json_build_object(
      'schema', n.nspname, 'name', p.proname, 'returns', p.prorettype::int8, 'is_set', p.proretset,
      'to_one', not p.proretset or p.prorows = 1,
      'arguments', (select coalesce(json_agg(json_build_object(
          'name', coalesce(p.proargnames[i], ''), 'mode', coalesce(p.proargmodes[i]::text, 'i'),
          'type', coalesce(p.proallargtypes[i], p.proargtypes[i - 1])::int8,
          'position', (select count(*) from generate_series(1, i) j
                       where coalesce(p.proargmodes[j]::text, 'i') in ('i', 'b', 'v'))) order by i), '[]')
        from generate_series(1, coalesce(array_length(p.proallargtypes, 1), p.pronargs)) i),
      'required', p.pronargs - p.pronargdefaults)
      order by n.nspname, p.proname, p.pronargs, pg_get_function_identity_arguments(p.oid) collate "C"), '[]')
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where p.prokind = 'f' and n.nspname = any(%(search_path)s)
      and p.prorettype not in ('trigger'::regtype, 'event_trigger'::regtype)
      and not exists (select from pg_depend d where d.objid = p.oid and d.classid = 'pg_proc'::regclass
                      and d.deptype = 'e'))
)::text
"""

# pg_relation_is_updatable: bit 2 is UPDATE, 3 INSERT, 4 DELETE.
_UPDATE, _INSERT = 4, 8


@frozen
class Column:
    """``optional``: an insert may leave it out. ``generated``: no insert or update may set it. ``dimensions``: how
    many an array was declared with, 0 if that is not known."""

    name: str
    type: int
    nullable: bool = True
    optional: bool = True
    generated: bool = False
    comment: str | None = None
    dimensions: int = 0


@frozen
class Type:
    """``element`` is the oid of an array's elements, ``base`` that of a domain's type. ``relation`` is the kind of
    the relation whose row it is (``pg_class.relkind``): ``c`` for a composite type. ``to_json`` and ``from_json`` say
    that values become JSON by a cast of the database's own, and that JSON becomes values so. ``dimensions``: how
    many a domain over arrays was declared with, 0 if that is not known."""

    oid: int
    schema: str
    name: str
    kind: str
    element: int | None = None
    base: int | None = None
    relation: str | None = None
    labels: tuple[str, ...] = ()
    fields: tuple[Column, ...] = ()
    to_json: bool = False
    from_json: bool = False
    dimensions: int = 0

    @property
    def key(self) -> Key:
        return (self.schema, self.name)


@frozen
class Relation:
    schema: str
    name: str
    is_view: bool
    insertable: bool
    updatable: bool
    columns: tuple[Column, ...]
    comment: str | None = None

    @property
    def key(self) -> Key:
        return (self.schema, self.name)


@frozen
class Argument:
    name: str
    type: int
    required: bool


@frozen
class Function:
    """``columns`` are its OUT arguments or the columns of ``returns table``. ``to_one``: as a computed relationship
    it leads to one row."""

    schema: str
    name: str
    arguments: tuple[Argument, ...]
    returns: int
    is_set: bool
    columns: tuple[Column, ...] = ()
    to_one: bool = False


Shape = Literal["json", "array", "enum", "row", "number", "boolean", "record", "void", "text"]
# PostgreSQL's own types that are no strings in JSON.
_SHAPES: Mapping[str, Shape] = {
    **dict.fromkeys(("int2", "int4", "int8", "float4", "float8", "numeric"), "number"),
    **dict.fromkeys(("json", "jsonb"), "json"),
    "bool": "boolean",
    "record": "record",
    "void": "void",
}


@frozen
class TypeCatalog:
    """What ``TYPES_SQL`` has read. ``schemas`` are the exposed ones, in their order."""

    schemas: tuple[str, ...]
    types: Mapping[int, Type] = field(repr=False)
    relations: tuple[Relation, ...]
    functions: tuple[Function, ...]
    relationships: Mapping[Key, Sequence[Relationship]] = field(factory=dict, repr=False)
    by_key: Mapping[Key, Relation] = field(init=False, repr=False)

    @by_key.default
    def _by_key(self) -> dict[Key, Relation]:
        return {one.key: one for one in self.relations}

    def below(self, oid: int) -> Type:
        """The type itself; for a domain the type below it."""
        type_ = self.types[oid]
        return type_ if type_.base is None else self.below(type_.base)

    def dimensions(self, oid: int, declared: int = 0) -> int:
        """How many dimensions an array has by its column, where that has ``declared`` any, or by its domain."""
        type_ = self.types[oid]
        if declared or type_.dimensions or type_.base is None:
            return declared or type_.dimensions
        return self.dimensions(type_.base)

    def shape(self, type_: Type) -> Shape:
        """What values of a type that is no domain are in JSON. PostgreSQL looks at arrays and rows before casts."""
        if type_.element is not None:
            return "array"
        if type_.relation is not None:
            return "row"
        # A polymorphic type may be anything.
        if type_.to_json or (type_.kind == "p" and type_.name.startswith("any")):
            return "json"
        if type_.kind == "e":
            return "enum"
        return _SHAPES.get(type_.name, "text") if type_.schema == "pg_catalog" else "text"

    def sent_as_json(self, column: Column) -> bool:
        """Whether a relation's column is shown by a data representation. Below it, in composite values and arrays,
        PostgreSQL shows the values of domains as those of the types below them."""
        type_ = self.types[column.type]
        return type_.base is not None and type_.to_json

    def given_as_json(self, column: Column) -> bool:
        """Whether a data representation reads a relation's column from the body of a request."""
        return self.types[column.type].from_json

    def row_argument(self, one: Function) -> Relation | None:
        """The relation whose row is the only argument of ``one``: that makes it a computed column or relationship."""
        if len(one.arguments) != 1:
            return None
        type_ = self.types[one.arguments[0].type]
        return self.by_key.get(type_.key) if type_.relation is not None else None

    def returned(self, one: Function) -> Relation | None:
        """The relation whose rows ``one`` returns."""
        type_ = self.below(one.returns)
        return self.by_key.get(type_.key) if type_.relation is not None else None

    def result_type(self, one: Function) -> Type:
        return self.below(one.returns)

    def result_columns(self, one: Function) -> tuple[Column, ...]:
        """The columns of the result that are its own and not those of a row type. A single one that is composite is
        not shown itself, but the columns of its type."""
        expands = len(one.columns) == 1 and self.below(one.columns[0].type).relation is not None
        return () if expands else one.columns

    def computed(self, relation: Relation) -> Iterator[Function]:
        """The computed columns of ``relation``: functions whose one argument is a row of it, and whose result is one
        value but no row of a table."""
        for one in self.functions:
            if self.row_argument(one) is relation and not one.is_set and not one.columns:
                result = self.types[one.returns]
                if result.relation in (None, "c") and result.name != "void":
                    yield one

    def of_rows(self, schema: str) -> Iterator[tuple[Function, Relation]]:
        """The computed columns and relationships of the relations of ``schema``, with these relations."""
        for one in self.functions:
            relation = self.row_argument(one)
            if relation is not None and relation.schema == schema:
                yield one, relation

    def called(self, schema: str) -> Mapping[str, list[Function]]:
        """The functions of ``schema`` that requests can call, by name: those whose arguments all have names, or that
        take the whole body as their single one. Computed columns and relationships are left out."""
        by_name: dict[str, list[Function]] = defaultdict(list)
        for one in self.functions:
            named = all(argument.name for argument in one.arguments)
            whole = len(one.arguments) == 1 and self.types[one.arguments[0].type].name in WHOLE_TYPES
            if one.schema == schema and (named or whole) and self.row_argument(one) is None:
                by_name[one.name].append(one)
        return by_name


def catalog_of(
    text: str,
    schemas: Sequence[str],
    relationships: Mapping[Key, Sequence[Relationship]],
    bases: Mapping[int, Mapping[Origin, Sequence[int]]],
) -> TypeCatalog:
    """``text`` is the result of ``TYPES_SQL``, ``bases`` that of ``schema_cache.build.base_columns``."""
    read = orjson.loads(text)
    columns = {
        (one["relation_oid"], column["number"]): _column(column)
        for one in read["types"]
        for column in one["fields"] or ()
    }
    # A view's column does not say itself how the column that it shows was declared.
    for view, shown in bases.items():
        for origin, numbers in shown.items():
            for number in numbers:
                if origin in columns and (view, number) in columns:
                    columns[view, number] = _as_shown(columns[view, number], columns[origin])
    types = {one["oid"]: _type(one, columns) for one in read["types"]}
    relations = tuple(_relation(one, columns) for one in read["relations"])
    functions = tuple(_function(one) for one in read["functions"])
    return TypeCatalog(tuple(schemas), types, relations, functions, relationships)


def _as_shown(column: Column, origin: Column) -> Column:
    return evolve(
        column,
        generated=column.generated or origin.generated,
        dimensions=origin.dimensions or column.dimensions,
    )


def _column(one: Mapping[str, Any]) -> Column:
    return Column(**{name: value for name, value in one.items() if name != "number"})


def _columns(
    oid: int, one: Sequence[Mapping[str, Any]] | None, columns: Mapping[Origin, Column]
) -> tuple[Column, ...]:
    return tuple(columns[oid, column["number"]] for column in one or ())


def _type(one: Mapping[str, Any], columns: Mapping[Origin, Column]) -> Type:
    return Type(
        one["oid"],
        one["schema"],
        one["name"],
        one["kind"],
        one["element"],
        one["base"],
        one["relation"],
        tuple(one["labels"] or ()),
        _columns(one["relation_oid"], one["fields"], columns),
        one["to_json"],
        one["from_json"],
        one["dimensions"],
    )


def _relation(one: Mapping[str, Any], columns: Mapping[Origin, Column]) -> Relation:
    return Relation(
        one["schema"],
        one["name"],
        one["is_view"],
        bool(one["writable"] & _INSERT),
        bool(one["writable"] & _UPDATE),
        _columns(one["oid"], one["columns"], columns),
        one["comment"],
    )


def _function(one: Mapping[str, Any]) -> Function:
    taken = tuple(
        Argument(argument["name"], argument["type"], argument["position"] <= one["required"])
        for argument in one["arguments"]
        if argument["mode"] in ("i", "b", "v")
    )
    shown = [argument for argument in one["arguments"] if argument["mode"] in ("o", "b", "t")]
    columns = tuple(
        Column(argument["name"] or f"column{number}", argument["type"])
        for number, argument in enumerate(shown, 1)
    )
    return Function(one["schema"], one["name"], taken, one["returns"], one["is_set"], columns, one["to_one"])
