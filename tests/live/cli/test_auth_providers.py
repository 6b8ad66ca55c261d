"""``project-service auth providers check``: what an operator is told about each provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.auth.provider import Provider, provider
from tests.live.cli.command_here import beside_the_reactor, commands_of, failed
from tests.live.services import held_open


@pytest.fixture
def there() -> Iterator[Provider]:
    with held_open(provider()) as made:
        yield made


def configured(folder: Path, there: Provider, more: str = "", **changes: str) -> Path:
    given = {
        "client_id": there.client_id,
        "client_secret": there.client_secret,
        "issuer": there.url,
        **changes,
    }
    lines = "\n".join(f"{name} = '{value}'" for name, value in given.items())
    path = folder / "c.toml"
    path.write_text(f"{more}\n[auth]\nallow_private_hosts = true\n[auth.providers.keycloak]\n{lines}\n")
    return path


URL = "[server]\npublic_url = 'https://api.example.test/'"


@beside_the_reactor
def test_a_provider_that_works_is_shown_with_its_redirect_address(
    there: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = commands_of(monkeypatch, "--config", configured(tmp_path, there, URL))
    done = run("auth", "providers", "check")
    assert done.out == "ok   keycloak: https://api.example.test/auth/v1/callback\n"
    assert (done.code, done.err) == (0, "")
    assert run("auth", "providers", "check", "--json").json == [
        {"name": "keycloak", "redirect": "https://api.example.test/auth/v1/callback", "faults": []}
    ]


@beside_the_reactor
def test_what_is_wrong_is_told_without_secrets_and_the_exit_code_is_1(
    there: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path, there, client_secret="hush-hush")
    done = commands_of(monkeypatch, "--config", config)("auth", "providers", "check", "keycloak")
    assert done.out.splitlines() == [
        "FAIL keycloak: https://…/auth/v1/callback",
        "       it does not take client_id and client_secret: invalid_client",
        "       server.public_url is missing, so nobody could be sent back here",
    ]
    assert done.code == 1 and "hush" not in done.out + done.err


@beside_the_reactor
def test_an_unknown_name_is_told_with_those_that_there_are(
    there: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = commands_of(monkeypatch, "--config", configured(tmp_path, there))
    assert run("auth", "providers", "check", "google") == failed(
        "there is no [auth.providers.google]; there are keycloak"
    )


@beside_the_reactor
def test_without_providers_there_is_nothing_to_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_text("")
    done = commands_of(monkeypatch, "--config", tmp_path / "c.toml")("auth", "providers", "check")
    assert (done.code, done.out) == (0, "no provider is configured\n")
