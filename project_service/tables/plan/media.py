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
    offer = _Offer(cache, relation, routine, whole_rows)
    for wanted in asked:
        if wanted.refused:
            continue
        rendering = offer.plan_of(wanted) if wanted.is_plan and explain else None
        rendering = rendering or offer.rendering(wanted)
        if rendering is not None:
            return rendering
    raise errors.unacceptable_media([wanted.shown for wanted in asked])


@frozen
class _Offer:
    """What can be made of the rows of a relation or the result of a routine."""

    cache: SchemaCache
    relation: Key | None
    routine: Routine | None
    whole_rows: bool

    def plan_of(self, wanted: MediaType) -> Rendering | None:
        rendering = self.rendering(MediaType(wanted.plan_of, nulls_stripped=wanted.nulls_stripped))
        if rendering is None:
            return None
        return evolve(rendering, content_type=wanted.content_type, explain=wanted)

    def rendering(self, wanted: MediaType) -> Rendering | None:
        if wanted.name not in _VENDORED:
            custom = self._by_routine(wanted) or self._by_aggregate(wanted)
            if custom is not None:
                return custom
        if wanted.name == headers.ANY:
            return self.rendering(MediaType(headers.JSON))
        if wanted.name == headers.GEOJSON and self.cache.has_postgis:
            return Rendering("geojson", wanted.content_type)
        form = _BUILT_IN.get(wanted.name)
        return Rendering(form, wanted.content_type, wanted.nulls_stripped) if form is not None else None

    def _by_routine(self, wanted: MediaType) -> Rendering | None:
        """A function that returns a domain named like a media type makes that type, if the client accepts it."""
        routine = self.routine
        if routine is None or not self.whole_rows:
            return None
        if routine.return_media == headers.ANY:
            return Rendering("routine", headers.OCTETS, is_bytes=routine.is_bytes)
        if routine.return_media == wanted.name:
            return Rendering("routine", MediaType(wanted.name).content_type, is_bytes=routine.is_bytes)
        return None

    def _by_aggregate(self, wanted: MediaType) -> Rendering | None:
        """The rendering by an aggregate. One of the relation's for ``*/*`` goes before its others (PostgREST's
        reference, "The Any Handler"), and those before aggregates for any relation."""
        named = [one for one in self.cache.handlers if one.media == wanted.name]
        anything = [one for one in self.cache.handlers if one.media == headers.ANY]
        for handler in (*anything, *named) if self.whole_rows else ():
            if handler.relation is not None and handler.relation == self.relation:
                is_any = handler.media == headers.ANY
                type_ = headers.OCTETS if is_any else MediaType(handler.media).content_type
                return Rendering("custom", type_, handler=handler)
        for handler in named:
            if handler.relation is None:
                return Rendering("custom", MediaType(handler.media).content_type, handler=handler)
        return None
