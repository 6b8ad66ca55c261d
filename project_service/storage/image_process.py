"""The program that resizes pictures, one after the other, in a process of its own: ``image_process.py LIMITS``.

Pictures are written by anybody, and the libraries that decode them are large and written in C. So this process has
no credentials, no open files of the service and a limit on its memory; it writes no file and starts no program; and
``image_pool`` kills it when it takes too long. It imports only the standard library and pyvips.

``LIMITS`` is a JSON object (``Limits``). For each picture it reads a line of JSON (``Job``) from standard input, and
then the picture; it writes a line of JSON to standard output, ``{"size": n}`` before the n bytes of the result, or
``{"refused": "invalid" | "too_large" | "unsupported", "why": …}``. It ends with standard input.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

# The exit code if pyvips or libvips is missing.
NOT_INSTALLED = 3
# The only formats that are read. All other loaders of libvips are blocked, those of SVG, PDF and TIFF among them.
LOADERS = ("Jpeg", "Png", "Webp", "Nsgif", "Heif")
# What can hold an animation; other formats get its first image.
ANIMATED = frozenset({"webp", "gif"})
# A list of a few brands, of four bytes each.
MAX_FTYP_BYTES = 1024
# libvips' effort of compression from 0 to 9: with more AVIF takes many times as long for some percent of the size.
AVIF_EFFORT = 3
# From this value of EXIF's orientation on, width and height are exchanged.
FIRST_TURNED = 5

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38


class Limits(NamedTuple):
    """``memory_bytes`` of the process, ``pixels`` of a picture with all of its images, ``result_bytes``. ``parent``
    is the pid of the service."""

    memory_bytes: int
    pixels: int
    result_bytes: int
    parent: int


class Job(NamedTuple):
    """``size`` is that of the picture in bytes. ``longest`` is the greatest width or height of a result."""

    size: int
    width: int | None
    height: int | None
    fit: str
    format: str
    quality: int
    longest: int


class Shape(NamedTuple):
    """Scale to ``width`` and ``height``; the result is the middle of that, ``box_width`` by ``box_height``: smaller
    (cropped) or larger (padded)."""

    width: int
    height: int
    box_width: int
    box_height: int

    @property
    def offset(self) -> tuple[int, int]:
        """Where the box begins in the scaled picture (cropped), or the scaled picture in the box (padded)."""
        return abs(self.box_width - self.width) // 2, abs(self.box_height - self.height) // 2


def shape_of(width: int, height: int, job: Job) -> Shape:
    """What becomes of a picture that is shown ``width`` by ``height``. It is never enlarged."""
    if job.fit == "cover" and job.width is not None and job.height is not None:
        scale = max(job.width / width, job.height / height)
        # A picture that is too small to fill the box fills one of the same proportions.
        box = [max(1, round(side / max(scale, 1))) for side in (job.width, job.height)]
        scale = min(scale, 1)
        scaled = [max(side, round(of * scale)) for side, of in zip(box, (width, height), strict=True)]
        return Shape(scaled[0], scaled[1], box[0], box[1])
    within = job.width or job.longest, job.height or job.longest
    scale = min(1, within[0] / width, within[1] / height)
    scaled = [min(max(1, round(of * scale)), room) for room, of in zip(within, (width, height), strict=True)]
    if job.fit == "contain" and job.width is not None and job.height is not None:
        return Shape(scaled[0], scaled[1], job.width, job.height)
    return Shape(scaled[0], scaled[1], scaled[0], scaled[1])


class Refused(Exception):
    """``reason`` is "invalid", "too_large" or "unsupported"; the message is for the log."""

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason = reason


def confine(limits: Limits) -> None:
    """Take from this process what decoding a picture does not need."""
    # The system ends this process rather than the service if it runs out of memory.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("900")
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A Ctrl-C at the terminal is for the service, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != limits.parent:
        sys.exit("the service ended before its child began")
    for limit, value in (
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lowered, lowered))


def load_library() -> Any:
    """pyvips, with all loaders blocked but those of ``LOADERS``. Ends this process if it is not installed."""
    try:
        import pyvips
    except (ImportError, OSError) as fault:
        print(f"pyvips cannot be used: {fault}", file=sys.stderr)  # noqa: T201  # it goes to the service's log
        sys.exit(NOT_INSTALLED)
    pyvips.operation_block_set("VipsForeignLoad", True)
    for loader in LOADERS:
        pyvips.operation_block_set(f"VipsForeignLoad{loader}", False)
    # Nothing of a picture stays in memory for the next one.
    pyvips.cache_set_max(0)
    return pyvips


def brands(data: bytes) -> list[bytes]:
    """The brands of a file of the ISO Base Media File Format, such as AVIF (ISO/IEC 14496-12, 4.3): ``avis`` says
    that it has a sequence of images, which libvips does not read."""
    size = int.from_bytes(data[:4], "big")
    if data[4:8] != b"ftyp" or size > MAX_FTYP_BYTES:
        return []
    # Between the major brand and the compatible ones is a version.
    return [data[first : first + 4] for first in (8, *range(16, min(size, len(data)) - 3, 4))]


def resized(pyvips: Any, data: bytes, job: Job, limits: Limits) -> bytes:
    """The picture in ``data`` as ``job`` wants it. Raises ``Refused``."""
    if b"avis" in brands(data):
        raise Refused("unsupported", "an AVIF with more than one image")
    try:
        # Only the header is read here.
        header = pyvips.Image.new_from_buffer(data, "")
        images = header.get("n-pages") if header.get_typeof("n-pages") else 1
        if header.width * header.height * images > limits.pixels:
            raise Refused("too_large", f"{header.width} x {header.height} pixels, {images} images")
        turned = header.get_typeof("orientation") and header.get("orientation") >= FIRST_TURNED
        width, height = (header.height, header.width) if turned else (header.width, header.height)
        shape = shape_of(width, height, job)
        animated = images > 1 and job.format in ANIMATED
        # It is turned as EXIF says, and its colours are converted to sRGB if it has a profile.
        image = pyvips.Image.thumbnail_buffer(
            data,
            shape.width,
            height=shape.height,
            size="force",
            output_profile="srgb",
            # For the loader: all images of an animation, and nothing of what is cut short.
            option_string="fail_on=truncated" + (",n=-1" if animated else ""),
        )
        image = _with_channels(
            image, padded=shape.box_width > shape.width or shape.box_height > shape.height, job=job
        )
        image = _each_boxed(pyvips, image, shape) if animated else _boxed(image, shape)
        result = _encoded(image, job)
    except pyvips.Error as fault:
        why = str(fault)
        raise Refused("too_large" if "memory" in why else "invalid", why) from None
    if len(result) > limits.result_bytes:
        raise Refused("too_large", f"the result has {len(result)} bytes")
    return result


def _with_channels(image: Any, padded: bool, job: Job) -> Any:
    """sRGB with 8 bits, with transparency where the format has it and the padding needs it."""
    image = image.colourspace("srgb")
    if job.format == "jpeg":
        return image.flatten(background=255) if image.hasalpha() else image
    return image.addalpha() if padded and not image.hasalpha() else image


def _boxed(image: Any, shape: Shape) -> Any:
    """``image``, which has been scaled, cropped or padded to the box."""
    x, y = shape.offset
    width, height = min(shape.width, shape.box_width), min(shape.height, shape.box_height)
    if (width, height) != (shape.width, shape.height):
        image = image.crop(x, y, width, height)
    if (width, height) != (shape.box_width, shape.box_height):
        # Transparent, or white in a format without transparency.
        background = [0] * image.bands if image.hasalpha() else [255] * image.bands
        image = image.embed(
            x, y, shape.box_width, shape.box_height, extend="background", background=background
        )
    return image


def _each_boxed(pyvips: Any, image: Any, shape: Shape) -> Any:
    """As ``_boxed``, for an animation, whose images libvips has below each other in one."""
    if (shape.width, shape.height) == (shape.box_width, shape.box_height):
        return image
    strip = image.copy_memory()
    tops = range(0, strip.height, shape.height)
    images = [_boxed(strip.crop(0, top, strip.width, shape.height), shape) for top in tops]
    joined = pyvips.Image.arrayjoin(images, across=1).copy()
    joined.set_type(pyvips.GValue.gint_type, "page-height", shape.box_height)
    return joined


def _encoded(image: Any, job: Job) -> bytes:
    """``image`` in the format of ``job``, without EXIF, GPS, XMP or a colour profile."""
    options: dict[str, dict[str, Any]] = {
        "jpeg": {"Q": job.quality, "optimize_coding": True},
        "png": {},
        "webp": {"Q": job.quality},
        "avif": {"Q": job.quality, "compression": "av1", "effort": AVIF_EFFORT},
        "gif": {},
    }
    suffix = "jpg" if job.format == "jpeg" else job.format
    encoded: bytes = image.write_to_buffer(f".{suffix}", keep="none", **options[job.format])
    return encoded


def serve(pyvips: Any, limits: Limits, jobs: BinaryIO, results: BinaryIO) -> None:
    """Answer every job of ``jobs`` into ``results``."""
    while line := jobs.readline():
        job = Job(**json.loads(line))
        data = jobs.read(job.size)
        if len(data) < job.size:
            return
        result = b""
        answer: dict[str, int | str]
        try:
            result = resized(pyvips, data, job, limits)
            answer = {"size": len(result)}
        except Refused as refusal:
            answer = {"refused": refusal.reason, "why": str(refusal)}
        except MemoryError:
            answer = {"refused": "too_large", "why": "out of memory"}
        results.write(json.dumps(answer).encode() + b"\n" + result)
        results.flush()


def main(argv: list[str]) -> None:
    limits = Limits(**json.loads(argv[0]))
    # What libraries print must not come between the results.
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    pyvips = load_library()
    confine(limits)
    serve(pyvips, limits, sys.stdin.buffer, results)


if __name__ == "__main__":
    main(sys.argv[1:])
