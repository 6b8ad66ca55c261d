"""The program that resizes pictures, one after the other, in a process of its own: ``process.py LIMITS``.

Pictures are written by anybody, and the libraries that decode them are large and written in C. So this process has
no credentials, no open files of the service and a limit on its memory, and ``pool`` kills it when it takes too
long. Once all of its libraries are loaded it can open no file, no connection and no program, and reach no other
process (``confine``). It imports only the standard library and pyvips.

``LIMITS`` is a JSON object (``Limits``). For each picture it reads a line of JSON (``Job``) from standard input, and
then the picture; it writes a line of JSON to standard output, ``{"size": n}`` before the n bytes of the result, or
``{"refused": "invalid" | "too_large" | "unsupported", "why": …}``. It ends with standard input.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

# The exit code if pyvips or libvips is missing.
NOT_INSTALLED = 3
# The only formats that are read. All other loaders of libvips are blocked, those of SVG, PDF and TIFF among them.
LOADERS = ("Jpeg", "Png", "Webp", "Nsgif", "Heif")
# What is read and written.
FORMATS = ("jpeg", "png", "webp", "gif", "avif")
# What can hold an animation; other formats get its first image.
ANIMATED = frozenset({"webp", "gif"})
# A list of a few brands, of four bytes each.
MAX_FTYP_BYTES = 1024
# libvips' effort of compression from 0 to 9: with more AVIF takes many times as long for some percent of the size.
AVIF_EFFORT = 3
# From this value of EXIF's orientation on, width and height are exchanged.
FIRST_TURNED = 5

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC = 1, 1
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
# Of a BPF program: load a word, jump if equal, greater or equal, or a bit is set, and return.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# Where the number, the architecture and the first argument are in what a program is given.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
# Numbers from here on are those of x32.
_X32 = 0x40000000
_CLONE_THREAD = 0x00010000

# By the machine: its number for seccomp, and which of the numbers below are its own.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# System calls that are refused, with their numbers on x86-64 and on ARM64, where not all of them exist.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # Files, other than those that are open: their bytes, their names and what there is to know of them.
    "open": (2, None), "openat": (257, 56), "openat2": (437, 437), "creat": (85, None),
    "open_by_handle_at": (304, 265), "truncate": (76, 45), "unlink": (87, None), "unlinkat": (263, 35),
    "rmdir": (84, None), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "mkdir": (83, None), "mkdirat": (258, 34), "mknod": (133, None), "mknodat": (259, 33),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "readlink": (89, None), "readlinkat": (267, 78),
    "inotify_add_watch": (254, 27), "chroot": (161, 51), "pivot_root": (155, 41), "mount": (165, 40),
    "umount2": (166, 39),
    # Connections, and what other processes share.
    "socket": (41, 198), "socketpair": (53, 199), "io_uring_setup": (425, 425),
    "shmget": (29, 194), "shmat": (30, 196), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # Programs and processes.
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "unshare": (272, 97), "setns": (308, 268),
    # Large parts of the kernel that no picture needs.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
}  # fmt: skip
_CLONE, _CLONE3, _TGKILL, _PRLIMIT = (56, 220), (435, 435), (234, 131), (302, 261)
_SECCOMP, _CAPSET = (317, 277), (126, 91)
# As a user of its own this process may have so many threads.
MAX_THREADS = 100
# Where no user has a number: above those that containers are given.
FIRST_USER = 0x70000000
NOBODY = 65534


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


def survives(step: Callable[[], None]) -> bool:
    """Whether a process lives on after ``step``, tried in a child: what surrounds the service, such as
    ``SystemCallFilter`` of systemd, may end it. To be called while there is one thread."""
    child = os.fork()
    if child == 0:
        with suppress(Exception):
            step()
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    if status != 0:
        print(f"{step.__name__}: not allowed here", file=sys.stderr)  # noqa: T201  # it goes to the service's log
    return status == 0


def confine(limits: Limits, steps: Sequence[Callable[[], None]]) -> None:
    """Take from this process what decoding a picture does not need; of ``become_nobody`` and ``refuse_system_calls``
    what is in ``steps``. All code that pictures need must have been loaded."""
    # The system ends this process rather than the service if it runs out of memory.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("900")
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if become_nobody in steps:
        become_nobody()
    # Afterwards, because another user would have to say it again.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A Ctrl-C at the terminal is for the service, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != limits.parent:
        sys.exit("the service ended before its child began")
    for limit, value in (
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
    ):
        lower(limit, value)
    if refuse_system_calls in steps:
        refuse_system_calls()


def lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (lowered, lowered))


def drop_capabilities() -> None:
    """Give up what the service may do beyond its user, as to open a port below 1024. To be called while there is one
    thread, and by root only once it is another user, which drops them too."""
    if (machine := _MACHINES.get(os.uname().machine)) is not None and os.geteuid() != 0:
        # Version 3 of the structure, and no bit in any of its sets.
        ctypes.CDLL(None).syscall(_CAPSET[machine[1]], struct.pack("Ii", 0x20080522, 0), bytes(24))


def become_nobody() -> None:
    """As root: be a user whom nobody else is, without groups, so that no file and no other process is this one's."""
    if os.geteuid() != 0:
        return
    # The numbers of a container may end earlier; there it is nobody, as whom others may run too.
    for user in (FIRST_USER + os.getpid(), NOBODY):
        with suppress(OSError):
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            if user != NOBODY:
                lower(resource.RLIMIT_NPROC, MAX_THREADS)
            return
    print("a picture process remains root: it may not become another user", file=sys.stderr)  # noqa: T201


def refuse_system_calls() -> None:
    """From now on every thread gets EPERM for ``_REFUSED``, for a new process, and for what reaches another one."""
    machine = _MACHINES.get(os.uname().machine)
    if machine is None:
        print("system calls are not refused on this machine", file=sys.stderr)  # noqa: T201
        return
    program = b"".join(struct.pack("HBBI", *one) for one in filter_of(*machine, os.getpid()))
    code = ctypes.create_string_buffer(program)
    # struct sock_fprog
    filtered = struct.pack("HP", len(program) // 8, ctypes.addressof(code))
    number, libc = _SECCOMP[machine[1]], ctypes.CDLL(None, use_errno=True)
    # Without it only root may.
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.syscall(number, _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC, filtered) != 0:
        why = os.strerror(ctypes.get_errno())
        print(f"system calls are not refused: {why}", file=sys.stderr)  # noqa: T201


def filter_of(architecture: int, column: int, pid: int) -> list[tuple[int, int, int, int]]:
    """The BPF program: instructions with their code, how many to skip if true and if false, and a value."""

    def only_if(number: int, test: int, value: int) -> list[tuple[int, int, int, int]]:
        """Allow a system call only if its first argument is ``value``, or has this bit."""
        return [
            (_IF_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (test, 0, 1, value),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        ]

    refused = [number for one in _REFUSED.values() if (number := one[column]) is not None]
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_IF_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
        *only_if(_CLONE[column], _IF_BIT, _CLONE_THREAD),
        *only_if(_TGKILL[column], _IF_EQUAL, pid),
        *only_if(_PRLIMIT[column], _IF_EQUAL, 0),
        # Its arguments cannot be seen here. Without it the C library uses clone.
        (_IF_EQUAL, 0, 1, _CLONE3[column]),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        *(
            one
            for number in refused
            for one in ((_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM))
        ),
        (_RETURN, 0, 0, _ALLOW),
    ]


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


def load_codecs(pyvips: Any, limits: Limits) -> None:
    """Make a small picture of every format and read it, so that all code which that takes has been loaded."""
    image = pyvips.Image.black(2, 2, bands=3).copy(interpretation="srgb")
    for kind in FORMATS:
        job = Job(0, 1, 1, "cover", kind, 50, 1)
        # A libvips that was built without one refuses its pictures later.
        with suppress(pyvips.Error, Refused):
            resized(pyvips, _encoded(image, job), job, limits)


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
        "webp": {"Q": job.quality},
        "avif": {"Q": job.quality, "compression": "av1", "effort": AVIF_EFFORT},
    }
    suffix = "jpg" if job.format == "jpeg" else job.format
    encoded: bytes = image.write_to_buffer(f".{suffix}", keep="none", **options.get(job.format, {}))
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
    lower(resource.RLIMIT_CORE, 0)
    steps = [step for step in (drop_capabilities, become_nobody, refuse_system_calls) if survives(step)]
    if drop_capabilities in steps:
        drop_capabilities()
    pyvips = load_library()
    load_codecs(pyvips, limits)
    confine(limits, steps)
    serve(pyvips, limits, sys.stdin.buffer, results)


if __name__ == "__main__":
    main(sys.argv[1:])
