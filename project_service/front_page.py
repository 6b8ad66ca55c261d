"""``GET /`` in a browser: what this service is, which parts are ready, where they are, and first requests to make.

It is public and shows no more than ``/ready`` and ``/openapi.json`` do. Programs, which do not ask for HTML, get 404
as on any unknown path.
"""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape

from attrs import frozen

from project_service import __version__, errors
from project_service.http.describe import STRING, Answer, Operation
from project_service.http.health import TAG, Health
from project_service.http.request import Request, prefers_html
from project_service.http.response import NO_STORE, Reply
from project_service.http.routing import Router, endpoint

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 small { font-weight: normal; color: #666 }
h2 { margin-top: 2rem }
th { text-align: left; font-weight: normal; padding-right: 2rem; vertical-align: top }
pre { background: #f4f4f4; padding: 1rem; overflow-x: auto }
.ready { color: #06702c } .not-ready { color: #b00020; font-weight: bold }
"""
_STYLE_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
_VARY = ("Vary", "Accept")
_HEADERS = (
    ("Content-Type", "text/html; charset=utf-8"),
    NO_STORE,
    _VARY,
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>project-service</title>
<style>{style}</style>
<h1>project-service <small>{version}</small></h1>
<p>Authentication, object storage and a table REST API of one project.</p>
<h2>Status</h2>
{status}
<h2>Where things are</h2>
<table>
{addresses}
<tr><th>Description<td><a href="{url}/openapi.json">{url}/openapi.json</a>
(OpenAPI 3.1; each database describes its tables at their address)
<tr><th>Console<td>{console}
<tr><th>Documentation<td><code>README.rst</code> and <code>docs</code> of the source;
<code>make docs</code> makes a site of them, <code>docs/_build/index.html</code>
</table>
<h2>First steps</h2>
<p>{keys}</p>
<pre><code>{steps}</code></pre>
</html>
"""
_KEYS = (
    "The anon key identifies the project and is no secret. With embedded servers <code>project-service env</code> "
    "prints it; otherwise <code>project-service keys create anon</code> makes one."
)
_CONSOLE = (
    '<a href="console">/console</a>, with the service key; by default for browsers on the same machine '
    "(<code>server.console</code>)"
)
_NO_CONSOLE = "Not at this address (<code>server.console</code>, <code>server.admin_listen</code>)"
_NOT_HERE = "<p>Health checks have an address of their own (<code>server.admin_listen</code>).</p>"


@frozen
class FrontPage:
    """The endpoint ``/``. ``databases`` are the paths at which the databases of the table API are; ``health`` is None
    if clients are not to see it, and ``console`` is whether that is at this address."""

    databases: Sequence[str]
    health: Health | None
    console: bool = False

    def mount(self, router: Router) -> None:
        router.mount(self)

    @endpoint(
        "GET",
        "/",
        Operation(
            "frontPage",
            TAG,
            "A page for a person with a browser",
            (Answer(200, "The page", {"text/html": STRING}),),
            errors=(errors.not_found(),),
            needs=(),
            details="Only if `Accept` prefers `text/html`.",
        ),
        key="optional",
        bearer="own",
    )
    async def show(self, request: Request) -> Reply:
        if not prefers_html(request.headers):
            raise errors.not_found((_VARY,))
        return Reply(200, _HEADERS, self._page(request.base_url.rstrip("/"), await self._status()).encode())

    async def _status(self) -> str:
        if self.health is None:
            return _NOT_HERE
        away = await self.health.away()
        states = {
            name: '<td class="not-ready">not ready' if name in away else '<td class="ready">ready'
            for name in self.health.checks
        }
        return _table(states.items())

    def _page(self, url: str, status: str) -> str:
        addresses = [("Authentication", "/auth/"), ("Storage", "/storage/")]
        addresses += [("Tables", path) for path in self.databases]
        return _PAGE.format(
            style=_STYLE,
            version=escape(__version__),
            status=status,
            addresses=_rows((name, f"<td><code>{escape(url + path)}</code>") for name, path in addresses),
            url=escape(url),
            console=_CONSOLE if self.console else _NO_CONSOLE,
            keys=_KEYS,
            steps=escape("\n".join(self._steps(url))),
        )

    def _steps(self, url: str) -> list[str]:
        """Commands for a shell."""

        def curl(path: str, options: str) -> str:
            return f"curl -s {shlex.quote(url + path)} {options}"

        key = '-H "apikey: $ANON_KEY"'
        user = '{"email": "ann@example.com", "password": "correct horse battery"}'
        return [
            "ANON_KEY=psk_anon_…",
            curl("/auth/signup", f"-H 'Content-Type: application/json' \\\n     -d '{user}'"),
            curl("/storage/buckets/public/objects", key),
            *(curl(path, key) for path in self.databases[:1]),
        ]


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return f"<table>\n{_rows(rows)}\n</table>"


def _rows(rows: Iterable[tuple[str, str]]) -> str:
    """Rows with a name and a cell, which is HTML."""
    return "\n".join(f"<tr><th>{escape(name)}{cell}" for name, cell in rows)
