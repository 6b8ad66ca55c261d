"""What a start prints: the address, a command to try, and the keys only where a person reads."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import TestCase

from project_service.bootstrap import Credentials, first_words

CREDENTIALS = Credentials("http://127.0.0.1:8080", "psk_anon_a", "psk_service_s", "postgresql://u:p@h/d")
PATH = Path("/srv/var/credentials.json")
TRIED = "/storage/buckets/public/objects"


class FirstWords(TestCase):
    def test_a_person_is_shown_the_keys(self) -> None:
        text = "\n".join(first_words(CREDENTIALS, PATH, True))
        self.assertIn("psk_service_s", text)
        self.assertIn(f'curl -H "X-Service-Key: psk_anon_a" http://127.0.0.1:8080{TRIED}', text)

    def test_a_log_is_told_where_they_are(self) -> None:
        text = "\n".join(first_words(CREDENTIALS, PATH, False))
        self.assertNotIn("psk_", text)
        self.assertIn(str(PATH), text)
        self.assertIn(f'curl -H "X-Service-Key: $ANON_KEY" http://127.0.0.1:8080{TRIED}', text)

    def test_the_password_of_the_database_is_never_shown(self) -> None:
        for on_terminal in (True, False):
            self.assertNotIn("postgresql:", "\n".join(first_words(CREDENTIALS, PATH, on_terminal)))
