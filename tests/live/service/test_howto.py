"""docs/howto: the files and commands of each page, as they stand there, beside a running service."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.daemon import ROOT, Daemon
from tests.live.service.documented import run, service
from tests.live.services import WithDatabase
from tests.temporary import free_port

# The pages that start a service of their own.
OWN_SERVICE = ("sign-in", "password-reset", "mails", "upload-form", "change-email")
# Pages in a browser: ``test_howto_accounts.py``, ``test_howto_factors.py``, ``test_howto_photos.py`` and
# ``../storage/test_tus_clients.py`` (large-files); also ``test_howto_admin.py``, ``test_howto_sign_in.py``. With an
# old project: ``test_howto_move.py``. Containers: ``tests/unit/service/test_container_files.py``.
NO_COMMANDS = (
    *("accounts", "claims", "containers", "forgotten-password", "guests", "index", "invites", "large-files"),
    *("move-supabase", "passkeys", "photo-app", "providers", "second-factor", "sign-in-code", "stability"),
)
PAGES = sorted(
    page.stem
    for page in (ROOT / "docs" / "howto").glob("*.rst")
    if page.stem not in (*OWN_SERVICE, *NO_COMMANDS)
)


@pytest.fixture(scope="module")
def project(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a running service in ``var``."""
    folder = Path(tmp_path_factory.mktemp("howto"))
    with Daemon(with_database(folder / "var")) as daemon:
        daemon.wait_until_ready()
        yield folder


def replaced(folder: Path, port: int) -> dict[str, str]:
    """What stands for the reader's own addresses and keys in the pages."""
    credentials = json.loads((folder / "var" / "credentials.json").read_text())
    return {
        "http://127.0.0.1:8080": credentials["base_url"],
        "psk_anon_…": credentials["anon_key"],
        "8090": str(port),
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_as_printed(project: Path, page: str) -> None:
    # Two pages may have files of one name.
    for left in project.iterdir():
        if left.name != "var":
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
    run(project, f"howto/{page}.rst", replaced(project, free_port()))


@pytest.mark.parametrize("page", OWN_SERVICE)
def test_a_page_with_a_service_of_its_own_works_as_printed(
    with_database: WithDatabase, tmp_path: Path, page: str
) -> None:
    here = {"$PWD": str(tmp_path)}
    with_database(tmp_path / "var")
    with service(tmp_path, f"howto/{page}.rst", here) as daemon:
        daemon.wait_until_ready()
        run(tmp_path, f"howto/{page}.rst", here)
