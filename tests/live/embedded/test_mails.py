"""Mails without a mail server: embedded mode writes them to files."""

from __future__ import annotations

import email
import re
from collections.abc import Mapping
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.live.daemon import Daemon, eventually
from tests.live.service.documented import shell
from tests.live.services import WithDatabase

TOKEN = re.compile(r"^[A-Za-z0-9_-]{43}$", re.MULTILINE)
ADA = {"email": "ada@example.test", "password": "correct horse battery", "metadata": {"locale": "de"}}


def test_addresses_are_confirmed_and_passwords_recovered_by_mails_in_files(
    with_database: WithDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__AUTH__CONFIRM_EMAIL", "true")
    monkeypatch.setenv("PROJECT_SERVICE__AUTH__RECOVER_URL", "http://localhost:3000/reset")
    folder = tmp_path / "var" / "mail"
    templates = tmp_path / "templates"
    (templates / "de").mkdir(parents=True)
    german = templates / "de" / "recovery.txt"
    german.write_text("Passwort vergessen?\n\n{{ link }}\n\n{{ token }}\n")
    monkeypatch.setenv("PROJECT_SERVICE__SMTP__TEMPLATES_DIR", str(templates))
    with Daemon(with_database(tmp_path / "var"), "--workers", "2") as daemon:
        url = daemon.wait_until_ready()

        def post(path: str, body: Mapping[str, object]) -> Any:
            answer = requests.post(f"{url}/auth/{path}", json=body, timeout=30)
            assert answer.status_code == 200, answer.text
            return answer.json()["data"]

        def newest(number: int) -> tuple[EmailMessage, str]:
            eventually(lambda: len(list(folder.glob("*.eml"))) == number, f"{number} mails")
            last = sorted(folder.glob("*.eml"))[-1]

            def is_logged() -> bool:
                daemon.collect()
                return f"an e-mail was written to {last}" in daemon.text

            eventually(is_logged, last.name)
            mail = email.message_from_bytes(last.read_bytes(), policy=default)
            text = mail.get_body(("plain",))
            assert text is not None
            return mail, TOKEN.findall("\n".join(text.get_content().splitlines()))[0]

        assert post("signup", ADA)["session"] is None
        mail, confirmation = newest(1)
        assert (mail["To"], mail["Subject"]) == ("ada@example.test", "Confirm your e-mail address")
        # Each worker reads its settings again, and must still accept confirm_email.
        daemon.reload("the configuration was reloaded")
        assert post("verify", {"token": confirmation})["user"]["email"] == "ada@example.test"
        # Workers leave templates alone that cannot be used.
        german.write_text("{{ lnik }}")
        daemon.reload(
            f"the configuration was not reloaded: smtp.templates_dir: {german}:1: 'lnik' is undefined"
        )
        with pytest.raises(AssertionError, match=f"FAIL  e-mail templates: smtp.templates_dir: {german}:1"):
            shell(tmp_path, "project-service check")
        post("recover", {"email": "ada@example.test"})
        mail, recovery = newest(2)
        assert mail["Subject"] == "Passwort vergessen?"
        german.write_text("Neues Passwort\n\n{{ token }}\n")
        assert f"http://localhost:3000/reset?token={recovery}" in mail.as_string()
        post("reset", {"token": recovery, "password": "a brand new one"})
        checked = shell(tmp_path, "project-service check")
        assert "ok    e-mail templates: de, en" in checked
        assert f"ok    mail server: none; e-mails are written to {folder}" in checked
        # A test that waits for a mail must not see one of the test before.
        shell(tmp_path, "project-service reset --yes")
        assert list(folder.iterdir()) == []
        assert daemon.stop() == 0
        assert daemon.text.count("was not reloaded") == 1
        assert not any(token in daemon.text for token in (confirmation, recovery))
