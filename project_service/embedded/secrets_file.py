"""The passwords and keys that embedded mode makes for itself, and the ports it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import asdict, field, frozen

from project_service import private_file

NAME = "embedded.json"


@frozen
class Secrets:
    """None of it is ever shown."""

    superuser_password: str = field(repr=False)
    owner_password: str = field(repr=False)
    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    # Signs SeaweedFS' internal requests, so that its other ports refuse the machine's other users.
    store_signing_key: str = field(repr=False)


def load_or_make(data_dir: Path, token: Callable[[], str]) -> Secrets:
    """What the data directory has, made from ``token()`` at its first use. Raises ``ValueError``."""
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
    """The ports of the last start; none where they cannot be read."""
    try:
        value = private_file.read_json(data_dir / "run" / "ports.json") or {}
    except ValueError:
        return {}
    return {name: port for name, port in value.items() if isinstance(port, int)}


def save_ports(data_dir: Path, ports: Mapping[str, int]) -> None:
    private_file.write_json(data_dir / "run" / "ports.json", dict(ports))
