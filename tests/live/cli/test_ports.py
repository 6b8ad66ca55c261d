"""What ``project-service check`` says of a port that is in use."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_twisted

from project_service.auth.tokens import load_keys
from project_service.cli.invocation import Failed
from project_service.cli.ports import could_listen
from project_service.settings.model import Store
from tests.live.application import serving, settings_for
from tests.live.cli.command_here import reactor


@pytest_twisted.ensureDeferred
async def test_a_port_of_the_running_service_is_as_it_should_be(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    listen = ("tcp:0:interface=127.0.0.1", f"unix:{tmp_path}/s")
    settings = settings_for(database, store_settings, tmp_path, server={"listen": listen})
    assert settings.auth.jwt_keys_file is not None
    async with serving(settings) as api:
        ours = [key.kid for key in load_keys(Path(settings.auth.jwt_keys_file)).keys]
        port = api.base_url.rpartition(":")[2]
        everywhere = [f"tcp:{port}:interface={address}" for address in ("0.0.0.0", "\\:\\:")]
        for endpoint in (f"tcp:{port}:interface=127.0.0.1", listen[1], f"tcp:{port}", *everywhere):
            assert await could_listen(reactor, endpoint, ours) == "the running service has it"
            with pytest.raises(Failed, match="another project's service has it"):
                await could_listen(reactor, endpoint, ["another"])
