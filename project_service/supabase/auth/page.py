"""The page that the link of an e-mail opens: one button, so that nothing is used up by mail scanners, which open
links but post no forms. It works without script."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape

from project_service.http.describe import STRING, Answer
from project_service.http.response import NO_STORE, Reply
from project_service.redirects import Address

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:28rem;margin:15vh auto;padding:0 1rem;text-align:center}"
    "button,a{font:inherit;padding:.7rem 1.6rem;border:0;border-radius:.5rem;background:#1f5fbf;color:#fff;"
    "text-decoration:none}"
)
_STYLE_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
_CLOSE = "<p>You may close this page.</p>"
# By what links call the purposes: the question, and the button.
_WORDS = {
    "signup": ("Confirm your e-mail address?", "Confirm"),
    "email": ("Sign in?", "Sign in"),
    "magiclink": ("Sign in?", "Sign in"),
    "recovery": ("Go on to set a new password?", "Go on"),
    "invite": ("Accept the invitation?", "Accept"),
    "email_change": ("Confirm the new e-mail address?", "Confirm"),
}


def question(kind: str, token: str, target: Address | None) -> Reply:
    """Asks whoever opened a link of ``kind`` to go on. The form posts to the address of the page, whatever a proxy
    has made of it, from where it leads to ``target``."""
    words, button = _WORDS.get(kind, _WORDS["magiclink"])
    form = (
        '<form method="post">'
        f'<input type="hidden" name="type" value="{escape(kind)}">'
        f'<input type="hidden" name="token" value="{escape(token)}">'
        f"<button>{button}</button></form>"
    )
    # Browsers hold redirects of a form to its policy too.
    return _page(200, words, form, "" if target is None else target.source)


def offer(words: str, button: str, address: str, *headers: tuple[str, str]) -> Reply:
    """Asks whoever opened a page to go on to ``address``, which may be relative. It is a link: browsers would hold a
    form to all addresses that those behind it lead to."""
    content = f'<p><a href="{escape(address)}">{escape(button)}</a></p>'
    return _page(200, escape(words), content, "", *headers)


# In the description of endpoints that answer ``gone``.
GONE = Answer(410, "Without an application to lead to: that the link is not valid.", {"text/html": STRING})


def done(words: str) -> Reply:
    """Where there is no application to go back to (``auth.site_url``)."""
    return _page(200, words, _CLOSE, "")


def gone(words: str) -> Reply:
    """The same for a link that is not valid, whatever it is that it lacks."""
    return _page(410, words, _CLOSE, "")


def _page(status: int, words: str, content: str, leads_to: str, *more: tuple[str, str]) -> Reply:
    text = (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta name="robots" content="noindex"><title>{words}</title><style>{_STYLE}</style>'
        f"<h1>{words}</h1>{content}</html>"
    )
    policy = (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self' {leads_to}".rstrip()
        + "; base-uri 'none'; frame-ancestors 'none'"
    )
    headers = (
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Security-Policy", policy),
        ("Referrer-Policy", "no-referrer"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        NO_STORE,
        *more,
    )
    return Reply(status, headers, text.encode())
