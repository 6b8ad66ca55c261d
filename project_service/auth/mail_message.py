"""Mails as messages in the form of RFC 5322."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate

from project_service.auth.mail_templates import Mail
from project_service.email_addresses import envelope, validated

# The longest line of a mail that is sent as it is.
MAX_LINE_BYTES = 998
# The longest encoded word, and the longest line that has one (RFC 2047 section 2). Other lines of the header are kept
# as short.
_MAX_WORD, _MAX_LINE = 75, 76
# What stands around the text of an encoded word.
_FRAME = len("=?utf-8?q??=")
# What an encoded word may have as it is, also before an address (RFC 2047 section 5).
_UNENCODED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/")
_ATOMS = re.compile(r"[\w!#$%&'*+/=?^`{|}~-]+( [\w!#$%&'*+/=?^`{|}~-]+)*", re.ASCII)
_NOT_TEXT = re.compile(r"[^\t\r\n -~]")


def message(mail: Mail, sender: str, now: float, message_id: str) -> bytes:
    """The mail as a message (RFC 5322), with CRLF. Raises ``ValueError`` if an address or the subject has a line
    break."""
    # Domains are converted to ASCII, since addresses cannot have encoded words (RFC 2047 section 5).
    address = envelope(sender)
    head = [
        _from(validated(sender, display_name=True).display_name or "", address),
        f"To: {envelope(mail.recipient)}",
        _folded(_parts("Subject", mail.subject, mail.subject)),
        f"Date: {formatdate(now)}",
        f"Message-ID: <{message_id}@{address.rpartition('@')[2]}>",
        # Prevents out-of-office replies (RFC 3834).
        "Auto-Submitted: auto-generated",
    ]
    body = EmailMessage(policy=SMTP)
    body.set_content(mail.text, cte=_encoding(mail.text))
    if mail.html is not None:
        body.add_alternative(mail.html, subtype="html", cte=_encoding(mail.html))
        # No encoded text has these two characters one after the other (RFC 2045, section 6.7), and the id is random.
        body.set_boundary(f"=_{message_id}")
    # The library folds long header fields wrongly: words run together, and a name becomes several addresses.
    return "".join(f"{one}\r\n" for one in head).encode() + body.as_bytes()


def _encoding(text: str) -> str:
    """The Content-Transfer-Encoding of ``text``: 7bit, which leaves it as it is, so that mails in files can be read
    and searched, if SMTP allows that (RFC 5322 section 2.1.1); else quoted-printable."""
    is_plain = not _NOT_TEXT.search(text) and all(len(line) <= MAX_LINE_BYTES for line in text.splitlines())
    return "7bit" if is_plain else "quoted-printable"


def _from(name: str, address: str) -> str:
    """The field From: an address, with a name before it unless that is empty."""
    if not name:
        return f"From: {address}"
    in_quotes = re.sub(r'(["\\])', r"\\\1", name)
    phrase = name if _ATOMS.fullmatch(name) else f'"{in_quotes}"'
    return _folded([*_parts("From", name, phrase), f" <{address}>"])


def _folded(parts: list[str]) -> str:
    """A field of these parts, on as many lines as it needs."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) <= _MAX_LINE:
            lines[-1] += part
        else:
            lines.append(part)
    return "\r\n".join(lines)


def _parts(field: str, text: str, plain: str) -> list[str]:
    """The name of a field and ``text``, in parts that may stand on lines of their own: as ``plain``, if that can be
    written so, else as encoded words. Raises ``ValueError`` if ``text`` has a line break."""
    if "\r" in text or "\n" in text:
        raise ValueError("a header field must not have line breaks")
    parts: list[str] = re.findall(r"\A[^ ]+ +[^ ]*| +[^ ]+", f"{field}: {plain}")
    # Programs that read "=?" would take it for the beginning of an encoded word.
    is_text = text.isascii() and text.isprintable() and "=?" not in text and text == text.strip()
    if is_text and max(map(len, parts)) <= _MAX_LINE:
        return parts
    first, *others = _encoded_words(text, len(f"{field}: "))
    return [f"{field}: {first}", *(f" {one}" for one in others)]


def _encoded_words(text: str, taken: int) -> list[str]:
    """``text`` as encoded words (RFC 2047), of which each has whole characters, in the shorter of the two encodings.
    The first line already has ``taken`` characters. The spaces of ``text`` are in the words, since those between two
    words do not count."""
    encodings: tuple[tuple[str, Callable[[bytes], str]], ...] = (("q", _quoted), ("b", _base64))
    letter, encode = min(encodings, key=lambda one: len(one[1](text.encode())))
    words, part, room = [], b"", _MAX_LINE - taken - _FRAME
    for character in text:
        longer = part + character.encode()
        if len(encode(longer)) > room:
            words.append(part)
            longer, room = character.encode(), _MAX_WORD - _FRAME
        part = longer
    return [f"=?utf-8?{letter}?{encode(one)}?=" for one in (*words, part)]


def _quoted(raw: bytes) -> str:
    return "".join(
        "_" if byte == ord(" ") else chr(byte) if byte in _UNENCODED else f"={byte:02X}" for byte in raw
    )


def _base64(raw: bytes) -> str:
    return b64encode(raw).decode("ascii")
