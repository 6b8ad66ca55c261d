"""Content negotiation: which representation answers a request. PostgREST's reference: "Media Type Handlers"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from attrs import frozen

from project_service.tables import errors
from project_service.tables.catalog.model import Handler, Key, Routine, SchemaCache
from project_service.tables.parse import media
from project_service.tables.parse.media import MediaType

Form = Literal["json", "object", "csv", "geojson", "ndjson", "custom", "routine"]

_BUILT_IN: dict[str, Form] = {
    media.JSON: "json",
    media.ARRAY: "json",
    media.OBJECT: "object",
    media.CSV: "csv",
    media.NDJSON: "ndjson",
}
_VENDORED = (media.OBJECT, media.ARRAY)


@frozen
class Rendering:
    """How the body is made. ``handler`` is the aggregate of a custom form; ``explain`` asks for the plan instead."""

    form: Form
    content_type: str
    nulls_stripped: bool = False
    handler: Handler | None = None
    explain: MediaType | None = None

    @property
    def singular(self) -> bool:
        return self.form == "object"


def negotiate(
    cache: SchemaCache,
    accept: Iterable[MediaType],
    relation: Key | None,
    routine: Routine | None,
    explain: bool,
) -> Rendering:
    """The best representation that the client takes and the database or this service makes. Raises PGRST107."""
    asked = list(accept)
    for wanted in asked:
        found = _plan_of(cache, wanted, relation, routine, explain) if wanted.is_plan else None
        found = found or _rendering(cache, wanted, relation, routine)
        if found is not None:
            return found
    raise errors.unacceptable_media([wanted.shown for wanted in asked])


def _plan_of(
    cache: SchemaCache, wanted: MediaType, relation: Key | None, routine: Routine | None, enabled: bool
) -> Rendering | None:
    if not enabled:
        return None
    inner = MediaType(wanted.plan_of, nulls_stripped=wanted.nulls_stripped)
    found = _rendering(cache, inner, relation, routine)
    if found is None:
        return None
    return Rendering(found.form, wanted.content_type, found.nulls_stripped, found.handler, wanted)


def _rendering(
    cache: SchemaCache, wanted: MediaType, relation: Key | None, routine: Routine | None
) -> Rendering | None:
    if wanted.name not in _VENDORED:
        custom = _of_routine(wanted, routine) or _custom(cache, wanted, relation)
        if custom is not None:
            return custom
    if wanted.name == media.ANY:
        return _rendering(cache, MediaType(media.JSON), relation, routine)
    if wanted.name == media.GEOJSON and cache.has_postgis:
        return Rendering("geojson", wanted.content_type)
    form = _BUILT_IN.get(wanted.name)
    return Rendering(form, wanted.content_type, wanted.nulls_stripped) if form is not None else None


def _of_routine(wanted: MediaType, routine: Routine | None) -> Rendering | None:
    """A function whose result is a domain named like a media type makes that type."""
    made = routine.return_media if routine is not None else None
    if made is None:
        return None
    if made == media.ANY:
        return Rendering("routine", media.OCTETS)
    if wanted.name in (made, media.ANY):
        return Rendering("routine", MediaType(made).content_type)
    return None


def _custom(cache: SchemaCache, wanted: MediaType, relation: Key | None) -> Rendering | None:
    named = [found for found in cache.handlers if found.media == wanted.name]
    anything = [found for found in cache.handlers if found.media == media.ANY]
    for handler in (*named, *anything):
        if handler.relation is not None and handler.relation == relation:
            type_ = media.OCTETS if handler.media == media.ANY else MediaType(handler.media).content_type
            return Rendering("custom", type_, handler=handler)
    for handler in named:
        if handler.relation is None and relation is not None:
            return Rendering("custom", MediaType(handler.media).content_type, handler=handler)
    return None
