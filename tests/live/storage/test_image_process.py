"""The processes for pictures, with libvips: what they make is read back, and what must do no harm is tried."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import zlib
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import pytest_twisted
import pyvips
from twisted.internet.defer import Deferred, gatherResults

from project_service.errors import ApiError
from project_service.lifecycle import start
from project_service.settings.model import Images
from project_service.storage.pictures import pool as image_pool
from project_service.storage.pictures import process as image_process
from project_service.storage.pictures.pool import ImagePool, NotInstalled, PictureRefused, ProcessGone
from project_service.storage.pictures.process import Job
from tests.fakes.store import FakeStream
from tests.live.waiting import until

MIB = 1024 * 1024
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
LOADERS = {
    "jpeg": "jpegload_buffer",
    "png": "pngload_buffer",
    "webp": "webpload_buffer",
    "gif": "gifload_buffer",
    "avif": "heifload_buffer",
}
# What may be in a picture beside its pixels and what describes them.
PRIVATE = ("exif-data", "xmp-data", "iptc-data", "icc-profile-data", "orientation", "png-comment-0-Comment")


class Stream(FakeStream):
    """Comes in one piece with its head, as small objects do."""

    def buffered(self) -> bytes:
        return self.payload


@asynccontextmanager
async def pool_with(**settings: Any) -> AsyncIterator[ImagePool]:
    from twisted.internet import reactor

    pool = ImagePool(reactor, Images(**settings), settings.get("processes", 1))
    try:
        yield pool
    finally:
        await pool.stop()
        assert not pool._alive


async def resize(pool: ImagePool, data: bytes, **job: Any) -> bytes:
    values: dict[str, Any] = {"width": None, "height": None, "fit": "cover", "format": "png", "quality": 80}
    process = await pool.acquire("")
    try:
        return await process.resize(Job(size=len(data), longest=2500, **{**values, **job}), Stream(data))
    finally:
        pool.release(process)


async def reason(pool: ImagePool, data: bytes, **job: Any) -> str:
    with pytest.raises(PictureRefused) as refused:
        await resize(pool, data, **job)
    return refused.value.reason


def coloured(width: int, height: int, colour: tuple[int, ...]) -> pyvips.Image:
    image = pyvips.Image.black(width, height, bands=len(colour)) + list(colour)
    return image.cast("uchar").copy(interpretation="srgb")


def striped(width: int = 60, height: int = 40) -> pyvips.Image:
    """Red, green and blue from left to right, each a third."""
    third = width // 3
    return pyvips.Image.arrayjoin([coloured(third, height, one) for one in (RED, GREEN, BLUE)], across=3)


def encoded(image: pyvips.Image, kind: str, **options: Any) -> bytes:
    suffix = ".jpg" if kind == "jpeg" else f".{kind}"
    more: dict[str, dict[str, Any]] = {
        "jpeg": {"Q": 95},
        "webp": {"lossless": True},
        "avif": {"compression": "av1", "Q": 95},
    }
    data: bytes = image.write_to_buffer(suffix, **{**more.get(kind, {}), **options})
    return data


def animated(width: int = 60, height: int = 40, kind: str = "gif") -> bytes:
    """Three images, in which red, green and blue move on by one."""
    stripes = [coloured(width // 3, height, one) for one in (RED, GREEN, BLUE)]
    images = [pyvips.Image.arrayjoin(stripes[n:] + stripes[:n], across=3) for n in range(3)]
    strip = pyvips.Image.arrayjoin(images, across=1).copy()
    strip.set_type(pyvips.GValue.gint_type, "page-height", height)
    strip.set_type(pyvips.GValue.array_int_type, "delay", [100, 200, 300])
    return encoded(strip, kind)


def colour_at(image: pyvips.Image, x: int, y: int) -> str:
    """The name of the nearest colour."""
    image = image.colourspace("srgb")
    pixel = (image.flatten(background=255) if image.hasalpha() else image)(x, y)
    names = {"red": RED, "green": GREEN, "blue": BLUE, "white": WHITE}
    return min(names, key=lambda name: sum(abs(a - b) for a, b in zip(names[name], pixel, strict=False)))


def read(data: bytes, pages: int = 1) -> pyvips.Image:
    return pyvips.Image.new_from_buffer(data, "", **({"n": pages} if pages != 1 else {}))


@pytest_twisted.ensureDeferred
async def test_every_format_becomes_every_other_in_every_shape() -> None:
    shapes = {
        ("cover", 20, 20): (20, 20),
        ("contain", 20, 20): (20, 20),
        ("inside", 20, 20): (20, 13),
        ("inside", 30, None): (30, 20),
        ("inside", None, None): (60, 40),
    }
    async with pool_with() as pool:
        for kind in LOADERS:
            data = encoded(striped(), kind)
            for to, loader in LOADERS.items():
                for (fit, width, height), size in shapes.items():
                    made = await resize(pool, data, width=width, height=height, fit=fit, format=to)
                    image = read(made)
                    case = (kind, to, fit, width, height)
                    assert image.get("vips-loader") == loader, case
                    assert (image.width, image.height) == size, case
                    assert not set(PRIVATE) & set(image.get_fields()), case
                    middle = colour_at(image, image.width // 2, image.height // 2)
                    assert middle == "green", case
                    edge = colour_at(image, 0, image.height // 2)
                    assert edge == ("green" if (fit, width) == ("cover", 20) else "red") or fit == "cover", (
                        case
                    )
                    # The padding of ``contain``.
                    assert (
                        colour_at(image, 10, 0) == ("white" if fit == "contain" else "green")
                        or fit == "inside"
                    )


@pytest_twisted.ensureDeferred
async def test_a_picture_is_turned_and_says_nothing_of_its_camera() -> None:
    source = striped().copy()
    source.set_type(pyvips.GValue.gint_type, "orientation", 6)
    source.set_type(pyvips.GValue.gstr_type, "exif-ifd0-Make", "Camera")
    source.set_type(pyvips.GValue.gstr_type, "exif-ifd3-GPSLatitude", "52/1 31/1 0/1")
    data = encoded(source, "jpeg")
    assert b"Camera" in data and read(data).get("orientation") == 6
    async with pool_with() as pool:
        for to in LOADERS:
            made = await resize(pool, data, width=20, format=to)
            image = read(made)
            # Turned to the right, red is at the top.
            assert (image.width, image.height) == (20, 30)
            assert [colour_at(image, 10, y) for y in (2, 15, 27)] == ["red", "green", "blue"]
            assert not [one for one in image.get_fields() if one.startswith("exif") or one in PRIVATE]
            assert b"Camera" not in made and b"GPS" not in made and b"Exif" not in made


@pytest_twisted.ensureDeferred
async def test_animations_stay_animated_where_the_format_can() -> None:
    async with pool_with() as pool:
        for kind in ("gif", "webp"):
            data = animated(kind=kind)
            for to in ("gif", "webp"):
                for fit, size in (("cover", (20, 20)), ("contain", (20, 20)), ("inside", (20, 13))):
                    made = await resize(pool, data, width=20, height=20, fit=fit, format=to)
                    image = read(made, -1)
                    assert (image.get("n-pages"), image.get("delay")) == (3, [100, 200, 300]), (kind, to)
                    assert (image.width, image.get("page-height")) == size
                    middles = [colour_at(image, 10, size[1] * n + size[1] // 2) for n in range(3)]
                    assert middles == ["green", "blue", "red"], (kind, to, fit)
            for to in ("jpeg", "png", "avif"):
                image = read(await resize(pool, data, width=20, format=to))
                assert (image.width, image.height) == (20, 13)
                assert colour_at(image, 10, 6) == "green"


@pytest_twisted.ensureDeferred
async def test_colours_depth_and_transparency() -> None:
    async with pool_with() as pool:
        wide = encoded(coloured(40, 40, (200, 30, 30)).icc_transform("p3", input_profile="srgb"), "png")
        assert "icc-profile-data" in read(wide).get_fields()
        pixel = read(await resize(pool, wide, width=10))(5, 5)
        assert all(abs(a - b) <= 6 for a, b in zip(pixel, (200, 30, 30), strict=True)), pixel
        cmyk = encoded(coloured(40, 40, (200, 30, 30)).icc_transform("cmyk", input_profile="srgb"), "jpeg")
        image = read(await resize(pool, cmyk, width=10, format="jpeg"))
        assert (image.bands, image.interpretation) == (3, "srgb")
        assert colour_at(image, 5, 5) == "red"
        deep = encoded(coloured(40, 40, RED).colourspace("rgb16"), "png")
        assert read(deep).format == "ushort"
        assert read(await resize(pool, deep, width=10)).format == "uchar"
        clear = encoded(coloured(40, 40, (255, 0, 0, 0)), "png")
        assert read(await resize(pool, clear, width=10, format="webp"))(5, 5)[3] == 0
        assert min(read(await resize(pool, clear, width=10, format="jpeg"))(5, 5)) >= 250
        padded = read(await resize(pool, encoded(striped(), "jpeg"), width=30, height=30, fit="contain"))
        assert (padded(5, 0)[3], padded(5, 15)[3]) == (0, 255)
        grey = encoded(coloured(40, 40, RED).colourspace("b-w"), "jpeg")
        assert read(await resize(pool, grey, width=10, format="jpeg")).interpretation == "srgb"


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    zeros = zlib.compressobj()
    row = zeros.compress(b"\0" * (width * 3 + 1))
    rows = row + b"".join(zeros.compress(b"\0" * (width * 3 + 1)) for _ in range(min(height, 3000) - 1))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows + zeros.flush()) + chunk(b"IEND", b"")


def gif_of(width: int, height: int, images: int) -> bytes:
    one = b"\x2c" + struct.pack("<HHHH", 0, 0, width, height) + b"\0\x02\x02\x44\x01\0"
    head = b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0\0\0\0\xff\xff\xff"
    return head + one * images + b";"


@pytest_twisted.ensureDeferred
async def test_decompression_bombs_are_refused_by_their_headers() -> None:
    async with pool_with(memory_bytes=256 * MIB) as pool:
        for bomb in (png_header(30_000, 30_000), gif_of(30_000, 30_000, 1), gif_of(1000, 1000, 5000)):
            for to in ("png", "webp"):
                assert await reason(pool, bomb, width=10, format=to) == "too_large"
        # All by one process, which took no memory for them.
        (process,) = pool._alive
        assert peak_bytes(process.transport.pid) < 128 * MIB


def peak_bytes(pid: int) -> int:
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest_twisted.ensureDeferred
async def test_what_is_broken_or_no_picture_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(encoded(striped(), "png"))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg"><image href="file://{secret}" width="9" height="9"/></svg>'
    )
    tiff: bytes = striped().write_to_buffer(".tif")
    async with pool_with() as pool:
        for data in (
            svg.encode(),
            tiff,
            b"%PDF-1.7\n",
            b"hello",
            b"\0" * 100,
            str(secret).encode(),
            b"P6 1 1 255 abc",
        ):
            assert await reason(pool, data, width=10) == "invalid", data[:20]
        noise = Random(5).randbytes(200 * 150 * 3)
        picture = pyvips.Image.new_from_memory(noise, 200, 150, 3, "uchar").copy(interpretation="srgb")
        for kind in LOADERS:
            data = encoded(picture, kind)
            assert await resize(pool, data, width=100)
            for size in (len(data) // 2, 30):
                assert await reason(pool, data[:size], width=100, format="webp") == "invalid", (kind, size)


# Two images of 4 by 4 pixels, as libavif writes them, compressed by zlib.
ANIMATED_AVIF = (
    "eNqNUz9P20AUf+dECIVQoUChoAhRCRWGDEmGCqkMoFQIBtopM3J9Njnh4yzf1UpRByPEzMQCX6Dic1RVB9S1IyPQT9Alat/Z"
    "Z2rMvz7p/P7d3e/33j0DwKKnPgV2xCSgoPa0zaXXYlIscea1OLM9TF1zV9mQysse9UNjQ8AcBQV5FjDFE4vgmmW+cLTzVvsk"
    "jZYudAbXImO73s3eGXRcy3h21Gx1hC8SrB4LwgD1BgscgXqCycA1eGWzELfPksPD+KnaUauzD3UdGHeEH+46fh/vHYWhGENT"
    "LOBZRUirTKwDvMP6xoWIMNTnUY8Sk79svh7806WrP0Y0S5KvnBQ6UfBX4FHB3daaCu0dXa/aSfDJXfw0dsMBHse8l0PWMYCG"
    "S5V+/HnXl8rgZSe+376DnHHKdMsanD7cm+xs9+t/DQvp8nQAJiLeowW68zTN1Wnoejkq1Y+hP5fa5LlUH3y0j6WSNLfnUI/P"
    "Ay3RxZdhHfV6tqOy+n5zriMQcPv+x3mRtPqJoRpzHJlU+NkckirpbkZCj7YmWUeyTi6e5YjJ7eWALfOnTOomSZVMP+T+IoxJ"
    "WbhrmVNb1aBS1cGj061X1szoSrs6Br+GTkYWYvLu7LwG7VqzFMeD32++jP9orMVgqemffwEvJJ08"
)


@pytest_twisted.ensureDeferred
async def test_an_animated_avif_is_unsupported_and_not_broken() -> None:
    animation = zlib.decompress(b64decode(ANIMATED_AVIF))
    still = encoded(striped(), "avif")
    end = int.from_bytes(still[:4], "big")
    async with pool_with() as pool:
        for data in (
            animation,
            animation[:200],
            # It says so as its own brand, or as one that it is compatible with.
            still[:8] + b"avis" + still[12:],
            still[: end - 4] + b"avis" + still[end:],
        ):
            assert await reason(pool, data, width=2) == "unsupported"
        assert await resize(pool, still, width=2)
        for data in (b"\0\0\0\x20ftyp", b"\xff\xff\xff\xffftypavis", b"\0\0\0\0ftypaviXavis"):
            assert await reason(pool, data, width=2) == "invalid"


@pytest_twisted.ensureDeferred
async def test_damaged_pictures_cost_nobody_else_anything() -> None:
    random = Random(7)
    good = {kind: encoded(striped(), kind) for kind in ("jpeg", "png", "webp", "avif")} | {"gif": animated()}
    async with pool_with(processes=2) as pool:

        async def one(data: bytes) -> None:
            try:
                await resize(pool, data, width=20, height=20, format="webp")
            except PictureRefused:
                return

        for _ in range(15):
            damaged = []
            for data in good.values():
                changed = bytearray(data)
                for _ in range(random.randrange(1, 6)):
                    changed[random.randrange(len(changed))] = random.randrange(256)
                damaged.append(bytes(changed))
            await gatherResults([start(one(data)) for data in damaged])
        for data in good.values():
            assert await resize(pool, data, width=20, height=20, format="webp")


def large_png() -> bytes:
    """Interlaced, so that all of its pixels must be in memory."""
    data: bytes = (
        pyvips.Image.black(6000, 6000, bands=3).copy(interpretation="srgb").pngsave_buffer(interlace=True)
    )
    return data


@pytest_twisted.ensureDeferred
async def test_memory_is_limited() -> None:
    data = large_png()
    async with pool_with(memory_bytes=96 * MIB) as pool:
        assert await reason(pool, data, width=100) == "too_large"
        assert await resize(pool, encoded(striped(), "png"), width=10)
    async with pool_with() as pool:
        assert read(await resize(pool, data, width=100)).width == 100


@pytest_twisted.ensureDeferred
async def test_time_is_limited() -> None:
    data = large_png()
    async with pool_with(timeout_seconds=0.3, memory_bytes=1024 * MIB) as pool:
        # The first may take longer for the start of its process, and is not counted.
        with pytest.raises(PictureRefused):
            for _ in range(3):
                await resize(pool, data, format="avif", quality=100)
        await until(lambda: not pool._alive)
    async with pool_with(timeout_seconds=30.0) as pool:
        assert await resize(pool, encoded(striped(), "png"), width=10)


@pytest_twisted.ensureDeferred
async def test_a_process_that_is_killed_is_replaced() -> None:
    async with pool_with() as pool:
        assert await resize(pool, encoded(striped(), "png"), width=10)
        (first,) = pool._alive
        slow = start(resize(pool, large_png(), format="avif", quality=100))
        small = encoded(striped(), "png")
        waiting: list[Deferred[object]] = [start(resize(pool, small, width=10)) for _ in range(3)]
        os.kill(first.transport.pid, signal.SIGKILL)
        with pytest.raises(ProcessGone):
            await slow
        assert all(await gatherResults(waiting))
        assert first not in pool._alive
        # One that is killed between its turn and its picture.
        (taken,) = pool._alive
        assert await pool.acquire("") is taken
        os.kill(taken.transport.pid, signal.SIGKILL)
        await until(lambda: not pool._alive)
        with pytest.raises(ProcessGone):
            await taken.resize(Job(1, 1, 1, "cover", "png", 80, 1), Stream(b"x"))
        pool.release(taken)
        assert await resize(pool, small, width=10)
        # One that is killed while nobody uses it.
        (second,) = pool._alive
        os.kill(second.transport.pid, signal.SIGKILL)
        await until(lambda: not pool._alive)
        assert await resize(pool, encoded(striped(), "png"), width=10)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import sys; sys.exit(3)", NotInstalled),
        ("import os; input(); os.kill(os.getpid(), 11)", PictureRefused),
        ("import os; input(); os.abort()", PictureRefused),
        ("input(); print('{\"size\": 1}\\n' + 'x' * 2000000)", ProcessGone),
        ("import sys; sys.exit(1)", ProcessGone),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_process_that_fails(
    program: str, expected: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(image_pool, "PROGRAM", tmp_path / "program.py")
    async with pool_with(max_source_bytes=MIB) as pool:
        with pytest.raises(expected):
            await resize(pool, b"x", width=1)
        await until(lambda: not pool._alive)


@pytest_twisted.ensureDeferred
async def test_a_process_has_nothing_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__STORE__SECRET_ACCESS_KEY", "hidden")
    async with pool_with() as pool:
        await resize(pool, encoded(striped(), "png"), width=10)
        (process,) = pool._alive
        proc = Path(f"/proc/{process.transport.pid}")
        environ = dict(one.split("=", 1) for one in (proc / "environ").read_text().strip("\0").split("\0"))
        assert environ == image_pool.ENVIRON
        opened = [str(one.readlink()) for one in (proc / "fd").iterdir()]
        assert not [one for one in opened if one.startswith("socket:")]
        assert len(opened) <= 6, opened
        limits = (proc / "limits").read_text()
        assert str(Images().memory_bytes) in limits
        status = (proc / "status").read_text()
        assert "NoNewPrivs:\t1" in status


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


@pytest_twisted.ensureDeferred
async def test_a_process_has_no_rights() -> None:
    async with pool_with() as pool:
        await resize(pool, encoded(striped(), "png"), width=10)
        (process,) = pool._alive
        status = status_of(process.transport.pid)
        assert status["Seccomp"] == "2"
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapInh"], 16) == 0
        if os.geteuid() == 0:
            users = {*status["Uid"].split(), *status["Gid"].split()}
            assert users <= {str(image_process.FIRST_USER + process.transport.pid), "65534"}
            assert status["Groups"].strip() == ""


# What code that a picture has smuggled in may try. Each is a function of ctypes or of Python.
ATTEMPTS = """
import ctypes, importlib.util, json, os, shutil, signal, socket, subprocess, sys, threading
spec = importlib.util.spec_from_file_location("image_process", sys.argv[1])
image_process = importlib.util.module_from_spec(spec)
spec.loader.exec_module(image_process)
victim, folder, parent = sys.argv[2], sys.argv[3], os.getppid()
opened = os.open(folder, os.O_RDONLY)
steps = [image_process.become_nobody, image_process.refuse_system_calls]
image_process.drop_capabilities()
image_process.confine(image_process.Limits(10**9, 1, 1, parent), steps)

def ends(function):
    try:
        function()
    except OSError as fault:
        return fault.errno
    return 0

def thread():
    one = threading.Thread(target=lambda: None)
    one.start()
    one.join()

results = {
    "read": ends(lambda: open(victim).read()),
    "write": ends(lambda: open(victim, "w")),
    "environment": ends(lambda: open(f"/proc/{parent}/environ").read()),
    "library": ends(lambda: open(os.__file__).read()),
    "at": ends(lambda: os.open("victim", os.O_RDONLY, dir_fd=opened)),
    "unlink": ends(lambda: os.unlink(victim)),
    "rename": ends(lambda: os.rename(victim, victim + "2")),
    "chmod": ends(lambda: os.chmod(victim, 0)),
    "link": ends(lambda: os.link(victim, victim + "2")),
    "symlink": ends(lambda: os.symlink("/", folder + "/link")),
    "mkdir": ends(lambda: os.mkdir(folder + "/new")),
    "truncate": ends(lambda: os.truncate(victim, 0)),
    "list": ends(lambda: os.listdir(folder)),
    "tcp": ends(lambda: socket.socket()),
    "udp": ends(lambda: socket.socket(type=socket.SOCK_DGRAM)),
    "unix": ends(lambda: socket.socket(socket.AF_UNIX)),
    "pair": ends(lambda: socket.socketpair()),
    "fork": ends(os.fork),
    "exec": ends(lambda: os.execv("/bin/true", ["true"])),
    "program": ends(lambda: subprocess.run(["/bin/true"])),
    "signal": ends(lambda: os.kill(parent, 0)),
    "thread": ends(thread),
    "abort": ends(lambda: signal.raise_signal(signal.SIGCHLD)),
}
print(json.dumps(results))
"""


def test_code_of_a_picture_reaches_no_file_no_network_and_no_process(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    victim = tmp_path / "victim"
    victim.write_text("secret")
    victim.chmod(0o666)
    argv = (image_pool.PROGRAM, victim, tmp_path)
    command = [sys.executable, "-I", "-B", "-c", ATTEMPTS, *map(str, argv)]
    ended = subprocess.run(command, capture_output=True, check=True, env=image_pool.ENVIRON)
    assert ended.stderr == b""
    results = json.loads(ended.stdout)
    allowed = ("thread", "abort")
    assert [results.pop(name) for name in allowed] == [0, 0]
    assert results == dict.fromkeys(results, errno.EPERM)
    assert (victim.read_text(), [one.name for one in tmp_path.iterdir()]) == ("secret", ["victim"])


# As a unit of systemd with SystemCallFilter that does not know of these calls: whoever makes one is ended.
WITHIN_A_FILTER = """
import ctypes, importlib.util, struct, sys
spec = importlib.util.spec_from_file_location("image_process", PROGRAM)
one = importlib.util.module_from_spec(spec)
spec.loader.exec_module(one)
_, column = one._MACHINES[one.os.uname().machine]
killed = [one._SECCOMP[column], one._CAPSET[column], *{0: [117, 119], 1: [147, 149]}[column]]
program = [(one._LOAD, 0, 0, 0)]
for number in killed:
    program += [(one._IF_EQUAL, 0, 1, number), (one._RETURN, 0, 0, one._KILL)]
code = ctypes.create_string_buffer(
    b"".join(struct.pack("HBBI", *each) for each in (*program, (one._RETURN, 0, 0, one._ALLOW)))
)
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, struct.pack("HP", len(program) + 1, ctypes.addressof(code))) == 0
one.main(sys.argv[1:])
"""


@pytest_twisted.ensureDeferred
async def test_where_the_service_itself_may_not_confine_it_pictures_are_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"PROGRAM = {str(image_pool.PROGRAM)!r}\n{WITHIN_A_FILTER}")
    monkeypatch.setattr(image_pool, "PROGRAM", program)
    async with pool_with() as pool:
        for kind in LOADERS:
            assert await resize(pool, encoded(striped(), kind), width=10)
        (process,) = pool._alive
        status = status_of(process.transport.pid)
        assert (status["NoNewPrivs"], status["Seccomp_filters"]) == ("1", "1")


@pytest_twisted.ensureDeferred
async def test_those_who_wait_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_pool, "MAX_WAITING", 2)
    data = encoded(striped(), "png")
    async with pool_with() as pool:
        process = await pool.acquire("a")
        waiting = [pool.acquire("a"), pool.acquire("b")]
        with pytest.raises(ApiError) as full:
            await pool.acquire("a")
        assert full.value.code == "overloaded"
        pool.release(process)
        assert waiting[0].called and not waiting[1].called
        pool.release(await waiting[0])
        pool.release(await waiting[1])
        assert await resize(pool, data, width=10)
    monkeypatch.setattr(image_pool, "WAIT_SECONDS", 0.05)
    async with pool_with() as pool:
        await pool.acquire("a")
        with pytest.raises(ApiError) as late:
            await pool.acquire("b")
        assert late.value.code == "overloaded"


@pytest_twisted.ensureDeferred
async def test_processes_end_when_they_are_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_pool, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(image_pool, "MAX_JOBS", 2)
    data = encoded(striped(), "png")
    async with pool_with() as pool:
        await resize(pool, data, width=10)
        (first,) = pool._alive
        await until(lambda: not pool._alive)
        for _ in range(5):
            await resize(pool, data, width=10)
        assert first not in pool._alive
        await until(lambda: not pool._alive)
