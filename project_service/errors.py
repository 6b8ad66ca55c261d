"""``ApiError``, and the errors that all parts share. Each part has a module of its own for others.

No Twisted and no HTTP library here. ``code`` is part of the interface and does not change. A message is one sentence
for a person; it never contains SQL, a stack, an address or a credential.

In every part a function that makes an error is named for the code. If several make the same code, the names of the
others go on after it (``invalid_token_expired``). Only errors with a code of PostgREST or PostgreSQL, such as
``PGRST116``, are made by functions whose names say what is meant (``tables/errors``).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import orjson

Headers = tuple[tuple[str, str], ...]

# How many seconds a client should wait before it tries again when a part is away.
RETRY_AFTER = ("Retry-After", "2")
# The code of an expired token is the same as of any invalid one; only this message is different.
EXPIRED = "The access token has expired."

# The headers that responses with these statuses always have (RFC 9110 section 11.6.1 for 401). ``Allow`` of a 405
# depends on the path.
_REQUIRED = {401: ("WWW-Authenticate", "Bearer"), 429: RETRY_AFTER, 503: RETRY_AFTER}


def has_header(headers: Headers, name: str) -> bool:
    return any(given.lower() == name.lower() for given, _ in headers)


def with_required(status: int, headers: Headers) -> Headers:
    """``headers``, with a default for the one that a response with ``status`` must have, if it is not there."""
    required = _REQUIRED.get(status)
    return headers if required is None or has_header(headers, required[0]) else (*headers, required)


class ApiError(Exception):
    """A refusal or failure with its HTTP status and code.

    It may be raised anywhere; only ``http/edge`` turns it into a response. ``details`` has the reason by field.
    ``counted``: the metric of failures counts it by its code, and not among the others.
    """

    content_type = "application/json; charset=utf-8"
    # The reason phrase, if it is not the usual one of the status.
    reason: str | None = None
    # What was wrong, for the log only, if the response must not say it.
    why: str | None = None

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Mapping[str, str] | None = None,
        headers: Headers = (),
        *,
        counted: bool = False,
    ) -> None:
        super().__init__(status, code, message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details
        self.headers = with_required(status, headers)
        self.counted = counted

    def body(self) -> bytes:
        """The body of the response: JSON in an envelope. Subclasses may have another form."""
        error: dict[str, object] = {"code": self.code, "message": self.message}
        if self.details:
            error["details"] = dict(self.details)
        return orjson.dumps({"data": None, "error": error})


class Away(Exception):
    """The database or the store cannot be reached. This is not a bug in the service, and may be over soon."""


def challenge(error: str | None = None, description: str | None = None) -> Headers:
    """The header of a 401. Without credentials in the request it must not name an error (RFC 6750 section 3)."""
    value = "Bearer"
    if error is not None:
        value += f' error="{error}"'
    if description is not None:
        value += f', error_description="{description}"'
    return (("WWW-Authenticate", value),)


def bad_request(why: str = "The request is not valid HTTP/1.1.") -> ApiError:
    return ApiError(400, "bad_request", why)


def invalid_json(why: str = "The body is not valid JSON.") -> ApiError:
    return ApiError(400, "invalid_json", why)


def invalid_query(why: str = "The query string cannot be read.") -> ApiError:
    return ApiError(400, "invalid_query", why)


def validation_failed(details: Mapping[str, str]) -> ApiError:
    """422: the request can be read, but a value is not allowed. ``details`` has the reason by field, and the message
    the first three, since pages often show nothing else."""
    reasons = "; ".join(f"{name} {why}" for name, why in islice(details.items(), 3))
    more = f"; and {len(details) - 3} more" if len(details) > 3 else ""
    message = f"A value is not allowed: {reasons}{more}." if details else "A value is not allowed."
    return ApiError(422, "validation_failed", message, details)


def require_text(name: str, value: object) -> str:
    """Returns ``value``. Raises ``validation_failed`` if it is missing or not a string."""
    if not isinstance(value, str):
        raise validation_failed({name: "is required" if value is None else "must be a string"})
    return value


def not_found(headers: Headers = ()) -> ApiError:
    return ApiError(404, "not_found", "There is nothing at this path.", headers=headers)


def method_not_allowed(allowed: tuple[str, ...]) -> ApiError:
    return ApiError(
        405,
        "method_not_allowed",
        "This path does not allow that method; see Allow.",
        headers=(("Allow", ", ".join(allowed)),),
    )


def payload_too_large(limit: int, setting: str = "server.max_json_bytes") -> ApiError:
    message = f"The body is larger than the {limit} bytes that {setting} allows."
    return ApiError(413, "payload_too_large", message)


def uri_too_long(limit: int) -> ApiError:
    return ApiError(414, "uri_too_long", f"The request target is longer than {limit} bytes.")


def unsupported_media_type(expected: str) -> ApiError:
    return ApiError(415, "unsupported_media_type", f"The body must be {expected}.")


def unsupported_media_type_encoded() -> ApiError:
    """415 for a body with a content coding. ``Accept-Encoding`` says which are accepted (RFC 9110 section
    12.5.3)."""
    message = "The body must not be compressed: send it without Content-Encoding."
    return ApiError(415, "unsupported_media_type", message, headers=(("Accept-Encoding", "identity"),))


def headers_too_large(limit: int) -> ApiError:
    return ApiError(431, "headers_too_large", f"The request headers are larger than {limit} bytes.")


def rate_limited(retry_after_seconds: int) -> ApiError:
    return ApiError(
        429,
        "rate_limited",
        "There were too many attempts; try again later.",
        headers=(("Retry-After", str(max(1, retry_after_seconds))),),
    )


def project_key_required() -> ApiError:
    return ApiError(
        401,
        "project_key_required",
        "This path needs a project key in the header apikey (or X-Service-Key).",
        headers=challenge(),
    )


def project_key_invalid(message: str = "The project key is unknown or revoked.") -> ApiError:
    return ApiError(401, "project_key_invalid", message, headers=challenge())


def service_key_required(message: str = "This path needs the service key.") -> ApiError:
    return ApiError(403, "service_key_required", message)


def authentication_required() -> ApiError:
    return ApiError(
        401,
        "authentication_required",
        "This path needs an access token in the header Authorization.",
        headers=challenge(),
    )


def invalid_token(message: str = "The access token is not valid.") -> ApiError:
    return ApiError(401, "invalid_token", message, headers=challenge("invalid_token", message))


def invalid_token_expired() -> ApiError:
    return invalid_token(EXPIRED)


def session_revoked() -> ApiError:
    message = "The session of this access token has ended."
    return ApiError(401, "session_revoked", message, headers=challenge("invalid_token", message))


def refused_by_project(status: int, message: str) -> ApiError:
    """A refusal by a trigger or a constraint of the project's own. A trigger may choose ``status`` (4xx) and
    ``message``."""
    return ApiError(status, "refused_by_project", message)


def overloaded() -> ApiError:
    message = "The service is overloaded; try again shortly."
    return ApiError(503, "overloaded", message, counted=True)


def database_unavailable() -> ApiError:
    message = "The database cannot be reached at the moment."
    return ApiError(503, "database_unavailable", message, counted=True)


def shutting_down() -> ApiError:
    return ApiError(503, "shutting_down", "The service is stopping.")


def request_timeout() -> ApiError:
    return ApiError(408, "request_timeout", "The request did not arrive in time.")


def internal_error(request_id: str) -> ApiError:
    message = f"Something went wrong here; the request id is {request_id}."
    return ApiError(500, "internal_error", message, counted=True)
