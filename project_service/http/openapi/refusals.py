"""The errors that follow from what a route demands, so that no description has to list them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from project_service import errors
from project_service.errors import ApiError
from project_service.http.caller import Access
from project_service.http.openapi.described import JSON, Described


def of(access: Access, described: Described, strict: bool) -> list[ApiError]:
    """Every refusal that a caller of the operation can meet, the described ones first, each status and code once.

    ``strict`` says that bodies and values are read by the edge's own rules, and not by the table API's.
    """
    found: dict[tuple[int, str], ApiError] = {}
    for error in (
        *described.errors,
        *_of_access(access, described),
        *_of_request(described),
        *(_of_values(described) if strict else ()),
        *_of_needs(access, described),
        *_of_everything(),
    ):
        found.setdefault((error.status, error.code), error)
    return list(found.values())


def reads_token(access: Access, described: Described) -> bool:
    return access.bearer != "own" or described.reads_bearer


def _of_access(access: Access, described: Described) -> Iterator[ApiError]:
    if access.key != "optional":
        yield errors.project_key_required()
    yield errors.project_key_invalid()
    if access.key == "service":
        yield errors.service_key_required()
    if access.bearer == "required":
        yield errors.authentication_required()
    if reads_token(access, described):
        yield errors.invalid_token()
        yield errors.session_revoked()


def _of_request(described: Described) -> Iterator[ApiError]:
    places = {parameter.place for parameter in described.parameters}
    if "path" in places:
        yield errors.not_found()
    if "query" in places:
        yield errors.invalid_query()
    if described.body is not None:
        yield errors.request_timeout()
        yield ApiError(413, "payload_too_large", "The body is larger than allowed here.")
        yield errors.content_encoded()


def _of_values(described: Described) -> Iterator[ApiError]:
    takes_json = described.body is not None and JSON in described.body.content
    if takes_json:
        yield errors.invalid_json()
        yield errors.unsupported_media_type(JSON)
    if takes_json or any(parameter.place == "query" for parameter in described.parameters):
        yield errors.validation_failed({})


def _of_everything() -> Iterator[ApiError]:
    """What the connection refuses before there is a request, and what can happen to any."""
    yield errors.not_http()
    yield ApiError(414, "uri_too_long", "The request target is too long.")
    yield ApiError(431, "headers_too_large", "The request headers are too large.")
    yield ApiError(500, "internal_error", "Something went wrong here; the request id leads to the log.")
    yield errors.overloaded()
    yield errors.shutting_down()


def _of_needs(access: Access, described: Described) -> Iterator[ApiError]:
    if "database" in described.needs or access.key != "optional" or reads_token(access, described):
        yield errors.database_unavailable()
    if "store" in described.needs:
        yield errors.store_unavailable()
