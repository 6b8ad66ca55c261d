"""Content negotiation: which representation answers a request. PostgREST's reference: "Media Type Handlers"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from attrs import evolve, frozen

from project_service.tables import errors
from project_service.tables.request import headers
from project_service.tables.request.headers import MediaType
from project_service.tables.values import Handler, Key, Routine, SchemaCache

Form = Literal["json", "object", "csv", "geojson", "ndjson", "custom", "routine"]

_BUILT_IN: dict[str, Form] = {
    headers.JSON: "json",
    headers.ARRAY: "json",
    headers.OBJECT: "object",
    headers.CSV: "csv",
    headers.NDJSON: "ndjson",
}
_VENDORED = (headers.OBJECT, headers.ARRAY)


@frozen
class Rendering:
    """How the body is made.

    ``handler`` is the aggregate of the form "custom". With ``explain`` the body is the execution plan instead.
    ``is_bytes`` says that the value that a routine makes can be sent as it comes. ``records``: a row may hold rows
    without a declared type, in which several columns may have one name.
    """

    form: Form
    content_type: str
    nulls_stripped: bool = False
    handler: Handler | None = None
    explain: MediaType | None = None
    is_bytes: bool = False
    records: bool = False

    @property
    def singular(self) -> bool:
        return self.form == "object"

    @property
    def takes_rows(self) -> bool:
        """Whether an aggregate makes the body of whole rows of one relation, and not of their JSON."""
        return self.handler is not None and self.handler.relation is not None


def negotiate(
    cache: SchemaCache,
    accept: Iterable[MediaType],
    relation: Key | None,
    routine: Routine | None,
    explain: bool,
    whole_rows: bool,
) -> Rendering:
    """The first of the types in ``accept`` that the database or this service can make. Raises PGRST107.

    ``explain`` allows execution plans. ``whole_rows`` says that the request selects nothing in particular. Only then
    may an aggregate for one relation's rows be used, or a function that makes a body itself.
    """
    asked = list(accept)
    offered = _Offered(cache, relation, routine, whole_rows)
    for wanted in asked:
        if wanted.refused:
            continue
        found = _plan_of(offered, wanted) if wanted.is_plan and explain else None
        found = found or _rendering(offered, wanted)
        if found is not None:
            return found
    raise errors.unacceptable_media([wanted.shown for wanted in asked])


@frozen
class _Offered:
    cache: SchemaCache
    relation: Key | None
    routine: Routine | None
    whole_rows: bool


def _plan_of(offered: _Offered, wanted: MediaType) -> Rendering | None:
    found = _rendering(offered, MediaType(wanted.plan_of, nulls_stripped=wanted.nulls_stripped))
    return evolve(found, content_type=wanted.content_type, explain=wanted) if found is not None else None


def _rendering(offered: _Offered, wanted: MediaType) -> Rendering | None:
    if wanted.name not in _VENDORED:
        own = _of_routine(wanted, offered.routine) if offered.whole_rows else None
        custom = own or _custom(offered, wanted)
        if custom is not None:
            return custom
    if wanted.name == headers.ANY:
        return _rendering(offered, MediaType(headers.JSON))
    if wanted.name == headers.GEOJSON and offered.cache.has_postgis:
        return Rendering("geojson", wanted.content_type)
    form = _BUILT_IN.get(wanted.name)
    return Rendering(form, wanted.content_type, wanted.nulls_stripped) if form is not None else None


def _of_routine(wanted: MediaType, routine: Routine | None) -> Rendering | None:
    """A function that returns a domain named like a media type makes that type, if the client accepts it."""
    if routine is None:
        return None
    if routine.return_media == headers.ANY:
        return Rendering("routine", headers.OCTETS, is_bytes=routine.is_bytes)
    if routine.return_media == wanted.name:
        return Rendering("routine", MediaType(wanted.name).content_type, is_bytes=routine.is_bytes)
    return None


def _custom(offered: _Offered, wanted: MediaType) -> Rendering | None:
    """The rendering by an aggregate. One of the relation's for ``*/*`` goes before its others (PostgREST's reference,
    "The Any Handler"), and those before aggregates for any relation."""
    handlers = offered.cache.handlers
    named = [found for found in handlers if found.media == wanted.name]
    anything = [found for found in handlers if found.media == headers.ANY]
    for handler in (*anything, *named) if offered.whole_rows else ():
        if handler.relation is not None and handler.relation == offered.relation:
            type_ = headers.OCTETS if handler.media == headers.ANY else MediaType(handler.media).content_type
            return Rendering("custom", type_, handler=handler)
    for handler in named:
        if handler.relation is None:
            return Rendering("custom", MediaType(handler.media).content_type, handler=handler)
    return None
