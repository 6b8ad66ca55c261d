"""The files with the passwords and keys that embedded mode makes for itself, and with the ports it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import asdict, field, frozen

from project_service import private_file

NAME = "embedded.json"


@frozen
class Secrets:
    """All of them are left out of ``repr``."""

    superuser_password: str = field(repr=False)
    owner_password: str = field(repr=False)
    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    # Signs the requests between SeaweedFS' parts, so that their ports refuse the machine's other users.
    store_signing_key: str = field(repr=False)


def load_or_make(data_dir: Path, token: Callable[[], str]) -> Secrets:
    """The secrets of the data directory. At its first use they are made of ``token()``.

    Raises ``ValueError`` if the file is damaged, or missing although there is a database.
    """
    path = data_dir / NAME
    value = private_file.read_json(path)
    if value is None:
        if (data_dir / "postgres" / "PG_VERSION").exists():
            raise ValueError(
                f"{path} is gone, and with it the passwords of the database beside it; restore it"
            )
        secrets = Secrets(*(token() for _ in range(5)))
        private_file.write_json(path, asdict(secrets))
        return secrets
    try:
        return Secrets(**value)
    except TypeError:
        raise ValueError(f"{path} is not what project-service wrote; restore it") from None


def load_ports(data_dir: Path) -> dict[str, int]:
    """The ports of the last start by name; none if the file cannot be read."""
    try:
        value = private_file.read_json(data_dir / "run" / "ports.json") or {}
    except ValueError:
        return {}
    return {name: port for name, port in value.items() if isinstance(port, int)}


def save_ports(data_dir: Path, ports: Mapping[str, int]) -> None:
    private_file.write_json(data_dir / "run" / "ports.json", dict(ports))
