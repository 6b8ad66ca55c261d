"""Signing in by a provider at ``/auth/v1``, whole: with a provider that can lie, and browsers that keep cookies."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urljoin, urlsplit

import jwt
from attrs import define, evolve, field

from project_service.auth.values import Factor, moment
from project_service.settings.model import Provider as ProviderSettings
from project_service.settings.model import Secret
from tests.fakes.common import Response, parse_response, raw_request
from tests.http.auth.app import NOW, PASSWORD, Answer
from tests.http.supabase.app import EMAIL, ClientApp, code_of, link_of
from tests.http.supabase.test_auth import OTHERS, Base, code
from tests.http.supabase.test_challenges import CALLBACK, CHALLENGE, HOSTILE, SITE, VERIFIER, claims_of
from tests.live.auth.provider import Provider

API = "https://api.example.test"
SIGN_IN = {"provider": "keycloak", "redirect_to": CALLBACK}
COOKIE = "__Host-project-service-sign-in"
TOKEN = {"provider": "keycloak", "id_token": "x"}
PKCE = {"code_challenge": CHALLENGE, "code_challenge_method": "s256"}


def settings_of(there: Provider) -> ProviderSettings:
    return ProviderSettings(
        client_id=(there.client_id, "ios"), client_secret=Secret(there.client_secret), issuer=there.url
    )


@define
class Browser:
    """Keeps the cookies of the service."""

    app: ClientApp
    cookies: dict[str, str] = field(factory=dict)

    def get(self, address: str, *, method: str = "GET", body: Any = None) -> Response:
        at = urlsplit(address)
        headers = {}
        if self.cookies and method == "GET":  # they are SameSite=Lax, and this comes from another site
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        raw = None if body is None else urlencode(body).encode()
        if raw is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        target = f"{at.path}?{at.query}" if at.query else at.path
        answer = self.app.app.connect("192.0.2.7").request(method, target, headers, raw)
        if set_cookie := answer.header("set-cookie"):
            name, _, value = set_cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
        return answer

    def begin(self, **parameters: str) -> str:
        """Where the browser comes back to, after it was at the provider."""
        answer = self.get(f"/auth/v1/authorize?{urlencode({**SIGN_IN, **parameters})}")
        assert answer.status == 302, answer.body
        return self.at_provider(answer)

    def at_provider(self, answer: Response) -> str:
        there = self.app.internet.ask("GET", str(answer.header("location")))
        assert there.status == 302
        return there.headers["location"]

    def sign_in(self, **parameters: str) -> tuple[str, dict[str, str]]:
        return landed(self.get(self.begin(**parameters)))


def landed(answer: Response) -> tuple[str, dict[str, str]]:
    """Where a redirect leads, without and with the parameters that were added to it."""
    assert answer.status == 303, (answer.status, answer.body)
    assert answer.header("cache-control") == "no-store"
    assert answer.header("referrer-policy") == "no-referrer"
    address, _, fragment = str(answer.header("location")).partition("#")
    before, _, query = address.partition("?")
    both = [*parse_qsl(query), *parse_qsl(fragment)]
    return before, {name: value for name, value in both if (name, value) != ("a", "b")}


def onward_from(url: str, page: Response) -> str:
    """Where the one link of the page at ``url`` leads."""
    (onward,) = re.findall(r'href="([^"]+)"', page.body.decode())
    return urljoin(url, html.unescape(onward))


class ByProvider(Base):
    def setUp(self) -> None:
        self.start()

    def start(self, public_url: str | None = API, **auth: Any) -> None:
        self.there, self.other = [Provider(f"https://id{n}.example.test", now=lambda: NOW) for n in (1, 2)]
        known = {"keycloak": settings_of(self.there), "gitlab": settings_of(self.other)}
        given = {
            "site_url": SITE,
            "redirect_urls": ("https://app.example.test/welcome/",),
            "providers": known,
        }
        self.app = ClientApp(self, public_url, **{**given, **auth})
        self.app.internet.servers |= {one.url: one.answer for one in (self.there, self.other)}
        self.browser = Browser(self.app)

    def me(self, session: Any) -> Any:
        answer = self.app.ask("GET", "/user", token=session["access_token"])
        assert answer.status == 200, answer.body
        return answer.body

    def providers_of(self, session: Any) -> list[str]:
        return [one["provider"] for one in self.me(session)["identities"]]

    def by_token(self, token: str, bearer: Any = None, **body: Any) -> Answer:
        given = {"provider": "keycloak", "id_token": token, "gotrue_meta_security": {}, **body}
        more = {} if bearer is None else {"token": bearer["access_token"]}
        return self.app.ask("POST", "/token?grant_type=id_token", given, **more)


class ByRedirect(ByProvider):
    def test_a_session_is_in_the_fragment(self) -> None:
        answer = self.browser.get(self.browser.begin())
        assert str(answer.header("location")).startswith(f"{CALLBACK}#")
        _, session = landed(answer)
        assert (session["token_type"], session["expires_in"]) == ("bearer", "3600")
        assert session["provider_token"] == "the-access-token"
        assert session["provider_refresh_token"] == "the-refresh-token"
        user = self.me(session)
        assert (user["email"], user["app_metadata"]["provider"]) == (EMAIL, "keycloak")
        assert user["user_metadata"]["name"] == "Ada"
        assert user["identities"][0]["identity_data"]["sub"] == "person-1"
        assert user["email_confirmed_at"]
        assert claims_of(session)["amr"] == [{"method": "oauth", "timestamp": int(NOW)}]
        grown = {"refresh_token": session["refresh_token"]}
        assert self.app.ask("POST", "/token?grant_type=refresh_token", grown).status == 200
        _, again = self.browser.sign_in()
        assert self.me(again)["id"] == user["id"]
        assert len(self.app.repository.accounts) == 1

    def test_with_a_code_challenge_a_code_is_in_the_query(self) -> None:
        answer = self.browser.get(self.browser.begin(**PKCE))
        assert "#" not in str(answer.header("location"))
        _, told = landed(answer)
        assert set(told) == {"code"}
        # The provider's tokens are not in the database as they are.
        assert "the-access-token" not in str([one.data for one in self.app.repository.challenges])
        body = {"auth_code": told["code"], "code_verifier": VERIFIER}
        session = self.app.ask("POST", "/token?grant_type=pkce", body).body
        assert session["provider_token"] == "the-access-token"
        assert session["provider_refresh_token"] == "the-refresh-token"
        assert claims_of(session)["amr"][0]["method"] == "oauth"
        assert self.me(session)["email"] == EMAIL

    def test_the_provider_is_asked_for_what_the_client_wants(self) -> None:
        wanted = {
            "scopes": "calendar, mail",
            "prompt": "consent",
            "state": "x",
            "redirect_uri": "https://evil.test",
        }
        parameters = urlencode({**SIGN_IN, **wanted})
        location = str(self.browser.get(f"/auth/v1/authorize?{parameters}").header("location"))
        assert location.startswith(f"{self.there.url}/authorize?")
        query = parse_qs(urlsplit(location).query)
        assert query["scope"] == ["openid email profile calendar mail"]
        assert query["prompt"] == ["consent"]
        assert query["redirect_uri"] == [f"{API}/auth/v1/callback"]
        assert query["state"] != ["x"] and len(query["state"]) == 1
        assert not {"provider", "redirect_to", "scopes"} & set(query)

    def test_the_cookie_is_for_this_host_and_not_for_scripts(self) -> None:
        path = f"/auth/v1/authorize?{urlencode(SIGN_IN)}"
        for public_url, name, secure in ((API, COOKIE, True), ("http://localhost:8080", COOKIE[7:], False)):
            self.start(public_url)
            cookie = str(self.browser.get(path).header("set-cookie"))
            assert re.match(rf"{name}=[\w-]{{43}}; Path=/; Max-Age=600; HttpOnly; SameSite=Lax", cookie)
            assert cookie.endswith("; Secure") is secure
            assert "Domain" not in cookie
            assert "access_token" in self.browser.sign_in()[1]

    def test_what_one_host_begins_another_finishes(self) -> None:
        back = self.browser.begin()
        elsewhere = Browser(self.app.another_host(), self.browser.cookies)
        assert "access_token" in landed(elsewhere.get(back))[1]
        assert landed(self.browser.get(back))[1]["error_code"] == "bad_oauth_state"

    def test_two_tabs_sign_in_at_once(self) -> None:
        first, second = self.browser.begin(), self.browser.begin()
        for one in (first, second):
            assert "access_token" in landed(self.browser.get(one))[1]

    def test_a_form_from_another_site_is_carried_on_to_where_the_cookie_is(self) -> None:
        """Apple posts, and the browser does not send a cookie with SameSite=Lax then."""
        back = urlsplit(self.browser.begin())
        fields = {
            **dict(parse_qsl(back.query)),
            "id_token": "not needed",
            "user": '{"name":{"firstName":"Ada"}}',
        }
        answer = self.browser.get(back.path, method="POST", body=fields)
        assert answer.status == 303
        onward = urljoin(back.path, str(answer.header("location")))
        assert onward.partition("?")[0] == "/auth/v1/callback"
        assert "id_token" not in onward and "firstName" in onward
        assert self.browser.get(back.path, method="POST", body={"code": "x"}).status == 400
        assert "access_token" in landed(self.browser.get(onward))[1]

    def test_what_goes_wrong_is_told_to_the_application(self) -> None:
        def failed(**parameters: str) -> tuple[str, dict[str, str]]:
            return landed(self.browser.get(self.browser.begin(**parameters)))

        back = self.browser.begin().partition("?")
        state = dict(parse_qsl(back[2]))["state"]
        denied = urlencode({"error": "access_denied", "error_description": "<b>", "state": state})
        address, told = landed(self.browser.get(f"{back[0]}?{denied}"))
        assert (address, told["error"], told["error_code"]) == (
            CALLBACK.partition("?")[0],
            "access_denied",
            "access_denied",
        )
        assert "<b>" not in told["error_description"]
        self.there.tokens = {"id_token": "x"}
        answer = self.browser.get(self.browser.begin(**PKCE))
        assert "#" not in str(answer.header("location"))
        assert landed(answer)[1]["error_code"] == "invalid_id_token"
        answer = self.browser.get(self.browser.begin())
        assert f"{CALLBACK}#" in str(answer.header("location"))
        self.there.tokens = {}
        self.there.replaced["/token"] = b"HTTP/1.1 500 No\r\n\r\n"
        assert failed()[1] | {"error_description": ""} == {
            **{"error": "server_error", "error_code": "unexpected_failure", "error_description": ""}
        }
        del self.app.internet.servers[self.there.url]
        self.app.clock.advance(24 * 3600)
        answer = self.browser.get(f"/auth/v1/authorize?{urlencode(SIGN_IN)}")
        assert landed(answer)[1]["error_code"] == "unexpected_failure"

    def test_what_cannot_begin_is_refused(self) -> None:
        for wrong, refusal in (
            ({"provider": "github"}, (400, "provider_disabled")),
            ({"provider": ""}, (400, "validation_failed")),
            ({"code_challenge": "x" * 129}, (400, "validation_failed")),
            ({"code_challenge": "x", "code_challenge_method": "md5"}, (400, "validation_failed")),
            ({"prompt": "\0"}, (400, "validation_failed")),
        ):
            path = f"/authorize?{urlencode({**SIGN_IN, **wrong})}"
            assert code(self.app.ask("GET", path)) == refusal, wrong
        self.app.reload(site_url=None)
        path = f"/authorize?{urlencode({**SIGN_IN, 'redirect_to': 'https://evil.test/'})}"
        assert code(self.app.ask("GET", path)) == (400, "validation_failed")
        self.start(None)
        path = f"/authorize?{urlencode(SIGN_IN)}"
        # Nobody could come back to what a header says.
        for host, status in (("evil.test", 503), ("localhost:8080", 302)):
            client = self.app.app.connect()
            raw = raw_request("GET", f"/auth/v1{path}", {}, None)
            client.send(raw.replace(b"Host: api.example.test", f"Host: {host}".encode()))
            assert parse_response(client.received()).status == status

    def test_no_key_is_needed(self) -> None:
        self.start(require_project_key=True)
        assert "access_token" in self.browser.sign_in()[1]

    def test_it_is_limited_by_address(self) -> None:
        self.app.reload(oauth_max_per_address=2)
        self.browser.begin()
        assert self.by_token(self.there.id_token()).status == 200
        path = f"/authorize?{urlencode(SIGN_IN)}"
        for answer in (self.app.ask("GET", path), self.by_token(self.there.id_token())):
            assert code(answer) == (429, "over_request_rate_limit")

    def test_settings_say_which_there_are(self) -> None:
        external = self.app.ask("GET", "/settings").body["external"]
        assert (external["keycloak"], external["gitlab"], external["github"]) == (True, True, False)

    def test_who_is_new_needs_signing_up_to_be_allowed(self) -> None:
        self.app.reload(allow_signup=False)
        assert self.browser.sign_in()[1]["error_code"] == "signup_disabled"
        assert self.app.repository.accounts == {}
        self.app.reload(allow_signup=True)
        self.browser.sign_in()
        self.app.reload(allow_signup=False)
        assert "access_token" in self.browser.sign_in()[1]

    def test_a_disabled_user_stays_out(self) -> None:
        user = self.me(self.browser.sign_in()[1])
        assert self.app.operate("PUT", f"/{user['id']}", {"ban_duration": "24h"}).status == 200
        assert self.browser.sign_in()[1]["error_code"] == "user_banned"

    def test_an_address_that_the_provider_has_not_checked_is_confirmed_by_mail(self) -> None:
        self.app.reload(confirm_email=True)
        self.there.person["email_verified"] = False
        assert self.browser.sign_in()[1]["error_code"] == "provider_email_needs_verification"
        (mail,) = self.app.mails
        assert (mail.recipient, "type=signup" in link_of(mail)) == (EMAIL, True)
        assert self.app.repository.session_rows == {}
        verified = self.app.ask("POST", "/verify", {"type": "email", "email": EMAIL, "token": code_of(mail)})
        assert verified.status == 200
        _, session = self.browser.sign_in()
        assert self.me(session)["id"] == verified.body["user"]["id"]

    def test_somebody_without_an_address_gets_an_account(self) -> None:
        del self.there.person["email"]
        _, session = self.browser.sign_in()
        user = self.me(session)
        assert (user["email"], user["is_anonymous"]) == ("", False)
        assert claims_of(session)["email"] == ""


class ByIdToken(ByProvider):
    def test_an_app_brings_it(self) -> None:
        session = self.by_token(self.there.id_token(aud="ios")).body
        assert self.me(session)["email"] == EMAIL
        assert claims_of(session)["amr"][0]["method"] == "oauth"
        assert "provider_token" not in session
        assert self.me(self.browser.sign_in()[1])["id"] == session["user"]["id"]

    def test_its_nonce_is_the_one_that_the_app_asked_with(self) -> None:
        token = self.there.id_token("nonce")
        assert self.by_token(token, nonce="nonce").status == 200
        for more in ({}, {"nonce": "another"}):
            assert code(self.by_token(token, **more)) == (400, "invalid_id_token")

    def test_lies_prove_nothing(self) -> None:
        unsigned = jwt.encode({"sub": "person-1"}, "", "none")
        stranger = Provider(self.there.url, now=lambda: NOW)
        for token in (
            self.there.id_token(aud="another"),
            self.there.id_token(iss="https://evil.test"),
            self.there.id_token(exp=int(NOW) - 61),
            self.there.id_token(azp="another"),
            self.there.id_token(sub=None),
            stranger.id_token(),
            evolve(stranger, kid="key-2").id_token(),
            self.other.id_token(),
            unsigned,
            "x",
        ):
            assert code(self.by_token(token)) == (400, "invalid_id_token"), token
        assert self.app.repository.accounts == {}

    def test_what_nobody_signed_is_refused_without_asking_the_provider(self) -> None:
        good = self.there.id_token()
        self.app.internet.servers.clear()
        answer = self.by_token("x")
        assert code(answer) == (400, "invalid_id_token")
        assert answer.body["message"] == "Bad ID token: it is not a signed token."
        assert code(self.by_token(good))[0] == 503

    def test_what_it_needs(self) -> None:
        assert code(self.by_token("")) == (400, "validation_failed")
        assert code(self.by_token("x", provider="github")) == (400, "provider_disabled")


class Takeover(ByProvider):
    """Rules that keep strangers out of somebody's account."""

    def test_an_unverified_address_joins_nothing(self) -> None:
        self.app.begin_session()
        self.there.person["email_verified"] = False
        _, told = self.browser.sign_in()
        assert (told["error"], told["error_code"]) == ("access_denied", "email_exists")
        assert code(self.by_token(self.there.id_token())) == (422, "email_exists")
        assert self.app.repository.identities == []

    def test_pre_hijacking_leaves_the_first_password_and_all_sessions_void(self) -> None:
        hijackers = self.app.begin_session()
        _, session = self.browser.sign_in()
        assert self.me(session)["id"] == hijackers["user"]["id"]
        assert code(self.app.again()) == (400, "invalid_credentials")
        assert code(self.app.ask("GET", "/user", token=hijackers["access_token"]))[0] == 403
        grown = {"refresh_token": hijackers["refresh_token"]}
        assert self.app.ask("POST", "/token?grant_type=refresh_token", grown).status == 400

    def test_whoever_has_confirmed_their_address_keeps_password_and_sessions(self) -> None:
        own = self.app.begin_session()
        self.app.operate("PUT", f"/{own['user']['id']}", {"email_confirm": True})
        assert self.me(self.browser.sign_in()[1])["id"] == own["user"]["id"]
        assert self.app.again().status == 200
        assert self.me(own)["identities"][1]["provider"] == "keycloak"

    def test_a_state_is_bound_to_the_browser(self) -> None:
        """Whoever is led to the callback of somebody else would be signed in as that one."""
        back = self.browser.begin()
        for stranger in (Browser(self.app), Browser(self.app, {COOKIE: "x" * 43})):
            address, told = landed(stranger.get(back))
            assert (address, told["error_code"]) == (SITE, "bad_oauth_state")
        other = Browser(self.app)
        other.begin()
        assert landed(other.get(back))[1]["error_code"] == "bad_oauth_state"
        assert self.app.repository.accounts == {}
        assert "access_token" in landed(self.browser.get(back))[1]

    def test_a_state_is_used_once_and_for_minutes(self) -> None:
        back = self.browser.begin()
        assert "access_token" in landed(self.browser.get(back))[1]
        assert landed(self.browser.get(back))[1]["error_code"] == "bad_oauth_state"
        back = self.browser.begin()
        self.app.clock.advance(600)
        assert landed(self.browser.get(back))[1]["error_code"] == "bad_oauth_state"
        for wrong in ("", "state=x", "code=x", f"code=x&state={'x' * 43}", "error=x&state=%ff"):
            answer = self.browser.get(f"/auth/v1/callback?{wrong}")
            assert answer.status in (303, 400)

    def test_a_state_is_bound_to_its_provider(self) -> None:
        """A code of another provider, which may be hostile, is not taken as one of this."""
        back = urlsplit(self.browser.begin())
        elsewhere = self.browser.begin(provider="gitlab")
        state = dict(parse_qsl(back.query))["state"]
        foreign = dict(parse_qsl(urlsplit(elsewhere).query))["code"]
        self.other.person = {**self.other.person, "sub": "evil"}
        mixed = urlencode({"code": f"{foreign}-", "state": state})
        _, told = landed(self.browser.get(f"{back.path}?{mixed}"))
        assert told["error_code"] == "bad_oauth_callback"
        assert not [one for one in self.other.asked if one == "POST /token"]

    def test_a_code_of_the_provider_is_bound_to_who_began(self) -> None:
        """Somebody else's code, which was stolen, is bound to their verifier and nonce."""
        stolen = dict(parse_qsl(urlsplit(Browser(self.app).begin()).query))["code"]
        state = dict(parse_qsl(urlsplit(self.browser.begin()).query))["state"]
        mixed = urlencode({"code": stolen, "state": state})
        assert landed(self.browser.get(f"/auth/v1/callback?{mixed}"))[1]["error_code"] == "bad_oauth_callback"
        self.there.lies = {"nonce": "another"}
        assert self.browser.sign_in()[1]["error_code"] == "invalid_id_token"

    def test_a_stolen_code_of_ours_is_good_for_nothing(self) -> None:
        _, told = self.browser.sign_in(**PKCE)
        stolen = {"auth_code": told["code"], "code_verifier": "w" * 56}
        assert code(self.app.ask("POST", "/token?grant_type=pkce", stolen)) == (400, "bad_code_verifier")
        own = {**stolen, "code_verifier": VERIFIER}
        assert self.app.ask("POST", "/token?grant_type=pkce", own).status == 200
        assert code(self.app.ask("POST", "/token?grant_type=pkce", own)) == (404, "flow_state_not_found")

    def test_redirect_to_never_leads_elsewhere(self) -> None:
        for wrong in HOSTILE:
            address, told = self.browser.sign_in(redirect_to=wrong)
            assert (address, "access_token" in told) == (SITE, True), wrong
            back = self.browser.begin(redirect_to=wrong)
            failed = f"{back.partition('?')[0]}?{urlencode({'error': 'x', 'state': 'y'})}"
            more = urlencode({"redirect_to": wrong})
            assert landed(self.browser.get(f"{failed}&{more}"))[0] == SITE
        answer = self.browser.get(f"/auth/v1/callback?redirect_to=https://evil.test/&state={'x' * 43}")
        assert landed(answer)[0] == SITE


class Linking(ByProvider):
    def setUp(self) -> None:
        self.start(manual_linking=True)
        self.session = self.app.begin_session()
        self.there.person |= {"sub": "person-2", "email": OTHERS}

    def offered(self, session: Any = None, **parameters: str) -> str:
        query = urlencode({**SIGN_IN, "skip_http_redirect": "true", **parameters})
        token = (session or self.session)["access_token"]
        answer = self.app.ask("GET", f"/user/identities/authorize?{query}", token=token)
        assert answer.status == 200, answer.body
        return str(answer.body["url"])

    def accept(self, url: str, browser: Browser) -> Response:
        """What comes of opening the page and going on."""
        page = browser.get(url)
        assert page.status == 200, page.body
        return browser.get(browser.at_provider(browser.get(onward_from(url, page))))

    def test_an_account_with_a_provider_is_added(self) -> None:
        url = self.offered()
        assert url.startswith(f"{API}/auth/v1/authorize?link=")
        _, session = landed(self.accept(url, self.browser))
        user = self.me(session)
        assert (user["id"], user["email"]) == (self.session["user"]["id"], EMAIL)
        assert self.providers_of(session) == ["email", "keycloak"]
        assert self.me(self.browser.sign_in()[1])["id"] == user["id"]
        assert (
            landed(self.accept(self.offered(**PKCE), self.browser))[1]["error_code"]
            == "identity_already_exists"
        )

    def test_by_an_id_token(self) -> None:
        answer = self.by_token(self.there.id_token(), self.session, link_identity=True)
        assert answer.status == 200, answer.body
        assert answer.body["user"]["id"] == self.session["user"]["id"]
        assert self.providers_of(answer.body) == ["email", "keycloak"]
        nobody = self.by_token(self.there.id_token(), link_identity=True)
        assert code(nobody) == (403, "bad_jwt")
        without = self.app.call(
            "POST", "/auth/v1/token?grant_type=id_token", {**TOKEN, "link_identity": True}
        )
        assert without.status == 401
        self.app.reload(manual_linking=False)
        answer = self.by_token(self.there.id_token(), self.session, link_identity=True)
        assert code(answer) == (404, "manual_linking_disabled")

    def test_without_skip_http_redirect_it_leads_there(self) -> None:
        path = f"/user/identities/authorize?{urlencode(SIGN_IN)}"
        answer = self.app.ask("GET", path, token=self.session["access_token"])
        assert answer.status == 302
        assert str(answer.response.header("location")).startswith(f"{API}/auth/v1/authorize?link=")

    def test_somebody_anonymous_becomes_a_user(self) -> None:
        self.app.reload(anonymous_users=True)
        guest = self.app.ask("POST", "/signup", {"data": {}}).body
        _, session = landed(self.accept(self.offered(guest), self.browser))
        user = self.me(session)
        assert (user["id"], user["email"], user["is_anonymous"]) == (guest["user"]["id"], OTHERS, False)

    def test_somebody_elses_identity_is_not_added_without_their_will(self) -> None:
        """The page says to which account, and only it can go on: neither a link to it, nor another page."""
        url, victim = self.offered(), Browser(self.app)
        page = victim.get(url)
        assert f"{EMAIL}?" in page.body.decode()
        assert "form-action" in str(page.header("content-security-policy"))
        assert "frame-ancestors 'none'" in str(page.header("content-security-policy"))
        # The way on that the one who has begun got does not work for anybody else.
        assert victim.get(onward_from(url, self.browser.get(url))).status == 200
        assert victim.get(f"{url}&proof=x").status == 200
        assert self.there.asked == []
        assert self.app.repository.identities == []

    def test_an_identity_of_somebody_else_is_not_taken(self) -> None:
        owner = self.browser.sign_in()[1]
        _, told = landed(self.accept(self.offered(), self.browser))
        assert told["error_code"] == "identity_already_exists"
        assert self.me(self.browser.sign_in()[1])["id"] == self.me(owner)["id"]

    def test_it_ends_with_the_session_that_began_it(self) -> None:
        url = self.offered()
        self.app.ask("POST", "/logout", token=self.session["access_token"])
        assert landed(self.accept(url, self.browser))[1]["error_code"] == "session_not_found"
        assert self.app.repository.identities == []

    def test_an_offer_is_good_once_and_for_minutes(self) -> None:
        url = self.offered()
        self.accept(url, self.browser)
        assert self.browser.get(url).status == 400
        url = self.offered()
        self.app.clock.advance(600)
        assert self.browser.get(url).status == 400
        assert self.browser.get("/auth/v1/authorize?link=x").status == 400

    def test_unlinking_leaves_a_way_in(self) -> None:
        session = landed(self.accept(self.offered(), self.browser))[1]
        by_email, by_provider = [one["identity_id"] for one in self.me(session)["identities"]]

        def delete(key: str, of: Any = session) -> Answer:
            return self.app.ask("DELETE", f"/user/identities/{key}", token=of["access_token"])

        assert code(delete(by_email)) == (422, "email_conflict_identity_not_deletable")
        stranger = self.app.begin_session("eve@example.test")
        assert code(delete(by_provider, stranger)) == (404, "identity_not_found")
        assert code(delete("x")) == (404, "identity_not_found")
        assert delete(by_provider).body == {}
        assert self.providers_of(session) == ["email"]
        assert code(delete(by_email)) == (422, "single_identity_not_deletable")
        # Whoever comes by it now is somebody else.
        assert self.me(self.browser.sign_in()[1])["id"] != self.session["user"]["id"]
        assert self.app.again(password=PASSWORD).status == 200

    def test_whoever_has_a_factor_needs_it_to_change_identities(self) -> None:
        user_id, token = self.session["user"]["id"], self.session["access_token"]
        factor = Factor("f", user_id, "phone", "totp", True, moment(NOW), moment(NOW))
        self.app.repository.factors["f"] = factor
        for method, path in (
            ("GET", f"/user/identities/authorize?{urlencode(SIGN_IN)}"),
            ("DELETE", f"/user/identities/{self.session['user']['identities'][0]['identity_id']}"),
        ):
            assert code(self.app.ask(method, path, token=token)) == (403, "insufficient_aal")
        answer = self.by_token(self.there.id_token(), self.session, link_identity=True)
        assert code(answer) == (403, "insufficient_aal")
        # An account with a provider does not stand for the factor.
        self.app.operate("PUT", f"/{user_id}", {"email_confirm": True})
        self.there.person["email"] = EMAIL
        assert claims_of(self.browser.sign_in()[1])["aal"] == "aal1"

    def test_an_operator_has_to_allow_it(self) -> None:
        self.app.reload(manual_linking=False)
        token = self.session["access_token"]
        for method, path in (("GET", "authorize?provider=keycloak"), ("DELETE", "1")):
            answer = self.app.ask(method, f"/user/identities/{path}", token=token)
            assert code(answer) == (404, "manual_linking_disabled")
