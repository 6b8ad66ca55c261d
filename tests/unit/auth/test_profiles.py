"""What providers say of somebody, as a profile."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.auth.profiles import (
    PRESETS,
    SUBJECT_MAX_CHARACTERS,
    NoProfile,
    Profile,
    from_claims,
    with_apples_name,
)
from project_service.settings.model import KNOWN_PROVIDERS

CLAIMS = {"iss": "https://id.example.com", "sub": "1", "email": "Ada@Example.test", "email_verified": True}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def read(name: str, **documents: Any) -> Profile:
    reader = PRESETS[name].read
    assert reader is not None
    return reader(documents)


class Claims(TestCase):
    def test_a_profile_has_what_clients_show_of_an_identity(self) -> None:
        claims = {
            **CLAIMS,
            "name": "Ada L",
            "picture": "https://p/1",
            "preferred_username": "ada",
            "groups": ["a"],
        }
        profile = from_claims("keycloak", {**claims, "aud": "x", "exp": 1, "nonce": "n"})
        self.assertEqual(
            (profile.subject, profile.email, profile.is_verified), ("1", "Ada@example.test", True)
        )
        self.assertEqual(
            profile.data,
            {
                "iss": "https://id.example.com",
                "sub": "1",
                "provider_id": "1",
                "name": "Ada L",
                "full_name": "Ada L",
                "picture": "https://p/1",
                "avatar_url": "https://p/1",
                "preferred_username": "ada",
                "email": "Ada@example.test",
                "email_verified": True,
                "phone_verified": False,
                "custom_claims": {"groups": ["a"]},
            },
        )

    def test_an_address_is_verified_only_if_the_provider_says_so(self) -> None:
        for said, verified in ((True, True), ("true", True), (False, False), ("false", False), (None, False)):
            for name in ("google", "apple", "keycloak", "gitlab", "slack_oidc", "linkedin_oidc"):
                profile = from_claims(name, {**CLAIMS, "email_verified": said})
                self.assertEqual((profile.is_verified, profile.data["email_verified"]), (verified, verified))
        odd: list[Any] = ["yes", [], {}, 2, [True]]
        for value in odd:
            self.assertFalse(from_claims("google", {**CLAIMS, "email_verified": value}).is_verified)
        self.assertFalse(from_claims("google", {**CLAIMS, "email": None}).is_verified)

    def test_microsofts_address_is_what_any_administrator_entered(self) -> None:
        """Unless the tenant is that of personal accounts, or owns the domain."""
        tenant = {"tid": "5e9e2f4c-0b5e-4c6b-9a63-2f7f1d1c0a11"}
        self.assertFalse(from_claims("azure", {**CLAIMS, **tenant}).is_verified)
        yes: list[Any] = [True, "1", "true", 1]
        no: list[Any] = [False, "0", "false", 0, None, "yes"]
        for edov in yes:
            self.assertTrue(from_claims("azure", {**CLAIMS, **tenant, "xms_edov": edov}).is_verified)
        for edov in no:
            self.assertFalse(from_claims("azure", {**CLAIMS, **tenant, "xms_edov": edov}).is_verified)
        personal = {**CLAIMS, "tid": "9188040d-6c67-4c5b-b112-36a304b66dad"}
        self.assertTrue(from_claims("azure", personal).is_verified)
        without = {name: value for name, value in personal.items() if name != "email"}
        self.assertFalse(from_claims("azure", without, {"email": "a@example.test"}).is_verified)

    def test_an_address_of_userinfo_brings_its_own_word_on_whether_it_is_verified(self) -> None:
        claims = {"iss": "i", "sub": "1", "email_verified": True}
        profile = from_claims("gitlab", claims, {"sub": "1", "email": "a@example.test"})
        self.assertEqual((profile.email, profile.is_verified), ("a@example.test", False))
        other = {"sub": "1", "email": "a@example.test", "email_verified": True}
        self.assertTrue(from_claims("gitlab", {"iss": "i", "sub": "1"}, other).is_verified)

    def test_the_id_token_wins_over_userinfo(self) -> None:
        profile = from_claims("gitlab", CLAIMS, {"sub": "2", "email": "b@example.test", "name": "Eve"})
        self.assertEqual((profile.subject, profile.email), ("1", "Ada@example.test"))

    def test_without_a_subject_there_is_no_profile(self) -> None:
        subjects: list[Any] = [None, "", True, [], 1.5, "x" * (SUBJECT_MAX_CHARACTERS + 1), "a\0b", "\ud800"]
        for sub in subjects:
            with self.assertRaises(NoProfile):
                from_claims("google", {**CLAIMS, "sub": sub})

    def test_what_is_no_address_counts_as_none(self) -> None:
        for email in (
            "",
            "ada",
            "a@b@c",
            1,
            ["a@example.test"],
            "a@example.test\0",
            "x" * 300 + "@example.test",
        ):
            profile = from_claims("google", {**CLAIMS, "email": email})
            self.assertEqual((profile.email, profile.is_verified), (None, False), email)
            self.assertNotIn("email", profile.data)

    def test_other_claims_are_left_out_if_they_are_too_long_or_cannot_be_stored(self) -> None:
        for value in ("x" * 9000, ["a\0"], {"\0": 1}):
            self.assertNotIn("custom_claims", from_claims("google", {**CLAIMS, "hd": value}).data)

    @given(st.dictionaries(st.text() | st.sampled_from(["sub", "email", "name", "tid", "picture"]), JSON))
    def test_any_claims_give_a_profile_that_can_be_stored_or_none(self, claims: dict[str, Any]) -> None:
        try:
            profile = from_claims("azure", claims, claims)
        except NoProfile:
            return
        self.assertNotIn("\\u0000", json.dumps(profile.data))


class Apple(TestCase):
    def test_the_name_comes_with_the_first_form(self) -> None:
        profile = from_claims("apple", CLAIMS)
        user = '{"name": {"firstName": "Ada", "lastName": "L"}, "email": "eve@example.test"}'
        named = with_apples_name(profile, user)
        self.assertEqual((named.data["name"], named.data["full_name"]), ("Ada L", "Ada L"))
        self.assertEqual(named.email, profile.email)
        for other in (
            None,
            "",
            "{",
            "[]",
            '{"name": 1}',
            '{"name": {}}',
            '{"name": {"firstName": 1}}',
            '"x"',
        ):
            self.assertEqual(with_apples_name(profile, other), profile)

    @given(st.text() | JSON.map(json.dumps))
    def test_any_form_is_read(self, user: str) -> None:
        with_apples_name(from_claims("apple", CLAIMS), user)


class WithoutIdToken(TestCase):
    def test_of_github_only_the_primary_address_counts_and_only_if_verified(self) -> None:
        user = {
            "id": 7,
            "login": "ada",
            "name": "Ada",
            "email": "public@example.test",
            "avatar_url": "https://a/",
        }
        emails = [
            {"email": "other@example.test", "primary": False, "verified": True},
            {"email": "ada@example.test", "primary": True, "verified": True},
        ]
        profile = read("github", user=user, emails=emails)
        self.assertEqual(
            (profile.subject, profile.email, profile.is_verified), ("7", "ada@example.test", True)
        )
        self.assertEqual((profile.data["user_name"], profile.data["avatar_url"]), ("ada", "https://a/"))
        unverified = [{**emails[1], "verified": False}, emails[0]]
        self.assertFalse(read("github", user=user, emails=unverified).is_verified)
        nothing: list[Any] = [[], [emails[0]], None, {}, [1], [{"primary": "true"}]]
        for none in nothing:
            self.assertIsNone(read("github", user=user, emails=none).email)

    def test_discord_says_whether_the_address_is_verified(self) -> None:
        user = {"id": "80", "username": "ada", "discriminator": "1", "avatar": "a_f1", "global_name": "Ada"}
        profile = read("discord", user={**user, "email": "ada@example.test", "verified": True})
        self.assertEqual(
            (profile.subject, profile.email, profile.is_verified), ("80", "ada@example.test", True)
        )
        self.assertEqual(profile.data["avatar_url"], "https://cdn.discordapp.com/avatars/80/a_f1.gif")
        self.assertEqual((profile.data["name"], profile.data["full_name"]), ("ada#1", "ada"))
        self.assertEqual(profile.data["custom_claims"], {"global_name": "Ada"})
        for verified in (False, None, "true", 1):
            said = {**user, "email": "ada@example.test", "verified": verified}
            self.assertFalse(read("discord", user=said).is_verified)

    def test_facebook_does_not_say_that_an_address_is_verified(self) -> None:
        user = {
            "id": "9",
            "name": "Ada",
            "email": "ada@example.test",
            "picture": {"data": {"url": "https://p/"}},
        }
        profile = read("facebook", user=user)
        self.assertEqual(
            (profile.subject, profile.email, profile.is_verified), ("9", "ada@example.test", False)
        )
        self.assertEqual(profile.data["picture"], "https://p/")

    def test_twitch_and_x_give_verified_addresses_only(self) -> None:
        twitch = {"id": "3", "login": "ada", "display_name": "Ada", "email": "ada@example.test"}
        profile = read("twitch", user={"data": [twitch]})
        self.assertEqual(
            (profile.subject, profile.email, profile.is_verified), ("3", "ada@example.test", True)
        )
        ada = {
            "id": "4",
            "username": "ada",
            "confirmed_email": "ada@example.test",
            "email": "eve@example.test",
        }
        profile = read("x", user={"data": ada})
        self.assertEqual(
            (profile.subject, profile.email, profile.is_verified), ("4", "ada@example.test", True)
        )
        self.assertIsNone(read("x", user={"data": {"id": "4", "email": "eve@example.test"}}).email)

    @given(st.sampled_from(sorted(name for name, one in PRESETS.items() if one.read)), JSON, JSON)
    def test_any_documents_give_a_profile_or_none(self, name: str, user: Any, emails: Any) -> None:
        for document in (user, {"id": "1", "data": user, "picture": user, "email": user}, {"data": [user]}):
            with contextlib.suppress(NoProfile):
                read(name, user=document, emails=emails)


class Presets(TestCase):
    def test_those_that_are_known_need_no_issuer(self) -> None:
        self.assertEqual(set(PRESETS), set(KNOWN_PROVIDERS))
        for name, preset in PRESETS.items():
            known = bool(
                preset.authorization_url and preset.exchange_url and preset.profile_urls and preset.read
            )
            self.assertTrue(known or (preset.issuer and preset.by_id_token), name)
