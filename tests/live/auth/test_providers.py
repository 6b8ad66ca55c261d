"""Signing in by a provider, on real sockets: the whole way, and what is refused if the provider or somebody on the
way lies."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import jwt
import orjson
import pytest
import pytest_twisted
import treq
from attrs import evolve, frozen
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from twisted.internet import reactor
from twisted.logger import formatEvent

from project_service import base64url
from project_service.auth.profiles import PRESETS, Preset
from project_service.auth.providers import CameBack, Identified, Providers, SentTo
from project_service.errors import ApiError
from project_service.outgoing import Documents, Outgoing
from project_service.settings import model
from tests.captured_log import captured_logs
from tests.live.auth.provider import Provider, provider
from tests.live.outgoing_server import ok

REDIRECT = "https://api.example.test/auth/v1/callback"
SENT = SentTo(REDIRECT, state="state-1", nonce="nonce-1", verifier="v" * 43)
clock: Any = reactor


class Clock:
    """The time, which a test may move forward."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@frozen
class Signing:
    """A provider under the name ``name``, and the client that knows it."""

    there: Provider
    providers: Providers
    clock: Clock
    name: str

    async def come_back(self, sent: SentTo = SENT) -> dict[str, str]:
        """Go where the client says, agree there, and return the parameters that one comes back with."""
        url = await self.providers.authorization_url(self.name, sent)
        response = await treq.get(url, allow_redirects=False, persistent=False)
        assert response.code == 302
        (location,) = response.headers.getRawHeaders("location")
        return {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}

    async def sign_in(self, **changes: Any) -> Identified:
        back = await self.come_back()
        assert back["state"] == "state-1"
        came = CameBack(REDIRECT, back["code"], SENT.nonce, SENT.verifier)
        return await self.providers.exchange(self.name, evolve(came, **changes))

    async def faults(self) -> list[str]:
        return await self.providers.faults(self.name, REDIRECT)

    async def refused(self, error: str, **changes: Any) -> str:
        """Why, for the one who signs in and for the operator; neither is told what is secret."""
        with captured_logs() as logs, pytest.raises(ApiError) as caught:
            await self.sign_in(**changes)
        assert caught.value.code == error, caught.value
        told = " ".join([caught.value.message, *(formatEvent(one) or "" for one in logs)])
        for secret in ("hush", "the-access-token", self.there.client_secret, "code-", "nonce-1", "v" * 43):
            assert secret not in told
        return told


@asynccontextmanager
async def signing(
    name: str = "keycloak", preset: Callable[[Provider], Preset] | None = None, **settings: Any
) -> AsyncIterator[Signing]:
    async with provider() as there:
        one = model.Provider(
            client_id=(there.client_id, "ios"), client_secret=model.Secret(there.client_secret)
        )
        if preset is None:
            one = evolve(one, issuer=there.url)
        one = evolve(one, **settings)
        auth = model.Auth(allow_private_hosts=True, providers={name: one})
        now = Clock()
        outgoing = Outgoing(clock, lambda: True)
        presets = {**PRESETS, **({} if preset is None else {name: preset(there)})}
        known = Providers(lambda: auth, outgoing, Documents(outgoing, now), now, presets)
        yield Signing(there, known, now, name)


@pytest_twisted.ensureDeferred
async def test_somebody_signs_in_by_openid_connect() -> None:
    async with signing() as one:
        found = await one.sign_in()
        profile = found.profile
        assert (profile.subject, profile.email, profile.is_verified) == ("person-1", "ada@example.test", True)
        assert profile.data["name"] == "Ada"
        assert (found.access_token, found.refresh_token) == ("the-access-token", "the-refresh-token")
        assert "the-" not in repr(found)
        # Documents are kept.
        await one.sign_in()
        assert one.there.asked.count("GET /keys") == 1


@pytest_twisted.ensureDeferred
async def test_the_address_to_go_to_has_state_nonce_and_challenge() -> None:
    async with signing(scopes=("groups", "email")) as one:
        extra = {
            "prompt": "consent",
            "state": "evil",
            "request_uri": "evil",
            "response_mode": "query",
            "redirect_uri": "https://evil/",
            "client_id": "evil",
        }
        url = await one.providers.authorization_url("keycloak", evolve(SENT, scopes=("more",), extra=extra))
        assert url.startswith(f"{one.there.url}/authorize?")
        query = parse_qs(urlsplit(url).query)
        challenge = base64url.encode(hashlib.sha256(b"v" * 43).digest())
        assert query == {
            "response_type": ["code"],
            "client_id": ["web"],
            "redirect_uri": [REDIRECT],
            "scope": ["openid email profile groups more"],
            "state": ["state-1"],
            "nonce": ["nonce-1"],
            "code_challenge": [challenge],
            "code_challenge_method": ["S256"],
            "prompt": ["consent"],
        }
        one.there.discovery["authorization_endpoint"] = f"{one.there.url}/authorize?tenant=a"
        one.clock.ahead = 100_000
        assert "/authorize?tenant=a&" in await one.providers.authorization_url("keycloak", SENT)


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    "methods", [["client_secret_post"], ["client_secret_basic", "client_secret_post"], None]
)
async def test_the_secret_is_sent_as_the_provider_understands_it(methods: list[str] | None) -> None:
    async with signing() as one:
        one.there.discovery["token_endpoint_auth_methods_supported"] = methods
        if methods is None:
            one.there.replaced["/.well-known/openid-configuration"] = ok(
                orjson.dumps(
                    {
                        name: value
                        for name, value in one.there._discovery().items()
                        if name != "token_endpoint_auth_methods_supported"
                    }
                )
            )
        assert (await one.sign_in()).profile.subject == "person-1"


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    ("lies", "why"),
    [
        ({"aud": "other"}, "it is for another application"),
        ({"aud": "ios"}, "it is for another application"),
        ({"azp": "other"}, "it was issued to another application"),
        ({"iss": "https://evil.example.test"}, "it is of another issuer"),
        ({"nonce": "another"}, "its nonce is another one"),
        ({"nonce": None}, "its nonce is another one"),
        ({"exp": 1}, "it has expired"),
        ({"iat": 9_999_999_999}, "it is not valid yet"),
        ({"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}, "it belongs to another access token"),
    ],
    ids=str,
)
async def test_an_id_token_with_a_wrong_claim_is_refused(lies: dict[str, Any], why: str) -> None:
    async with signing() as one:
        one.there.lies = lies
        assert why in await one.refused("invalid_id_token")


@pytest_twisted.ensureDeferred
async def test_an_id_token_that_is_not_signed_by_a_published_key_is_refused() -> None:
    async with signing() as one:
        there = one.there
        pem = there.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

        def shared(claims: Any) -> str:
            """HS256 with the public key as the secret."""
            head = base64url.encode(b'{"alg":"HS256","kid":"key-1"}')
            body = base64url.encode(orjson.dumps(dict(claims)))
            return f"{head}.{body}.{base64url.encode(hmac.digest(pem, f'{head}.{body}'.encode(), 'sha256'))}"

        stranger = ec.generate_private_key(ec.SECP256R1())
        for sign, why in (
            (
                lambda claims: jwt.encode(dict(claims), cast(Any, None), "none", {"kid": "key-1"}),
                "algorithm is not allowed",
            ),
            (shared, "algorithm is not allowed"),
            (
                lambda claims: jwt.encode(dict(claims), stranger, "ES256", {"kid": "key-1"}),
                "signature is wrong",
            ),
            (lambda claims: jwt.encode(dict(claims), stranger, "ES256", {"kid": "new"}), "does not publish"),
            (lambda claims: "not a token", "not a signed token"),
        ):
            there.sign = sign
            assert why in await one.refused("invalid_id_token")


@pytest_twisted.ensureDeferred
async def test_keys_are_read_anew_for_an_unknown_one_at_most_once_a_minute() -> None:
    async with signing() as one:
        await one.sign_in()
        one.there.rotate("key-2")
        assert "does not publish" in await one.refused("invalid_id_token")
        assert one.there.asked.count("GET /keys") == 1
        one.clock.ahead = 60
        assert (await one.sign_in()).profile.subject == "person-1"
        assert one.there.asked.count("GET /keys") == 2
        # Nobody can have them read any number of times.
        for number in range(5):
            text = jwt.encode({"iss": "x"}, one.there.key, "ES256", {"kid": f"none-{number}"})
            with pytest.raises(ApiError):
                await one.providers.by_id_token("keycloak", text)
        assert one.there.asked.count("GET /keys") == 2


@pytest_twisted.ensureDeferred
async def test_a_code_with_another_verifier_or_redirect_address_is_refused() -> None:
    async with signing() as one:
        assert "invalid_grant" in await one.refused("provider_refused", verifier="w" * 43)
        assert "invalid_grant" in await one.refused(
            "provider_refused", redirect_uri="https://evil.example.test/"
        )
        assert "invalid_grant" in await one.refused("provider_refused", code="code-99")
        assert "its nonce is another one" in await one.refused("invalid_id_token", nonce="nonce-2")


@pytest_twisted.ensureDeferred
async def test_a_wrong_secret_is_told_to_the_operator_alone() -> None:
    async with signing(client_secret=model.Secret("hush")) as one:
        told = await one.refused("provider_refused")
        assert "the provider keycloak refuses a code: invalid_client" in told


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    ("path", "reply", "why"),
    [
        ("/token", ok(b"hush", status="500 Oh"), "answered 500"),
        ("/token", ok(b"hush"), "answered 200 without JSON"),
        ("/token", ok(b'["hush"]'), "something else than a JSON object"),
        ("/token", ok(b"{}"), "does not say its access_token"),
        ("/token", ok(b'{"access_token": "hush"}'), "does not say its id_token"),
        ("/token", ok(b"", "Location: https://evil/hush", status="302 Found"), "answered 302"),
        ("/keys", ok(b"hush", status="404 No"), "answered 404"),
        ("/.well-known/openid-configuration", ok(b"{}"), "does not say its issuer"),
        ("/.well-known/openid-configuration", ok(b'{"issuer": "https://hush/"}'), "that of another issuer"),
    ],
)
async def test_a_provider_that_answers_what_cannot_be_used_is_unavailable(
    path: str, reply: bytes, why: str
) -> None:
    async with signing() as one:
        await one.sign_in()
        one.clock.ahead = 100_000
        one.there.lies = {"iat": int(one.clock()), "exp": int(one.clock()) + 60}
        code = (await one.come_back())["code"]
        one.clock.ahead = 200_000
        one.there.lies = {"iat": int(one.clock()), "exp": int(one.clock()) + 60}
        one.there.replaced[path] = reply
        with captured_logs() as logs, pytest.raises(ApiError) as caught:
            await one.providers.exchange("keycloak", CameBack(REDIRECT, code, SENT.nonce, SENT.verifier))
        assert (caught.value.status, caught.value.code) == (503, "provider_unavailable")
        assert why in str(logs) and "hush" not in str(logs)


@pytest_twisted.ensureDeferred
async def test_an_authorization_endpoint_must_be_an_address_for_browsers() -> None:
    for endpoint in ("javascript:alert(1)", "ftp://x/", "//x/", "https://me:hush@x/"):
        async with signing() as one:
            one.there.discovery["authorization_endpoint"] = endpoint
            with pytest.raises(ApiError) as caught:
                await one.providers.authorization_url("keycloak", SENT)
            assert caught.value.code == "provider_unavailable"


@pytest_twisted.ensureDeferred
async def test_userinfo_has_the_address_that_the_token_lacks_and_must_be_about_the_same_person() -> None:
    async with signing() as one:
        one.there.lies = {"email": None, "email_verified": None}
        profile = (await one.sign_in()).profile
        assert (profile.email, profile.is_verified) == ("ada@example.test", True)
        one.there.lies |= {"sub": "person-2"}
        assert "about somebody else" in await one.refused("provider_unavailable")


@pytest_twisted.ensureDeferred
async def test_an_unverified_address_is_said_to_be_that() -> None:
    async with signing() as one:
        one.there.person["email_verified"] = False
        assert not (await one.sign_in()).profile.is_verified


# ID tokens that an app brings.


@pytest_twisted.ensureDeferred
async def test_an_app_brings_an_id_token_for_any_client_id_with_its_nonce() -> None:
    async with signing() as one:
        hashed = hashlib.sha256(b"raw").hexdigest()
        for token, nonce in (
            (one.there.id_token(), None),
            (one.there.id_token(aud="ios"), None),
            (one.there.id_token(nonce=hashed), "raw"),
            (one.there.id_token(nonce="raw"), "raw"),
        ):
            assert (await one.providers.by_id_token("keycloak", token, nonce)).subject == "person-1"
        for token, nonce in (
            (one.there.id_token(aud="other"), None),
            (one.there.id_token(nonce=hashed), None),
            (one.there.id_token(), "raw"),
            (one.there.id_token(nonce=hashed), "other"),
            (one.there.id_token(exp=1), None),
        ):
            with pytest.raises(ApiError) as caught:
                await one.providers.by_id_token("keycloak", token, nonce)
            assert (caught.value.status, caught.value.code) == (400, "invalid_id_token")


@pytest_twisted.ensureDeferred
async def test_a_provider_that_is_not_configured_is_disabled() -> None:
    async with signing() as one:
        for call in (
            one.providers.authorization_url("google", SENT),
            one.providers.exchange("google", CameBack(REDIRECT, "x", "n", "v")),
            one.providers.by_id_token("google", "x"),
            one.providers.faults("google", REDIRECT),
        ):
            with pytest.raises(ApiError) as caught:
                await call
            assert (caught.value.status, caught.value.code) == (400, "provider_disabled")
    async with signing("github", lambda there: PRESETS["github"]) as one:
        with pytest.raises(ApiError) as caught:
            await one.providers.by_id_token("github", "x")
        assert caught.value.code == "invalid_id_token"


# Providers with ways of their own.


def here(name: str, **urls: str) -> Callable[[Provider], Preset]:
    """The preset of a provider, at the address of the one in the test. ``urls`` are the paths of profiles."""

    def made(there: Provider) -> Preset:
        return evolve(
            PRESETS[name],
            authorization_url=f"{there.url}/authorize",
            exchange_url=f"{there.url}/token",
            profile_urls={kind: f"{there.url}{path}" for kind, path in urls.items()},
        )

    return made


@pytest_twisted.ensureDeferred
async def test_github_is_asked_for_user_and_addresses() -> None:
    async with signing("github", here("github", user="/user", emails="/user/emails")) as one:
        one.there.tokens = {"id_token": None}
        one.there.documents = {
            "/user": {"id": 7, "login": "ada", "email": "public@example.test"},
            "/user/emails": [{"email": "ada@example.test", "primary": True, "verified": True}],
        }
        profile = (await one.sign_in()).profile
        assert (profile.subject, profile.email, profile.is_verified) == ("7", "ada@example.test", True)
        one.there.documents["/user/emails"][0]["verified"] = False
        assert not (await one.sign_in()).profile.is_verified
        # As GitHub refuses codes.
        one.there.replaced["/token"] = ok(b'{"error": "bad_verification_code", "error_description": "hush"}')
        assert "bad_verification_code" in await one.refused("provider_refused")
        del one.there.replaced["/token"], one.there.documents["/user/emails"]
        assert "answered 401 when it was asked" in await one.refused("provider_unavailable")


@pytest_twisted.ensureDeferred
async def test_twitch_is_told_the_client_and_facebook_that_we_know_the_secret() -> None:
    for name, document in (
        ("twitch", {"data": [{"id": "3"}]}),
        ("facebook", {"id": "3"}),
        ("discord", {"id": "3"}),
    ):
        async with signing(name, here(name, user="/me?fields=id")) as one:
            one.there.documents = {"/me": document}
            assert (await one.sign_in()).profile.subject == "3"
            asked = one.there.requests[-1]
            assert ("client-id: web" in asked.lower()) == (name == "twitch")
            proof = hmac.new(one.there.client_secret.encode(), b"the-access-token", "sha256").hexdigest()
            assert (f"&appsecret_proof={proof} HTTP" in asked) == (name == "facebook")


@pytest_twisted.ensureDeferred
async def test_x_takes_the_secret_as_basic_and_binds_codes() -> None:
    async with signing("x", here("x", user="/me")) as one:
        one.there.documents = {"/me": {"data": {"id": "4", "confirmed_email": "ada@example.test"}}}
        profile = (await one.sign_in()).profile
        assert (profile.subject, profile.is_verified) == ("4", True)
        assert "invalid_grant" in await one.refused("provider_refused", verifier="w" * 43)


@pytest_twisted.ensureDeferred
async def test_apple_gets_a_signed_secret_and_answers_by_a_form() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    signs: dict[str, Any] = {
        "client_secret": None,
        "team_id": "TEAM",
        "key_id": "KEY",
        "private_key_file": model.Secret(pem),
    }

    async with signing("apple", **signs) as one:
        one.there.discovery["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
        url = await one.providers.authorization_url("apple", SENT)
        query = parse_qs(urlsplit(url).query)
        assert (query["response_mode"], query["scope"]) == (["form_post"], ["openid email name"])
        back = await one.come_back()

        class Accepting(str):
            """Equal to any secret that Apple would take."""

            def __eq__(self, other: object) -> bool:
                claims = jwt.decode(
                    str(other), key.public_key(), algorithms=["ES256"], audience="https://appleid.apple.com"
                )
                header = jwt.get_unverified_header(str(other))
                return (claims["iss"], claims["sub"], header["kid"]) == ("TEAM", "web", "KEY")

            __hash__ = str.__hash__

        one.there.client_secret = Accepting()
        user = '{"name": {"firstName": "Ada", "lastName": "L"}, "email": "eve@example.test"}'
        found = await one.providers.exchange(
            "apple", CameBack(REDIRECT, back["code"], SENT.nonce, SENT.verifier, user)
        )
        assert (found.profile.data["name"], found.profile.email) == ("Ada L", "ada@example.test")
    async with signing("apple", **{**signs, "private_key_file": model.Secret("hush")}) as one:
        assert "no private key in PEM" in await one.refused("provider_unavailable")
        assert await one.faults() == ["private_key_file holds no private key in PEM without a password"]


@pytest_twisted.ensureDeferred
async def test_microsofts_endpoint_for_all_tenants_is_taken_with_the_tokens_tenant() -> None:
    tenant = "5e9e2f4c-0b5e-4c6b-9a63-2f7f1d1c0a11"
    async with signing("azure") as one:
        there = one.there
        settings = one.providers.settings()
        common = evolve(settings.providers["azure"], issuer=f"{there.url}/common/v2.0")
        one.providers.settings = lambda: evolve(settings, providers={"azure": common})
        form = f"{there.url}/{{tenantid}}/v2.0"
        there.replaced["/common/v2.0/.well-known/openid-configuration"] = ok(
            orjson.dumps({**there._discovery(), "issuer": form})
        )
        there.lies = {"iss": f"{there.url}/{tenant}/v2.0", "tid": tenant, "xms_edov": True}
        assert (await one.sign_in()).profile.is_verified
        there.lies |= {"tid": tenant.replace("5", "6")}
        assert "another issuer" in await one.refused("invalid_id_token")


# What an operator is told.


@pytest_twisted.ensureDeferred
async def test_what_is_wrong_with_a_provider_is_told() -> None:
    async with signing() as one:
        assert await one.faults() == []
        one.there.replaced["/keys"] = ok(b'{"keys": []}')
        one.clock.ahead = 100_000
        assert await one.faults() == ["it publishes no key that could sign an ID token"]
        one.there.discovery["issuer"] = "https://other.example.test"
        one.clock.ahead = 200_000
        assert await one.faults() == ["its discovery document is that of another issuer"]
    async with signing(client_secret=None) as one:
        assert await one.faults() == [
            "client_secret is missing, which most providers need for a code",
            "it does not take client_id and client_secret: invalid_client",
        ]
    async with signing(client_secret=model.Secret("hush")) as one:
        assert await one.faults() == ["it does not take client_id and client_secret: invalid_client"]
    async with signing(issuer="http://127.0.0.1:1/") as one:
        assert await one.faults() == ["127.0.0.1 cannot be connected to"]
    async with signing("github", here("github", user="/user")) as one:
        assert await one.faults() == []
        one.there.replaced["/token"] = ok(b'{"error": "incorrect_client_credentials"}')
        (fault,) = await one.faults()
        assert "incorrect_client_credentials" in fault
        one.there.replaced["/token"] = ok(b"hush", status="500 Oh")
        assert await one.faults() == ["127.0.0.1 answered 500"]
