"""``project-service check`` with real mail servers: every reason why one cannot be used has its own message."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from aiosmtpd.smtp import AuthResult, LoginPassword
from attrs import define, evolve
from twisted.internet.threads import deferToThread

from project_service.auth.mail import MailServer, MailServerError
from project_service.settings.model import Secret, Smtp, Store
from tests.certificates import issue
from tests.live.auth.mail_server import mail_server
from tests.live.auth.service import reactor
from tests.live.cli.command_here import commands_of
from tests.live.cli.command_line import Ended
from tests.temporary import free_port

PASSWORD = "hush-hush"
SETTINGS = Smtp(
    host="localhost",
    sender="Project <noreply@example.test>",
    username="mailer",
    password=Secret(PASSWORD),
    tls="starttls",
)


@define
class Logins:
    """A checker that records the logins and says whether they are accepted."""

    tried: int = 0

    def __call__(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> Any:
        self.tried += 1
        return AuthResult(success=data == LoginPassword(b"mailer", PASSWORD.encode()), handled=False)


def secured(folder: Path, tls: str) -> tuple[Path, Logins, dict[str, Any]]:
    """A certificate, and the options that make a mail server require TLS with it and a password."""
    path, key = issue("localhost").written(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    logins = Logins()
    insists = {"auth_required": True, "authenticator": logins}
    if tls == "starttls":
        return path, logins, {"tls_context": context, "require_starttls": True, **insists}
    return path, logins, {"ssl_context": context, "auth_require_tls": False, **insists}


async def why_not(settings: Smtp) -> str:
    with pytest.raises(MailServerError) as fault:
        await MailServer(reactor, settings).reach()
    return str(fault.value)


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
@pytest.mark.parametrize("tls", ["starttls", "tls"])
@pytest_twisted.ensureDeferred
async def test_a_server_with_tls_and_a_password_is_reached_and_gets_no_mail(
    tls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, logins, options = secured(tmp_path, tls)
    async with mail_server(**options) as (mailbox, port):
        settings = evolve(SETTINGS, port=port, tls=tls)
        assert await why_not(settings) == "the mail server's certificate is not trusted"
        assert logins.tried == 0
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        await MailServer(reactor, settings).reach()
        assert (logins.tried, mailbox.quits, mailbox.mails) == (1, 1, [])
        refused = await why_not(evolve(settings, password=Secret("wrong")))
        assert refused == "the mail server refuses the user name or the password (535)"
        assert "smtp.password is missing" in await why_not(evolve(settings, password=None))


@pytest_twisted.ensureDeferred
async def test_a_certificate_for_another_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, logins, options = secured(tmp_path, "starttls")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with mail_server(hostname="127.0.0.2", **options) as (_, port):
        words = await why_not(evolve(SETTINGS, host="127.0.0.2", port=port))
        assert words == "the mail server's certificate is for another name than smtp.host"
        assert logins.tried == 0


@pytest_twisted.ensureDeferred
async def test_a_server_that_differs_from_the_settings_is_reported() -> None:
    async with mail_server() as (_, port):
        open_ = evolve(SETTINGS, port=port)
        assert await why_not(open_) == "the mail server does not offer STARTTLS"
        assert "no TLS with the mail server" in await why_not(evolve(open_, tls="tls"))
        assert "offers no way to log in" in await why_not(evolve(open_, tls="none"))
        await MailServer(reactor, evolve(open_, tls="none", username=None, password=None)).reach()
    assert "connection refused" in await why_not(evolve(open_, port=free_port()))


@pytest_twisted.ensureDeferred
async def test_the_command_names_the_mail_server_as_the_failing_part(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, _, options = secured(tmp_path, "starttls")
    secret_key = store_settings.secret_access_key
    assert secret_key is not None
    config = tmp_path / "service.toml"
    servers = (
        f'[database]\ndsn = "{database}"\n[auth]\njwt_keys_file = "{tmp_path}/keys.json"\n[store]\n'
        f'endpoint_url = "{store_settings.endpoint_url}"\nbucket = "{store_settings.bucket}"\n'
        f'access_key_id = "{store_settings.access_key_id}"\n'
        f'secret_access_key = "{secret_key.reveal()}"\n'
    )
    config.write_text(servers)
    project = commands_of(monkeypatch, "--config", config)

    async def check() -> Ended:
        return await deferToThread(project, "check")

    assert project("jwt-keys", "create").code == 0
    none = await check()
    assert (none.code, none.err) == (0, "")
    assert "ok    mail server: none is configured" in none.out.splitlines()

    async with mail_server(**options) as (mailbox, port):
        account = (
            f'[smtp]\nhost = "localhost"\nport = {port}\nusername = "mailer"\nsender = "a@example.test"\n'
        )
        config.write_text(f'{servers}{account}password = "{PASSWORD}"\n')
        checks = [await check()]
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        checks.append(await check())
        config.write_text(f'{servers}{account}password = "{PASSWORD}-not"\n')
        checks.append(await check())
    checks.append(await check())
    assert [(one.code, line_of(one)) for one in checks] == [
        (1, "FAIL  mail server: the mail server's certificate is not trusted"),
        (0, "ok    mail server: reached with STARTTLS, logged in"),
        (1, "FAIL  mail server: the mail server refuses the user name or the password (535)"),
        (1, "FAIL  mail server: the mail server cannot be reached: connection refused"),
    ]
    said = "".join(one.out + one.err for one in checks)
    for secret in (PASSWORD, base64.b64encode(PASSWORD.encode()).decode().rstrip("=")):
        assert secret not in said
    assert mailbox.mails == []


def line_of(checked: Ended) -> str:
    """The output's line for this part, which must be the only failing one."""
    (line,) = [line for line in checked.out.splitlines() if "mail server" in line or line.startswith("FAIL")]
    return line
