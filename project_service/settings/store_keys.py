"""Reads the store's key pair from a file in the form of AWS's tools, which also renew it (``~/.aws/credentials``)."""

from __future__ import annotations

from configparser import ConfigParser
from configparser import Error as NotTheForm
from pathlib import Path
from typing import Any

from attrs import frozen

from project_service.regular_file import regular
from project_service.settings.kinds import Secret, text, word

SECTION = "default"


@frozen
class StoreKeys:
    """What was in the file at ``path`` when it was read."""

    path: str
    access_key_id: str
    secret_access_key: Secret
    session_token: Secret | None


def keys_file(value: Any) -> StoreKeys:
    """The setting that is the path of such a file. The ``ValueError`` contains nothing of what is in the file."""
    # No interpolation: a secret may have a percent sign.
    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(regular(Path(text(value))).read_text("utf-8"))
    except OSError as fault:
        raise ValueError(f"names a file that cannot be read: {fault.strerror}") from None
    except (NotTheForm, UnicodeDecodeError):
        raise ValueError("names a file that is not in the form of AWS's credentials") from None
    if not parser.has_section(SECTION):
        raise ValueError(f"names a file without a section [{SECTION}]")
    held = parser[SECTION]
    token = held.get("aws_session_token", "")
    return StoreKeys(
        str(value),
        _held(held, "aws_access_key_id"),
        Secret(_held(held, "aws_secret_access_key")),
        Secret(_in_words("aws_session_token", token)) if token else None,
    )


def header_secret(value: Any) -> Secret:
    """A setting that is secret and is sent in a header."""
    return Secret(word(value))


def _held(section: Any, name: str) -> str:
    return _in_words(name, section.get(name, ""))


def _in_words(name: str, value: str) -> str:
    try:
        return str(word(value))
    except ValueError:
        raise ValueError(f"names a file in which {name} is missing or not printable ASCII") from None
