"""Plans a call: which overload is meant, and where its arguments come from. PostgREST's reference: "Functions as
RPC"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve, field, frozen

from project_service.tables import errors
from project_service.tables.errors import Suggestion
from project_service.tables.plan.names import nearest, unknown_function
from project_service.tables.plan.nodes import ReadPlan, filtered_names, needed_columns, with_columns_listed
from project_service.tables.plan.read import ReadPlanner
from project_service.tables.request import headers
from project_service.tables.request.body import Payload
from project_service.tables.request.query import EVERYTHING
from project_service.tables.request.request import Request
from project_service.tables.request.syntax import Operand
from project_service.tables.values import Argument, Computed, Routine, SchemaCache, TablesConfig

# The type a single unnamed argument must have to be given the whole body.
RAW_TYPES = {
    headers.JSON: ("json", "jsonb"),
    headers.TEXT: ("text",),
    headers.XML: ("xml",),
    headers.OCTETS: ("bytea",),
}


@frozen
class CallPlan:
    """A function and where its arguments come from.

    ``values`` are arguments from the query or from a form. Otherwise the arguments come from ``payload``, which is
    JSON, or with ``whole`` the raw body for a single argument. ``read`` is how the function's rows are read. It is
    None for a function that returns plain values, unless the request names columns, of which these have none but
    computed ones. ``everything`` and ``returning`` are the columns that ``read`` needs, and ``computed`` those of
    them that have to be called.
    """

    routine: Routine
    values: tuple[tuple[Argument, tuple[Operand, ...]], ...] = ()
    arguments: tuple[Argument, ...] = ()
    payload: Payload | None = None
    whole: bool = False
    read: ReadPlan | None = None
    everything: bool = True
    returning: tuple[str, ...] = ()
    computed: Mapping[str, Computed] = field(factory=dict)


def plan_call(cache: SchemaCache, config: TablesConfig, request: Request) -> CallPlan:
    """The plan of a call: the function, its arguments, and what is read of its result. Raises PGRST202, 203 and those
    of ``ReadPlanner.plan``."""
    names, values = _given(request)
    routine, whole = find_routine(cache, request, names)
    plan, query = _arguments(routine, request, values, whole), request.query
    if routine.is_scalar and query.select == EVERYTHING and not (query.filters or query.orders):
        return plan
    read = ReadPlanner(cache, request.head.schema, config).plan_called(routine, query, request.range)
    everything, returning = needed_columns(read)
    if routine.returns is None or read.relation is None:
        return evolve(plan, read=read)
    names = tuple(dict.fromkeys((*returning, *filtered_names(read.conditions))))
    return evolve(
        plan,
        read=with_columns_listed(read, names),
        everything=everything,
        returning=names,
        computed=read.computed,
    )


def _given(request: Request) -> tuple[tuple[str, ...], Mapping[str, Sequence[Operand]]]:
    """The arguments' names, and their values where they are not in a JSON body."""
    pairs: Sequence[tuple[str, Operand]]
    payload = request.payload
    if payload is None:
        pairs = request.query.arguments
    elif payload.kind == "form":
        pairs = [(name, Operand(value)) for name, value in payload.arguments]
    else:
        return payload.keys, {}
    values: dict[str, list[Operand]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return tuple(values), values


def _arguments(
    routine: Routine, request: Request, values: Mapping[str, Sequence[Operand]], whole: bool
) -> CallPlan:
    payload = request.payload
    if whole:
        return CallPlan(routine, payload=payload, whole=True, arguments=routine.arguments)
    if payload is None or payload.kind == "form":
        given = tuple(
            (argument, tuple(values[argument.name]))
            for argument in routine.arguments
            if argument.name in values
        )
        return CallPlan(routine, values=given)
    named = tuple(argument for argument in routine.arguments if argument.name in payload.keys)
    return CallPlan(routine, arguments=named, payload=payload)


def find_routine(cache: SchemaCache, request: Request, names: tuple[str, ...]) -> tuple[Routine, bool]:
    """The one overload that takes these names; or one that takes the whole body as a single unnamed argument, and
    True.

    Raises PGRST202 where there is none, PGRST203 where there are several, and PGRST102 for an array whose items have
    no members in common, unless a function takes it whole.
    """
    payload = request.payload
    key = request.head.schema, request.head.name
    overloads = cache.routines.get(key, ())
    types = RAW_TYPES.get(payload.media, ()) if payload is not None else ()
    takes_whole = [routine for routine in overloads if _takes_whole(routine, types)]
    by_name = payload is None or (payload.kind != "raw" and payload.keys_match)
    takes_names = [routine for routine in overloads if by_name and _takes_names(routine, names)]
    whole = not takes_names or (payload is not None and payload.is_nameless and bool(takes_whole))
    candidates = takes_whole if whole else takes_names
    if candidates and not whole:
        others = (one for one in (*overloads, *cache.without_names.get(key, ())) if one not in candidates)
        candidates = [*candidates, *(one for one in others if _is_rival(one, names))]
    if len(candidates) == 1:
        return candidates[0], whole
    if candidates:
        raise errors.ambiguous_routine([_signature(routine) for routine in candidates])
    if payload is not None and not payload.keys_match:
        raise errors.keys_differ()
    raise unknown_routine(cache, *key, tuple(sorted(set(names))), payload)


def _takes_names(routine: Routine, names: tuple[str, ...]) -> bool:
    """Whether the function can be called with these arguments. The empty name is that of an unnamed one, which only
    the first can be: it is given by its position."""
    given = set(names)
    if any(not argument.name for argument in routine.arguments[1:]):
        return False
    known = {argument.name for argument in routine.arguments}
    required = {argument.name for argument in routine.arguments if argument.required}
    return required <= given <= known


def _is_rival(routine: Routine, names: tuple[str, ...]) -> bool:
    """Whether PostgreSQL could take a call with these names for one of this function, whose arguments without names
    are all left to their defaults. A call by such a name is none."""
    named = [argument for argument in routine.arguments if argument.name]
    rest = [argument for argument in routine.arguments if not argument.name]
    given = set(names)
    required = {argument.name for argument in named if argument.required}
    return (
        bool(rest)
        and not any(argument.required for argument in rest)
        and required <= given <= {argument.name for argument in named}
    )


def _takes_whole(routine: Routine, types: tuple[str, ...]) -> bool:
    arguments = routine.arguments
    return len(arguments) == 1 and not arguments[0].name and arguments[0].type in types


def _signature(routine: Routine) -> str:
    arguments = ", ".join(f"{argument.name} => {argument.type}" for argument in routine.arguments)
    return f"{routine.schema}.{routine.name}({arguments})"


def unknown_routine(
    cache: SchemaCache, schema: str, name: str, names: tuple[str, ...] = (), payload: Payload | None = None
) -> errors.TableError:
    """PGRST202 for a function that no overload has these arguments of, or whose name is unknown."""
    shown = f"{schema}.{name}"
    types = RAW_TYPES.get(payload.media) if payload is not None else None
    unnamed = f"a single unnamed {'/'.join(types)} parameter" if types else ""
    raw = payload is not None and payload.kind == "raw"
    if raw:
        message, described = shown, f"with {unnamed}"
    else:
        listed = ", ".join(names)
        message = f"{shown}({listed})" if names else f"{shown} without parameters"
        described = f"with parameter{'s' * (len(names) > 1)} {listed}" if names else "without parameters"
        if unnamed:
            described += f" or with {unnamed}"

    def error(hint: str | None) -> errors.TableError:
        return errors.no_routine(
            f"Could not find the function {message} in the schema cache",
            f"Searched for the function {shown} {described}, but no matches were found in the schema cache.",
            hint,
        )

    overloads = cache.routines.get((schema, name))
    # A body that is a single argument has no names by which to look for a similar function.
    if raw or (overloads is not None and not names):
        return error(None)
    if overloads is None:

        def called(near: str | None) -> errors.TableError:
            return error(f"Perhaps you meant to call the function {schema}.{near}" if near else None)

        return unknown_function(called, cache, schema, name)
    known = [_listed(argument.name for argument in routine.arguments) for routine in overloads]
    near = nearest(_listed(names), dict.fromkeys(known))
    hint = f"Perhaps you meant to call the function {schema}.{name}{near}" if near else None
    raised = error(hint)
    raised.suggestion = Suggestion("overloads", schema, lambda usable: hint if name in usable else None, name)
    return raised


def _listed(names: Iterable[str]) -> str:
    """The names of arguments as one text for comparison, sorted because their order means nothing."""
    return f"({', '.join(sorted(names))})"
