"""Sends the console: a page at ``/console``, and what that loads, below a path that changes with every file.

The files are those of ``app``, as they lie there. All of them are below ``/console/<digest>/``, where the digest is
one of all contents, so that a browser may keep them for ever, modules find each other by relative paths, and nothing
has to be written into them. Who changes a file reloads the page: files are read again when one has changed.

The page is public and has no secrets: what it shows it asks for with the service key, which it is given in the
browser.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path

from attrs import define, field, frozen

from project_service import errors
from project_service.http.describe import LOCATION, STRING, Answer, Operation, Parameter
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply
from project_service.http.routing import Policy, Router, endpoint

APP = Path(__file__).parent / "app"
TAG = "console"

_PAGE = "index.html"
# What is in the folder for those who work on it, and not for browsers.
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Modules of the first view: the browser asks for all at once, not for one after the other as it reads them.
_FIRST = ("main.js", "pages.js", "core/")
_FOR_EVER = ("Cache-Control", "public, max-age=31536000, immutable")
_VARY = ("Vary", "Accept-Encoding")
# Frames show files and e-mails of strangers: by addresses that the page itself makes, with no rights and no scripts.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "frame-src blob:",
        "worker-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types console",
    )
)
_SAFE = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_PAGE_HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ("X-Frame-Options", "DENY"),
    *_SAFE,
)
_LOOPBACK_NAME = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d+)?\Z", re.IGNORECASE)
_ASSET = "/console/<digest>/<path:name>"


@frozen
class File:
    content: bytes = field(repr=False)
    compressed: bytes = field(repr=False)
    type: str

    @classmethod
    def of(cls, content: bytes, suffix: str) -> File:
        return cls(content, gzip.compress(content, mtime=0), _TYPES[suffix])

    def reply(self, request: Request, *headers: tuple[str, str]) -> Reply:
        sent = (("Content-Type", self.type), _VARY, *headers)
        if "gzip" not in (request.headers.text(b"accept-encoding") or ""):
            return Reply(200, sent, self.content)
        return Reply(200, (*sent, ("Content-Encoding", "gzip")), self.compressed)


@frozen
class Files:
    """The files by their paths below ``app``, ``index.html`` with the addresses of the others; ``state`` is what the
    folder looked like when they were read."""

    by_path: Mapping[str, File] = field(repr=False)
    digest: str
    state: object = field(repr=False)

    @classmethod
    def read(cls, folder: Path) -> Files:
        state = _state(folder)
        contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in _paths(folder)}
        total = hashlib.sha256()
        for path, content in sorted(contents.items()):
            total.update(f"{path}\0{len(content)}\0".encode() + content)
        digest = total.hexdigest()[:16]
        contents[_PAGE] = _page(contents[_PAGE], sorted(contents), digest)
        files = {path: File.of(content, Path(path).suffix) for path, content in contents.items()}
        return cls(files, digest, state)


def _paths(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix in _TYPES and path.is_file())


def _state(folder: Path) -> object:
    found = ((path, path.stat()) for path in _paths(folder))
    return frozenset((path, about.st_mtime_ns, about.st_size) for path, about in found)


def _page(text: bytes, paths: list[str], digest: str) -> bytes:
    """``index.html``, with the digest for ``DIGEST``, and for ``PRELOADS`` the modules that are needed at once."""
    modules = (path for path in paths if path.endswith(".js") and path.startswith(_FIRST))
    links = "\n".join(f'<link rel="modulepreload" href="console/{digest}/{path}">' for path in modules)
    return text.replace(b"PRELOADS", links.encode()).replace(b"DIGEST", digest.encode())


@define(eq=False)
class Console:
    """Has routes, unless ``shown``, which is ``server.console``, is false."""

    shown: bool | str
    folder: Path = APP
    _files: Files | None = field(default=None, init=False)

    def mount(self, router: Router) -> None:
        if self.shown is not False:
            router.of_part(Policy(cors=False)).mount(self)

    @endpoint(
        "GET",
        "/console",
        Operation(
            "console",
            TAG,
            "Pages for operators",
            (Answer(200, "The page", {"text/html": STRING}),),
            errors=(errors.not_found(),),
            needs=(),
            details="Only where `server.console` allows it.",
        ),
        key="ignored",
        bearer="own",
    )
    async def page(self, request: Request) -> Reply:
        self._check(request)
        return self._current().by_path[_PAGE].reply(request, NO_STORE, *_PAGE_HEADERS)

    @endpoint(
        "GET",
        "/console/",
        Operation(
            "consoleWithSlash",
            TAG,
            "Leads to the page",
            (Answer(308, "Where it is", headers=LOCATION),),
            errors=(errors.not_found(),),
            needs=(),
        ),
        key="ignored",
        bearer="own",
    )
    async def with_slash(self, request: Request) -> Reply:
        """The addresses in the page are relative to its own."""
        self._check(request)
        return Reply(308, (request.location("/console"), NO_STORE))

    @endpoint(
        "GET",
        _ASSET,
        Operation(
            "consoleFile",
            TAG,
            "What the page loads",
            (Answer(200, "The file", {each.partition(";")[0]: STRING for each in sorted(_TYPES.values())}),),
            (
                Parameter("digest", "Changes with every file.", location="path", required=True),
                Parameter("name", "The path of the file.", location="path", required=True),
            ),
            errors=(errors.not_found(),),
            needs=(),
        ),
        key="ignored",
        bearer="own",
    )
    async def file(self, request: Request) -> Reply:
        self._check(request)
        digest, name, files = request.path_args["digest"], request.path_args["name"], self._files
        # What has that digest is what was asked for: only another one is a reason to look for changes.
        if files is None or files.digest != digest:
            files = self._current()
        found = files.by_path.get(name)
        # The page has headers of its own, and is at its own address alone.
        if found is None or name == _PAGE or files.digest != digest:
            raise errors.not_found()
        return found.reply(request, _FOR_EVER, *_SAFE)

    def _current(self) -> Files:
        if self._files is None or self._files.state != _state(self.folder):
            self._files = Files.read(self.folder)
        return self._files

    def _check(self, request: Request) -> None:
        """Raises ``not_found`` where the console is not to be seen."""
        if self.shown == "loopback" and not _from_here(request):
            raise errors.not_found()


def _from_here(request: Request) -> bool:
    """Whether the client is on this machine, and knows that it is: by the name in the address, since a proxy on this
    machine connects from here as well, and so does a browser that was told that a stranger's name is at 127.0.0.1."""
    try:
        here = ip_address(request.client_address).is_loopback
    except ValueError:  # a socket in the file system
        here = True
    return here and _LOOPBACK_NAME.match(request.host) is not None
