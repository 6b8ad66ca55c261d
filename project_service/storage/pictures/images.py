"""What the parameters ``width``, ``height``, ``fit``, ``format`` and ``quality`` of a download ask for. Pure but for
Werkzeug's parser of ``Accept``."""

from __future__ import annotations

import re
from functools import lru_cache

from attrs import field, frozen
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from project_service import whole_numbers
from project_service.errors import validation_failed
from project_service.http.head import HeaderView
from project_service.http.request import one_value, parse_parameters
from project_service.settings.model import Images
from project_service.storage import errors, keys

FITS = ("cover", "contain", "inside")
FORMATS = ("auto", "webp", "avif", "jpeg", "png")
MAX_QUALITY = 100
# With one format=auto the response depends on what the client accepts.
VARY = ("Vary", "Accept")

# Whether a query may have one of the parameters; most have not, and are not parsed for it.
_MAY_HAVE = re.compile(rb"width|height|fit|format|quality|%").search
# What may be resized, by the content type of the object. SVG is not among them: it can refer to other files.
_OF_TYPE = {
    "image/jpeg": "jpeg",
    "image/png": "png",
    "image/webp": "webp",
    "image/gif": "gif",
    "image/avif": "avif",
}
_VECTORS = "image/svg+xml"
_EXTENSIONS = {"jpeg": ".jpg", "png": ".png", "webp": ".webp", "gif": ".gif", "avif": ".avif"}
# Endings of keys that a new format replaces.
_ENDING = re.compile(r"\.(jpe?g|jfif|png|webp|gif|avif)\Z", re.IGNORECASE)
# Changed whenever the same parameters give another result, so that what is stored of old ones is not used any more.
_RULES = 1
# AVIF needs a lower number than JPEG for the same looks.
_AVIF_BELOW = 25


@frozen(cache_hash=True)
class Wanted:
    """The parameters as they were sent; None for those that were not. ``by_key``: an object whose content type is not
    that of a picture may be one by the ending of its key. ``vectors_whole``: an SVG, which fits any size, is sent as
    it is."""

    width: int | None
    height: int | None
    fit: str
    format: str | None
    quality: int | None
    by_key: bool = False
    vectors_whole: bool = False

    def is_whole(self, content_type: str) -> bool:
        """Whether an object of this type is sent as it is."""
        as_it_is = self.vectors_whole and self.format in (None, "auto")
        return as_it_is and keys.registered_type(content_type) == _VECTORS


@frozen
class Rendition:
    """A picture as it is to be: with all decided. ``name`` tells it from all others of its object."""

    width: int | None
    height: int | None
    fit: str
    format: str
    quality: int
    name: str = field(init=False)
    content_type: str = field(init=False)

    @name.default
    def _name(self) -> str:
        size = f"{self.width or ''}x{self.height or ''}"
        return f"{_RULES}-{self.fit}-{size}-{self.quality}.{self.format}"

    @content_type.default
    def _content_type(self) -> str:
        return f"image/{self.format}"

    def key(self, key: str) -> str:
        """The key of the object with the ending of this format, for the name of the file."""
        return _ENDING.sub("", key) + _EXTENSIONS[self.format]


def wanted(query: bytes, settings: Images) -> Wanted | None:
    """What a query asks for; None if it has none of the parameters. Raises ``validation_failed``, or
    ``invalid_query`` for one that is sent twice."""
    return _wanted(query, settings) if _MAY_HAVE(query) else None


# Both are cached, because pages ask for their pictures in the same few sizes: a stored picture takes 27 microseconds
# more than an object, without it 33.
@lru_cache(maxsize=256)
def _wanted(query: bytes, settings: Images) -> Wanted | None:
    sent = parse_parameters(query)
    width = _side("width", one_value(sent, "width"), settings)
    height = _side("height", one_value(sent, "height"), settings)
    fit = _choice("fit", one_value(sent, "fit"), FITS)
    chosen = _choice("format", one_value(sent, "format"), FORMATS)
    quality = _number("quality", one_value(sent, "quality"), MAX_QUALITY)
    if fit is not None and width is None and height is None:
        raise validation_failed({"fit": "needs width or height"})
    if width is None and height is None and chosen is None and quality is None:
        return None
    return Wanted(width, height, fit or FITS[0], chosen, quality)


def _side(name: str, text: str | None, settings: Images) -> int | None:
    number = _number(name, text, settings.max_size)
    if number is not None and settings.sizes and number not in settings.sizes:
        raise validation_failed({name: f"must be one of {', '.join(map(str, settings.sizes))}"})
    return number


def _number(name: str, text: str | None, maximum: int) -> int | None:
    if text is None:
        return None
    number = whole_numbers.from_digits(text)
    if number is None or not 1 <= number <= maximum:
        raise validation_failed({name: f"must be a whole number from 1 to {maximum}"})
    return number


def _choice(name: str, text: str | None, choices: tuple[str, ...]) -> str | None:
    if text is not None and text not in choices:
        raise validation_failed({name: f"must be one of {', '.join(choices)}"})
    return text


def rendition(
    wanted: Wanted, content_type: str, key: str, headers: HeaderView, settings: Images
) -> Rendition:
    """Decide what is still open, given the object's content type and key and what the client accepts. Parameters that
    make no difference are left out of the result, so that each picture is made once. Raises
    ``image_type_unsupported``."""
    if wanted.by_key and keys.registered_type(content_type) not in _OF_TYPE:
        content_type = keys.guess_content_type(key)
    accept = b",".join(headers.all(b"accept")) if wanted.format == "auto" else b""
    return _rendition(wanted, content_type, accept, settings)


@lru_cache(maxsize=256)
def _rendition(wanted: Wanted, content_type: str, accept: bytes, settings: Images) -> Rendition:
    source = _OF_TYPE.get(keys.registered_type(content_type))
    if source is None:
        raise errors.image_type_unsupported()
    chosen = wanted.format or source
    if chosen == "auto":
        chosen = _accepted(source, accept)
    both = wanted.width is not None and wanted.height is not None
    quality = 0 if chosen in ("png", "gif") else wanted.quality or _default_quality(chosen, settings)
    return Rendition(wanted.width, wanted.height, wanted.fit if both else "inside", chosen, quality)


def _default_quality(chosen: str, settings: Images) -> int:
    return max(1, settings.quality - _AVIF_BELOW) if chosen == "avif" else settings.quality


def _accepted(source: str, accept: bytes) -> str:
    """Of the formats that the client names in ``Accept`` the one that it prefers, of several the smallest; else the
    object's own. ``*/*`` names none: programs send it, and browsers beside what they name."""
    accepted = parse_accept_header(accept.decode("latin-1"), MIMEAccept)
    # Sorted by quality, the highest first: the last of a name that is there twice does not count.
    qualities = {keys.registered_type(kind): quality for kind, quality in reversed(accepted)}
    # These may be animated, which the AVIF that is made here never is.
    smallest = ("webp",) if source in ("gif", "webp") else ("avif", "webp")
    named = [one for one in (*smallest, source) if qualities.get(f"image/{one}", 0) > 0]
    return max(named, key=lambda one: qualities[f"image/{one}"], default=source)
