"""What requests are planned with: the settings of a database, and the values of its schema cache.

Types are in ``format_type``'s form, as read with an empty search path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import field, frozen

from project_service.database.trust import UNKNOWN, Trust
from project_service.settings.model import StageDatabase


@frozen
class TablesConfig(StageDatabase):
    """The settings of a database (``[stages.<stage>.databases.<name>]``), and ``statement_timeout``: the service's,
    written as PostgreSQL takes it ("0" for none). ``pooled``: a pooler gives each transaction another session."""

    statement_timeout: str = "0"
    pooled: bool = False

    @property
    def tx_override(self) -> bool:
        """Whether a request may say how its transaction ends."""
        return self.tx_end.endswith("allow-override")


Key = tuple[str, str]
Cardinality = Literal["m2o", "o2m", "o2o", "m2m"]
Pairs = tuple[tuple[str, str], ...]

# The one column of a function that returns plain values.
SCALAR = "pgrst_scalar"


@frozen
class Representation:
    """The functions that convert values of a type: ``to_json`` for responses, ``from_text`` for filters and
    ``from_json`` for payloads. PostgREST's reference: "Domain Representations"."""

    to_json: Key | None = None
    from_text: Key | None = None
    from_json: Key | None = None


# The types of a single argument without a name that a request's whole body can be given to.
WHOLE_TYPES = ("bytea", "text", "xml", "json", "jsonb")

# A type whose values are PostgreSQL's own JSON and text.
PLAIN = Representation()


@frozen
class Column:
    """``base_type`` is ``type`` with domains resolved; ``default`` is an SQL expression of the database's own."""

    name: str
    type: str
    base_type: str
    nullable: bool = True
    default: str | None = None
    enum: tuple[str, ...] = ()
    description: str | None = None
    max_length: int | None = None
    representation: Representation = PLAIN


@frozen
class Relation:
    """A table, view, materialised view, foreign or partitioned table.

    ``row_bytes`` is the size of a row on disk by the last ANALYZE, 0 where it is not known. ``inherited`` says that
    other tables inherit from it; the primary key does not hold for their rows. ``has_system_columns`` holds for all
    but views.
    """

    schema: str
    name: str
    columns: Mapping[str, Column] = field(repr=False)
    primary_key: tuple[str, ...] = ()
    is_view: bool = False
    insertable: bool = False
    updatable: bool = False
    deletable: bool = False
    description: str | None = None
    row_bytes: int = 0
    inherited: bool = False
    has_system_columns: bool = False

    @property
    def key(self) -> Key:
        return (self.schema, self.name)


@frozen
class Computed:
    """A computed column: the function that makes it of a row of type ``row``, or of any row where that is None.

    ``is_record``: the value is a row without a declared type."""

    routine: Key
    row: Key | None
    is_record: bool = False


@frozen
class Junction:
    """The table between two others: its two constraints, and the columns that they connect."""

    key: Key
    to_origin: str
    to_target: str
    origin_pairs: Pairs
    target_pairs: Pairs


@frozen
class Relationship:
    """How the relation ``target`` is related to ``origin``. ``pairs`` are (column of origin, column of target).

    A computed relationship has a ``routine`` and neither pairs nor a junction. ``first_only``: of a set of rows that
    is declared to be of one.
    """

    origin: Key
    target: Key
    cardinality: Cardinality
    constraint: str = ""
    pairs: Pairs = ()
    is_self: bool = False
    target_is_view: bool = False
    is_parent: bool = False
    junction: Junction | None = None
    routine: Key | None = None
    first_only: bool = False

    @property
    def to_one(self) -> bool:
        return self.cardinality in ("m2o", "o2o")

    @property
    def origin_pairs(self) -> Pairs:
        """The columns of the origin that refer to the target or the junction, or that these refer to, with those."""
        return self.pairs if self.junction is None else self.junction.origin_pairs


@frozen
class Argument:
    """``cast`` is the type to cast a value to: ``type``, but without an implied length that would cut values."""

    name: str
    type: str
    cast: str
    required: bool = True
    variadic: bool = False


@frozen
class Routine:
    """A function. ``returns`` is the relation whose rows it returns, if it returns rows of one.

    ``columns`` names its OUT arguments, which are the columns of its result where ``returns`` is None.
    ``return_media`` is the media type of a function whose single value is a whole body. ``is_bytes`` says that the
    value can be sent as it comes from PostgreSQL. ``shows_records``: the result is, or has, rows without a declared
    type, in which several columns may have one name.
    """

    schema: str
    name: str
    arguments: tuple[Argument, ...] = ()
    returns: Key | None = None
    is_composite: bool = False
    is_set: bool = False
    is_void: bool = False
    volatility: Literal["i", "s", "v"] = "v"
    settings: tuple[tuple[str, str], ...] = ()
    description: str | None = None
    return_media: str | None = None
    is_bytes: bool = False
    is_sql: bool = False
    columns: tuple[str, ...] = ()
    shows_records: bool = False

    @property
    def key(self) -> Key:
        return (self.schema, self.name)

    @property
    def may_be_inlined(self) -> bool:
        """Whether PostgreSQL may inline it: replace the call by the function's own query."""
        return self.is_sql and self.is_set and self.is_composite and self.volatility != "v"

    @property
    def is_scalar(self) -> bool:
        return not self.is_composite

    @property
    def takes_defaults_only(self) -> bool:
        """Whether no request can give it an argument: none has a name, and all have defaults."""
        arguments = self.arguments
        if not arguments or any(argument.name or argument.required for argument in arguments):
            return False
        return len(arguments) > 1 or arguments[0].type not in WHOLE_TYPES


@frozen
class Handler:
    """An aggregate that makes a whole body of the type ``media``. With ``relation`` None it takes rows of any."""

    aggregate: Key
    media: str
    relation: Key | None


@frozen
class SchemaCache:
    """What was read from PostgreSQL's catalogs at one time. Overloads of a routine are ordered by the number of their
    arguments. ``without_names`` are those that no request can give an argument: they are not called.

    ``computed`` are the computed columns by row type and name, those of a type before those of the types it inherits
    from; ``computed_of_any`` those that any row has. ``row_columns`` has the columns of row types that functions
    return and that are not exposed relations. ``row_functions`` are the names of everything that PostgreSQL would
    call with a row if the name were written as a column of it, aggregates included.

    ``trust`` is how far the SQL of the database can be trusted with a connection. ``mark`` is a comment that ends
    statements where a pooler takes those of one text for one statement, in whatever process: types of parameters may
    be others when the catalog has changed.
    """

    version: int
    relations: Mapping[Key, Relation] = field(repr=False, factory=dict)
    relationships: Mapping[Key, tuple[Relationship, ...]] = field(repr=False, factory=dict)
    routines: Mapping[Key, tuple[Routine, ...]] = field(repr=False, factory=dict)
    without_names: Mapping[Key, tuple[Routine, ...]] = field(repr=False, factory=dict)
    computed: Mapping[Key, Mapping[str, tuple[Computed, ...]]] = field(repr=False, factory=dict)
    computed_of_any: Mapping[str, tuple[Computed, ...]] = field(repr=False, factory=dict)
    row_columns: Mapping[Key, tuple[str, ...]] = field(repr=False, factory=dict)
    row_functions: frozenset[str] = field(repr=False, default=frozenset())
    handlers: tuple[Handler, ...] = field(repr=False, default=())
    role_settings: Mapping[str, tuple[tuple[str, str], ...]] = field(repr=False, factory=dict)
    schema_comments: Mapping[str, str] = field(repr=False, factory=dict)
    has_postgis: bool = False
    connects_as: str = ""
    as_superuser: bool = False
    fingerprint: str = ""
    trust: Trust = UNKNOWN
    mark: str = ""

    def computed_column(self, row: Key | None, name: str, search_path: Sequence[str]) -> Computed | None:
        """The computed column of rows of type ``row`` whose function is in ``search_path``, if there is one."""
        candidates = (
            *(self.computed.get(row, {}).get(name, ()) if row is not None else ()),
            *self.computed_of_any.get(name, ()),
        )
        visible = [one for one in candidates if one.routine[0] in search_path]
        nearest = [one for one in visible if one.row == row] or visible
        return min(nearest, key=lambda one: search_path.index(one.routine[0]), default=None)
