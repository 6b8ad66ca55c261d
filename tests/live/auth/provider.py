"""A provider of identities in the test's process: discovery, keys, authorization, token and userinfo endpoints on
loopback. It keeps to the rules, and each part of what it says can be replaced, so that it lies."""

from __future__ import annotations

import hashlib
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import jwt
import orjson
from attrs import define, field
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from project_service import base64url
from tests.live.outgoing_server import Server, ok, outgoing_server

JSON = "Content-Type: application/json"


@define(eq=False)
class Provider:
    """``person`` has the claims of whoever is signed in there. ``documents`` are other paths that an access token
    opens. What lies: ``lies`` replaces claims of the ID token (None leaves one out), ``discovery`` and ``tokens``
    members of these documents, and ``sign`` makes the ID token of its claims."""

    url: str = ""
    client_id: str = "web"
    client_secret: str = "its:secret+/"
    person: dict[str, Any] = field(
        factory=lambda: {
            "sub": "person-1",
            "email": "ada@example.test",
            "email_verified": True,
            "name": "Ada",
        }
    )
    documents: dict[str, Any] = field(factory=dict)
    lies: dict[str, Any] = field(factory=dict)
    discovery: dict[str, Any] = field(factory=dict)
    tokens: dict[str, Any] = field(factory=dict)
    sign: Callable[[Mapping[str, Any]], str] | None = None
    now: Callable[[], float] = time.time
    # Sends people back with a form, as Apple does.
    posts: bool = False
    key: Any = field(factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    kid: str = "key-1"
    # What is sent in place of what a path has.
    replaced: dict[str, bytes] = field(factory=dict)
    # Paths that were asked for, in turn, and whole requests.
    asked: list[str] = field(factory=list)
    requests: list[str] = field(factory=list)
    _codes: dict[str, dict[str, str]] = field(factory=dict)

    @property
    def issuer(self) -> str:
        return self.url

    def rotate(self, kid: str) -> None:
        """Another key signs from now on, and is the only one that is published."""
        self.key, self.kid = ec.generate_private_key(ec.SECP256R1()), kid

    def id_token(self, nonce: str | None = None, **lies: Any) -> str:
        """An ID token about ``person`` for the client."""
        now = int(self.now())
        claims = {
            "iss": self.issuer,
            "aud": self.client_id,
            "iat": now,
            "exp": now + 600,
            "nonce": nonce,
            **self.person,
            **self.lies,
            **lies,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        if self.sign is not None:
            return self.sign(claims)
        return jwt.encode(claims, self.key, "ES256", {"kid": self.kid})

    def answer(self, request: bytes, transport: Any) -> None:
        self.requests.append(request.decode("latin-1"))
        head, _, body = request.partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ")
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
        path, query = urlsplit(target).path, dict(parse_qsl(urlsplit(target).query))
        self.asked.append(f"{method} {path}")
        transport.write(self.replaced.get(path) or self._reply(path, query, headers, body.decode()))
        transport.loseConnection()

    def _reply(self, path: str, query: dict[str, str], headers: dict[str, str], body: str) -> bytes:
        match path:
            case "/.well-known/openid-configuration":
                return _json(self._discovery())
            case "/keys":
                jwk = ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
                return _json(
                    {"keys": [{**jwk, "kid": self.kid, "use": "sig"}]}, "Cache-Control: max-age=3600"
                )
            case "/authorize":
                return self._authorize(query)
            case "/token":
                return self._token(headers, dict(parse_qsl(body, keep_blank_values=True)))
            case _:
                known = {"/userinfo": self.person, **self.documents}
                if path in known and headers.get("authorization") == "Bearer the-access-token":
                    return _json(known[path])
                return ok(b"{}", JSON, status="401 Unauthorized")

    def _discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            **self.discovery,
        }

    def _authorize(self, query: dict[str, str]) -> bytes:
        """Whoever comes is ``person``, and agrees."""
        code = f"code-{len(self.asked)}"
        self._codes[code] = query
        fields = {"code": code, "state": query["state"]}
        if self.posts:
            inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
            form = f'<form method=post action="{query["redirect_uri"]}">{inputs}</form>'
            page = f"<!doctype html>{form}<script>document.forms[0].submit()</script>"
            return ok(page.encode(), "Content-Type: text/html")
        back = f"{query['redirect_uri']}?{urlencode(fields)}"
        return ok(b"", f"Location: {back}", status="302 Found")

    def _token(self, headers: dict[str, str], form: dict[str, str]) -> bytes:
        if headers.get("authorization", "").startswith("Basic "):
            pair = b64decode(headers["authorization"].removeprefix("Basic ")).decode()
            client, secret = (unquote_plus(one) for one in pair.split(":"))
        else:
            client, secret = form.get("client_id", ""), form.get("client_secret", "")
        if (client, secret) != (self.client_id, self.client_secret):
            return _error("invalid_client", 401)
        given = self._codes.pop(form["code"], {})
        challenge = base64url.encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        if (
            given.get("redirect_uri") != form.get("redirect_uri")
            or given.get("client_id") != client
            or given.get("code_challenge", challenge) != challenge
        ):
            return _error("invalid_grant", 400)
        made = {
            "access_token": "the-access-token",
            "token_type": "Bearer",
            "refresh_token": "the-refresh-token",
            "id_token": self.id_token(given.get("nonce")),
            **self.tokens,
        }
        return _json({name: value for name, value in made.items() if value is not None})


def _json(value: Any, *headers: str) -> bytes:
    return ok(orjson.dumps(value), JSON, *headers)


def _error(code: str, status: int) -> bytes:
    return ok(orjson.dumps({"error": code, "error_description": "hush-hush"}), JSON, status=f"{status} No")


@asynccontextmanager
async def provider() -> AsyncIterator[Provider]:
    """A provider that runs as long as the block lasts."""
    made = Provider()
    server: Server
    async with outgoing_server(made.answer) as server:
        made.url = f"http://127.0.0.1:{server.port}"
        yield made
