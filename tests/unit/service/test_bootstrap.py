"""What the first start makes and prints: keys, the address, a command to try; keys are printed only on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.trial.unittest import TestCase

from project_service import keys
from project_service.bootstrap import Credentials, ensure_keys, welcome, write_credentials
from project_service.http.caller import digest
from project_service.lifecycle import start
from tests.temporary import temporary_directory

CREDENTIALS = Credentials(
    "http://127.0.0.1:8080",
    "http://127.0.0.1:8080/dev/db/main/rest",
    "psk_anon_a",
    "psk_service_s",
    "postgresql://u:p@h/d",
)
PATH = Path("/srv/var/credentials.json")
STATE = "serving on http://127.0.0.1:8080, not ready: store"


class Welcome(TestCase):
    def test_on_a_terminal_the_keys_are_printed(self) -> None:
        text = "\n".join(welcome(CREDENTIALS, PATH, STATE, None, True))
        self.assertIn("psk_service_s", text)

    def test_elsewhere_the_credentials_file_is_named_instead(self) -> None:
        text = "\n".join(welcome(CREDENTIALS, PATH, STATE, None, False))
        self.assertNotIn("psk_", text)
        self.assertIn(str(PATH), text)
        self.assertIn(f"project-service is {STATE}\n", text)

    def test_the_address_of_the_console_is_printed_if_there_is_one(self) -> None:
        address = "http://127.0.0.1:8080/console"
        for on_terminal in (True, False):
            self.assertIn(address, "\n".join(welcome(CREDENTIALS, PATH, STATE, address, on_terminal)))
            self.assertNotIn("console", "\n".join(welcome(CREDENTIALS, PATH, STATE, None, on_terminal)))

    def test_the_shell_gets_its_variables_before_they_are_used(self) -> None:
        tried = welcome(CREDENTIALS, Path("/srv/my var/credentials.json"), STATE, None, False)[-3:-1]
        self.assertRegex(tried[0], r"""eval "\$\(/.*/project-service env --data-dir '/srv/my var'\)\"""")
        self.assertIn("$ANON_KEY", tried[1])
        self.assertIn("$URL/storage", tried[1])

    def test_the_databases_password_is_never_printed(self) -> None:
        for on_terminal in (True, False):
            self.assertNotIn("postgresql:", "\n".join(welcome(CREDENTIALS, PATH, STATE, None, on_terminal)))

    def test_repr_of_the_credentials_shows_no_secret(self) -> None:
        for secret in ("psk_", "postgresql:"):
            self.assertNotIn(secret, repr(CREDENTIALS) + str(CREDENTIALS))


class FakeKeys:
    """The active project keys of a database, by kind."""

    def __init__(self) -> None:
        self.active: list[tuple[str, bytes]] = []

    async def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        if sql.startswith("select"):
            return [(memoryview(sha256), kind) for kind, sha256 in self.active]
        kind, sha256, label = (params[name] for name in ("kind", "sha256", "label"))
        self.active.append((kind, sha256))
        return [("1", kind, label, "", None)]


class Keys(TestCase):
    def setUp(self) -> None:
        self.folder = temporary_directory(self)
        self.database = FakeKeys()

    def begin(self) -> tuple[str, str]:
        """Starts successfully."""
        made = self.successResultOf(start(ensure_keys(self.database, self.folder)))
        path = write_credentials(self.folder, Credentials("http://a.test", "", *made, "dsn"))
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        return made

    def test_the_first_start_makes_a_key_of_each_kind_and_the_next_keeps_them(self) -> None:
        anon, service = self.begin()
        self.assertEqual(self.database.active, [("anon", digest(anon)), ("service", digest(service))])
        self.assertEqual(self.begin(), (anon, service))
        self.assertEqual(len(self.database.active), 2)

    def test_a_revoked_key_is_replaced_and_the_other_kept(self) -> None:
        anon, service = self.begin()
        del self.database.active[0]
        fresh, kept = self.begin()
        self.assertEqual(kept, service)
        self.assertNotEqual(fresh, anon)
        self.assertIn(("anon", digest(fresh)), self.database.active)

    def test_a_credentials_file_without_keys_is_written_again(self) -> None:
        for content in ("{}", '{"anon_key": 1, "service_key": null}'):
            (self.folder / "credentials.json").write_text(content)
            made = self.begin()
            self.assertEqual([keys.well_formed(key) for key in made], [True, True])
            self.assertEqual(self.begin(), made)
