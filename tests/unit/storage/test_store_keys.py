"""The store's key pair: read from a credentials file of its own, and replaced by a reload."""

from __future__ import annotations

from pathlib import Path

from attrs import evolve
from twisted.trial.unittest import TestCase

from project_service.settings.model import Secret, Settings, Store
from project_service.settings.reading import BadSettings, Source
from tests.temporary import temporary_directory

FILE = """
[other]
aws_access_key_id = no
[default]
aws_access_key_id = AKID
aws_secret_access_key = xyz%(zyx)s/+==
region = eu-west-1
"""


class FromAFile(TestCase):
    def setUp(self) -> None:
        self.place = temporary_directory(self)
        self.file = self.place / "credentials"
        self.config = self.place / "c.toml"
        self.config.write_text(
            f"[store]\nendpoint_url = 'http://s3.test'\ncredentials_file = '{self.file}'\n"
        )

    def store(self, held: str, environ: dict[str, str] | None = None) -> Store:
        self.file.write_text(held)
        return Source(self.config, data_dir=Path("/data")).read(environ or {}).store

    def faults(self, held: str, environ: dict[str, str] | None = None) -> list[str]:
        with self.assertRaises(BadSettings) as caught:
            self.store(held, environ)
        for secret in ("zyx", "hidden"):
            self.assertNotIn(secret, str(caught.exception))
        return [f"{fault.name} {fault.reason}" for fault in caught.exception.faults]

    def test_the_default_section_is_the_key_pair(self) -> None:
        store = self.store(FILE)
        assert store.secret_access_key is not None
        self.assertEqual(store.access_key_id, "AKID")
        self.assertEqual(store.secret_access_key.reveal(), "xyz%(zyx)s/+==")
        self.assertEqual(store.session_token, None)
        token = self.store(f"{FILE}aws_session_token = hidden\n").session_token
        assert token is not None
        self.assertEqual(token.reveal(), "hidden")
        for secret in ("zyx", "hidden"):
            self.assertNotIn(secret, repr(self.store(f"{FILE}aws_session_token = hidden\n")))

    def test_an_unusable_file_is_refused_without_repeating_it(self) -> None:
        cases = {
            "": "without a section [default]",
            "hidden": "is not in the form of AWS's credentials",
            f"{FILE}hidden\n": "is not in the form of AWS's credentials",
            f"{FILE}[default]\naws_session_token = hidden\n": "is not in the form of AWS's credentials",
            "[default]\naws_access_key_id = hidden\n": "aws_secret_access_key is missing or not printable",
            "[default]\naws_secret_access_key = hidden\n": "aws_access_key_id is missing or not printable",
            f"{FILE}aws_session_token = hid den\n": "aws_session_token is missing or not printable",
        }
        for held, why in cases.items():
            found = self.faults(held)
            self.assertIn(
                f"store.credentials_file names a file{' in which' if 'aws_' in why else ''}", found[0]
            )
            self.assertIn(why, found[0])
        self.file.unlink()
        self.config.write_text(self.config.read_text())
        with self.assertRaises(BadSettings) as caught:
            Source(self.config, data_dir=Path("/data")).read({})
        self.assertIn("cannot be read: No such file", str(caught.exception))

    def test_keys_beside_a_credentials_file_are_refused(self) -> None:
        environ = {"PROJECT_SERVICE__STORE__SECRET_ACCESS_KEY": "hidden"}
        self.assertEqual(
            self.faults(FILE, environ),
            ["store.secret_access_key is named besides store.credentials_file, which has its own"],
        )

    def test_a_session_token_must_fit_in_a_header(self) -> None:
        self.config.write_text("[store]\nsession_token = 'two words'\n")
        with self.assertRaises(BadSettings) as caught:
            Source(self.config, data_dir=Path("/data")).read({})
        self.assertIn("session_token must be printable ASCII without blanks", str(caught.exception))


class TakenOver(TestCase):
    """A reload uses a new key pair for the same store."""

    old = Settings(store=Store(endpoint_url="http://s3.test", access_key_id="old"))

    def test_a_new_key_pair_for_the_same_store_is_taken_over(self) -> None:
        new = evolve(self.old, store=evolve(self.old.store, access_key_id="new", session_token=Secret("t")))
        found = self.old.changed_without_restart(new)
        self.assertEqual(found, new)
        self.assertEqual(self.old.waiting_for_restart(new), [])

    def test_the_key_pair_of_another_store_waits_for_a_restart(self) -> None:
        """Until then requests go to the old store."""
        elsewhere = Store(endpoint_url="http://other.test", access_key_id="new")
        new = evolve(self.old, store=elsewhere)
        self.assertEqual(self.old.changed_without_restart(new), self.old)
        waiting = self.old.waiting_for_restart(new)
        self.assertEqual(waiting, ["store.endpoint_url", "store.access_key_id"])

    def test_an_embedded_stores_key_pair_is_kept(self) -> None:
        """It is not in the configuration."""
        running = Settings(store=Store(session_token=Secret("t"))).with_store(self.old.store)
        self.assertIsNone(running.store.session_token)
        self.assertEqual(running.changed_without_restart(Settings()), running)
