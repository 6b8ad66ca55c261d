"""``project-service auth``: providers check."""

from __future__ import annotations

import time
from typing import Any

import click
from attrs import asdict, frozen

from project_service.auth.providers import CALLBACK, Providers
from project_service.cli import project_options
from project_service.cli.invocation import FAILED, Invocation, common_options, end
from project_service.outgoing import Documents, Outgoing


@frozen
class _Seen:
    """A provider with what is wrong with it, as with --json."""

    name: str
    redirect: str
    faults: list[str]

    def lines(self) -> list[str]:
        mark = "FAIL" if self.faults else "ok  "
        return [f"{mark} {self.name}: {self.redirect}", *(f"       {one}" for one in self.faults)]


@click.group()
@project_options
def auth() -> None:
    """How users sign in."""


@auth.group()
@project_options
def providers() -> None:
    """Those who say who a user is: [auth.providers.NAME] in the settings."""


@providers.command()
@click.argument("names", nargs=-1)
@common_options
def check(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Try each provider, or those of these NAMES: its documents, its keys, and whether it knows the client.

    Beside each is the redirect address that has to be entered there. Exit code 1: something is wrong.
    """
    settings = invocation.launch().settings
    known = sorted(settings.auth.providers)
    for name in names:
        if name not in known:
            end(f"there is no [auth.providers.{name}]; there are {', '.join(known) or 'none'}", FAILED)
    url = settings.server.public_url
    redirect = f"{url or 'https://…'}{CALLBACK}"
    found: list[_Seen] = []

    async def look(reactor: Any) -> None:
        outgoing = Outgoing(reactor, lambda: settings.auth.allow_private_hosts)
        of = Providers(lambda: settings.auth, outgoing, Documents(outgoing, time.time), time.time)
        for name in names or known:
            faults = await of.faults(name, redirect)
            if url is None:
                faults.append("server.public_url is missing, so nobody could be sent back here")
            found.append(_Seen(name, redirect, faults))

    invocation.on_reactor(look)
    lines = [line for one in found for line in one.lines()] or ["no provider is configured"]
    invocation.show([asdict(one) for one in found], *lines)
    if any(one.faults for one in found):
        raise SystemExit(FAILED)
