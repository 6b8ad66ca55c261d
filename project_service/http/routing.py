"""Routes, declared on a Klein app and matched on the path as it was sent.

Klein holds the declarations; matching and calling are ours, because Klein decodes ``%2F`` before it routes and
answers some faults in HTML by itself. A part declares its routes on ``Router.of_part``, with the ``Policy`` that they
share.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from attrs import evolve, frozen
from klein import Klein
from werkzeug.exceptions import MethodNotAllowed, NotFound
from werkzeug.routing import BaseConverter, RequestRedirect

from project_service import errors
from project_service.errors import ApiError
from project_service.http import cors, describe
from project_service.http.caller import Access, BearerDemand, KeyDemand
from project_service.http.describe import Operation
from project_service.http.head import METHODS, HeaderView
from project_service.http.request import Request
from project_service.http.response import ENVELOPE, ErrorForm, Reply, StreamReply

Handler = Callable[[Request], Awaitable[Reply | StreamReply]]
H = TypeVar("H", bound=Callable[..., Awaitable[Reply | StreamReply]])


# How many matches are cached, and for paths of up to which length: two megabytes at most.
RECENT_PATHS = 4096
SHORT_PATH = 256


@frozen
class Policy:
    """What a part decides for all of its routes.

    ``admission`` is the admission class of its requests; path arguments may stand in it in braces. Requests without a
    class never wait. ``preflight`` makes the response to a CORS preflight, from the methods of the path and the
    request's headers. Without ``cors``, no response has CORS headers; with ``any_origin``, pages of every origin may
    read responses, whatever ``server.cors_origins`` says. Pages that may read a response may read the headers in
    ``exposed`` too, which go out as a line by themselves besides ``cors.EXPOSED``. ``reads_by_own_rules``: the part
    reads queries and bodies itself, so that the errors of ``Request``'s methods do not occur. ``key_anywhere``: as in
    ``Access``. ``documented``: whether its routes are in ``/openapi.json``, and not others to the same handlers.
    """

    admission: str = ""
    error_form: ErrorForm = ENVELOPE
    preflight: Callable[[tuple[str, ...], HeaderView], Reply] = cors.preflight
    cors: bool = True
    any_origin: bool = False
    exposed: str = ""
    reads_by_own_rules: bool = False
    key_anywhere: bool = False
    documented: bool = True


class _RawPath(BaseConverter):
    """The rest of the path, slashes and all, empty segments too."""

    regex = ".*"
    part_isolating = False
    weight = 200


@frozen
class Route:
    """A declared route: ``url`` is its pattern, the name metrics use."""

    url: str
    handler: Handler
    access: Access
    policy: Policy
    described: tuple[Operation, ...]
    any_method: bool


@frozen
class Endpoint:
    """What ``endpoint`` records with the method that it decorates."""

    method: str
    url: str
    described: Operation
    key: KeyDemand
    bearer: BearerDemand
    admission: str | None
    or_slash: bool


def endpoint(
    method: str,
    url: str,
    described: Operation,
    *,
    key: KeyDemand = "required",
    bearer: BearerDemand = "optional",
    admission: str | None = None,
    or_slash: bool = False,
) -> Callable[[H], H]:
    """Declare the handler of ``method`` at ``url``, a method of a class that is given to ``Router.mount``.

    The keywords are those of ``Router.route``.
    """

    def declare(handler: H) -> H:
        declared = Endpoint(method, url, described, key, bearer, admission, or_slash)
        handler.endpoint = declared  # type: ignore[attr-defined]
        return handler

    return declare


@frozen
class Match:
    """``admission`` is the request's admission class."""

    route: Route
    path_args: Mapping[str, str]
    admission: str


class Router:
    """``route`` and ``mount`` declare routes, ``match`` looks them up. HEAD is served wherever GET is."""

    def __init__(self) -> None:
        self.app = Klein()
        self.app.url_map.merge_slashes = False
        self.app.url_map.converters = {**self.app.url_map.converters, "path": _RawPath}
        self._adapter = self.app.url_map.bind("", url_scheme="http")
        self._routes: dict[str, Route] = {}
        self._policy = Policy()
        # As ``match``. Cached for short paths, since taking a path apart costs more than most of what follows.
        self._recent = lru_cache(maxsize=RECENT_PATHS)(self._match)

    def of_part(self, policy: Policy) -> Router:
        """The same router, for a part to declare its routes with ``policy``."""
        part = copy(self)
        part._policy = policy
        return part

    def undocumented(self) -> Router:
        """The same router and policy, for routes by which handlers are reached once more."""
        return self.of_part(evolve(self._policy, documented=False))

    @property
    def routes(self) -> list[tuple[str, frozenset[str], Route]]:
        """Every declaration: pattern, methods, route."""
        return [
            (rule.rule, frozenset(rule.methods or ()), self._routes[rule.endpoint])
            for rule in self.app.url_map.iter_rules()
        ]

    def route(
        self,
        url: str,
        *described: Operation,
        methods: tuple[str, ...],
        key: KeyDemand = "required",
        bearer: BearerDemand = "optional",
        admission: str | None = None,
        any_method: bool = False,
        or_slash: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Declare ``async def handler(request)`` for ``url``, in werkzeug's syntax.

        ``<path:name>`` takes the rest of the raw path, slashes included. Path arguments are percent-decoded once. A
        ``path`` argument that is not UTF-8 keeps its bytes as surrogate escapes, and the handler has to refuse it;
        any other such argument is 404. With ``any_method`` the handler also gets the methods that the path does not
        have, to refuse them in its own words. ``admission`` replaces that of the part's policy. With ``or_slash`` the
        path may also end with a slash.

        ``described`` is what ``/openapi.json`` says. Raises ``ValueError`` if it lacks one of ``methods`` or an
        argument of the path.
        """
        policy = self._policy if admission is None else evolve(self._policy, admission=admission)
        if policy.documented:
            describe.check(url, methods, described)

        def declare(handler: Handler) -> Handler:
            endpoint = f"{'|'.join(methods)} {url}"
            self._recent.cache_clear()
            self._routes[endpoint] = Route(
                url, handler, Access(key, bearer, policy.key_anywhere), policy, described, any_method
            )
            declare_on_klein: Any = self.app.route(
                url, methods=[*methods], endpoint=endpoint, strict_slashes=not or_slash
            )
            declare_on_klein(handler)
            return handler

        return declare

    def mount(
        self,
        endpoints: object,
        key: KeyDemand | None = None,
        wrap: Callable[[Handler], Handler] = lambda handler: handler,
        place: Callable[[Endpoint], Endpoint] = lambda declared: declared,
    ) -> None:
        """Declare every ``endpoint`` of the object ``endpoints``, in their order. ``key`` replaces their demand for a
        project key; ``wrap`` is applied to each handler, and ``place`` to each declaration."""
        for name, value in vars(type(endpoints)).items():
            declared: Endpoint | None = getattr(value, "endpoint", None)
            if declared is not None:
                declared = place(declared)
                self.route(
                    declared.url,
                    declared.described,
                    methods=(declared.method,),
                    key=key or declared.key,
                    bearer=declared.bearer,
                    admission=declared.admission,
                    or_slash=declared.or_slash,
                )(wrap(getattr(endpoints, name)))

    def match(self, method: str, raw_path: bytes) -> Match:
        """The route of a request; raises ``not_found`` or ``method_not_allowed`` (with ``Allow``)."""
        return (
            self._recent(method, raw_path) if len(raw_path) <= SHORT_PATH else self._match(method, raw_path)
        )

    def _match(self, method: str, raw_path: bytes) -> Match:
        if raw_path.startswith(b"//"):
            raise errors.not_found()  # werkzeug would take several leading slashes for one
        if raw_path == b"*" and method == "OPTIONS":
            raise errors.method_not_allowed(METHODS)  # asks about the whole service (RFC 9110 section 9.3.7)
        path = raw_path.decode("latin-1")
        if method != method.upper():  # methods have case (RFC 9110 section 9.1), not to werkzeug
            return self._refusing(path)
        try:
            return self._matched(path, method)
        except MethodNotAllowed:
            return self._refusing(path)
        except (NotFound, RequestRedirect):
            raise errors.not_found() from None

    def _matched(self, path: str, method: str) -> Match:
        rule, raw_args = self._adapter.match(path, method, return_rule=True)
        route = self._routes[rule.endpoint]
        args = {name: _decoded(name, raw, rule) for name, raw in raw_args.items()}
        return Match(route, args, route.policy.admission.format_map(args))

    def _refusing(self, path: str) -> Match:
        """The route for a method that the path does not have: one with ``any_method``.

        Raises ``not_found`` or ``method_not_allowed`` if there is none.
        """
        for method in self._adapter.allowed_methods(path):
            match = self._matched(path, method)
            if match.route.any_method:
                return match
        raise errors.method_not_allowed(self.allowed(path.encode("latin-1")))

    def unknown_method(self, raw_path: bytes) -> ApiError:
        """The error for a method that the parser does not know: 405 with the path's methods, or 404."""
        try:
            return errors.method_not_allowed(self.allowed(raw_path))
        except ApiError as fault:
            return fault

    def allowed(self, raw_path: bytes) -> tuple[str, ...]:
        """The methods of a path, for preflights; raises ``not_found`` if there are none."""
        if raw_path.startswith(b"//"):
            raise errors.not_found()
        methods = self._adapter.allowed_methods(raw_path.decode("latin-1"))
        if not methods:
            raise errors.not_found()
        return tuple(sorted({*methods, "OPTIONS"}))

    def at(self, raw_path: bytes) -> Match | None:
        """What a path belongs to, whatever the method; None if there is no such path."""
        path = raw_path.decode("latin-1")
        for method in self._adapter.allowed_methods(path):
            try:
                return self._matched(path, method)
            except ApiError:  # a path argument is not UTF-8
                rule, _ = self._adapter.match(path, method, return_rule=True)
                return Match(self._routes[rule.endpoint], {}, "")
        return None


def _decoded(name: str, raw: str, rule: object) -> str:
    data = unquote_to_bytes(raw.encode("latin-1"))
    is_path = f"<path:{name}>" in str(getattr(rule, "rule", ""))
    try:
        return data.decode("utf-8", "surrogateescape" if is_path else "strict")
    except UnicodeDecodeError:
        raise errors.not_found() from None
