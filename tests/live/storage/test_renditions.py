"""Pictures that fit, by the whole service: PostgreSQL, SeaweedFS and libvips."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest_twisted
import pyvips
import requests
from twisted.internet.threads import deferToThread

from project_service.settings.model import Images
from project_service.storage.s3.reading import MAX_READS
from tests.live.sql import run_sql
from tests.live.storage.service import Running, call
from tests.live.waiting import until


def picture(width: int = 400, height: int = 300, seed: int = 1) -> bytes:
    noise = Random(seed).randbytes(width * height * 3)
    image = pyvips.Image.new_from_memory(noise, width, height, 3, "uchar").copy(interpretation="srgb")
    data: bytes = image.gaussblur(3).jpegsave_buffer(Q=90)
    return data


def put(
    running: Running, key: str, data: bytes, bucket: str = "private", content_type: str = "image/jpeg"
) -> None:
    headers = {**running.headers(), "Content-Type": content_type}
    assert call("PUT", running.url(key, bucket), headers=headers, data=data).status_code in (200, 201)


def get(running: Running, key: str, query: str, bucket: str = "private", **headers: str) -> requests.Response:
    return call("GET", f"{running.url(key, bucket)}?{query}", headers={**running.headers(), **headers})


def size_of(data: bytes) -> tuple[int, int]:
    image = pyvips.Image.new_from_buffer(data, "")
    return image.width, image.height


def pictures_made(running: Running) -> float:
    shown = call("GET", f"{running.api.base_url}/metrics").text
    found = re.search(r'^project_service_renditions_total{outcome="made"} (.+)$', shown, re.M)
    return float(found[1]) if found else 0.0


async def stored_and_known(running: Running) -> bool:
    """Whether the store has the bytes of the objects and of their renditions, and nothing else."""
    report = await running.behind.sweeper.verify()
    assert report.sound
    store = running.behind.objects.uploads.store
    held = {entry.key for entry in (await store.list()).objects if not entry.key.startswith(".")}
    known = run_sql(
        running.api.dsn,
        "select bucket || '/' || version from storage.objects union all"
        " select o.bucket || '/' || r.version from storage.renditions r"
        " join storage.objects o on o.version = r.rendition_of",
    )
    return held == {path for (path,) in known} and report.orphans == []


@pytest_twisted.ensureDeferred
async def test_twenty_first_requests_have_a_picture_made_once(running: Running) -> None:
    await deferToThread(put, running, "once.jpg", picture())
    before = await deferToThread(pictures_made, running)

    def session() -> list[requests.Response]:
        with ThreadPoolExecutor(20) as pool:
            return list(pool.map(lambda _: get(running, "once.jpg", "width=100&height=100"), range(20)))

    answers = await deferToThread(session)
    assert {one.status_code for one in answers} == {200}
    assert len({one.content for one in answers}) == len({one.headers["ETag"] for one in answers}) == 1
    assert size_of(answers[0].content) == (100, 100)
    assert await deferToThread(pictures_made, running) == before + 1
    assert await stored_and_known(running)


@pytest_twisted.ensureDeferred
async def test_a_jpeg_that_was_stored_as_a_png_is_a_picture_and_is_sent_as_a_png(running: Running) -> None:
    await deferToThread(put, running, "wrong.png", picture(), content_type="image/png")
    for query, kind in (("width=40", "png"), ("width=40&format=jpeg", "jpeg")):
        answer = await deferToThread(get, running, "wrong.png", query)
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, f"image/{kind}")
        image = pyvips.Image.new_from_buffer(answer.content, "")
        assert (image.width, image.get("vips-loader")) == (40, f"{kind}load_buffer")


@pytest_twisted.ensureDeferred
async def test_an_overwritten_object_never_shows_its_old_picture(running: Running) -> None:
    """While it is overwritten again and again, and pictures of it are requested: each is of the object that is there
    by then, or of one that came later."""
    sizes = [(400, 100 + 10 * number) for number in range(8)]

    def session() -> None:
        put(running, "again.jpg", picture(*sizes[0]))
        with ThreadPoolExecutor(4) as pool:
            for number, size in enumerate(sizes):
                put(running, "again.jpg", picture(*size, seed=number))
                for answer in pool.map(
                    lambda width: get(running, "again.jpg", f"width={width}"), (200, 40, 200, 40)
                ):
                    width, height = size_of(answer.content)
                    assert abs(height - width * size[1] / size[0]) <= 1, (number, width, height)

    await deferToThread(session)
    assert await stored_and_known(running)
    await deferToThread(call, "DELETE", running.url("again.jpg"), headers=running.headers())
    assert run_sql(running.api.dsn, "select count(*) from storage.garbage") == [(0,)]
    assert await stored_and_known(running)


@pytest_twisted.ensureDeferred
async def test_pictures_that_are_requested_while_their_object_is_overwritten(running: Running) -> None:
    def session() -> None:
        put(running, "race.jpg", picture(seed=0))
        with ThreadPoolExecutor(8) as pool:
            reading = [
                pool.submit(get, running, "race.jpg", f"width={10 + number}&format=webp")
                for number in range(40)
            ]
            # Fewer times than a request looks for the current version, after which it is 503.
            for number in range(1, MAX_READS):
                put(running, "race.jpg", picture(seed=number))
            assert {one.result().status_code for one in reading} == {200}
        assert call("DELETE", running.url("race.jpg"), headers=running.headers()).status_code == 204

    await deferToThread(session)
    await running.behind.sweeper.sweep()
    assert await stored_and_known(running)


@pytest_twisted.ensureDeferred
async def test_new_sizes_are_stored_when_there_are_as_many_as_there_may_be(running: Running) -> None:
    """Beside a size that is requested all the time, which stays."""
    await deferToThread(put, running, "many.jpg", picture(60, 45))
    before = await deferToThread(pictures_made, running)

    def session() -> None:
        def both(width: int) -> None:
            for one in (width, 60):
                answer = get(running, "many.jpg", f"width={one}&quality={width}" if one != 60 else "width=60")
                assert (answer.status_code, size_of(answer.content)[0]) == (200, min(one, 60))

        get(running, "many.jpg", "width=60")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(both, [1 + number % 59 for number in range(59)]))
            list(pool.map(lambda width: get(running, "many.jpg", f"width={width}&quality=99"), range(1, 50)))
            list(pool.map(both, range(1, 20)))

    await deferToThread(session)
    counted = run_sql(
        running.api.dsn,
        "select count(*) from storage.renditions r join storage.objects o on o.version = r.rendition_of"
        " where o.key = 'many.jpg'",
    )
    assert counted == [(Images().max_per_object,)]
    made = await deferToThread(pictures_made, running)
    assert (await deferToThread(get, running, "many.jpg", "width=60")).status_code == 200
    assert await deferToThread(pictures_made, running) == made >= before + 109
    # Their bytes went at once.
    assert run_sql(running.api.dsn, "select count(*) from storage.garbage") == [(0,)]
    assert await stored_and_known(running)


@pytest_twisted.ensureDeferred
async def test_conditions_ranges_and_heads_of_a_stored_picture(running: Running) -> None:
    def session() -> None:
        put(running, "like.jpg", picture(1200, 900))
        query = "width=1000&format=png"
        whole = get(running, "like.jpg", query)
        assert len(whole.content) > 100_000
        etag = whole.headers["ETag"]
        part = get(running, "like.jpg", query, Range="bytes=5000-99999", **{"If-Range": etag})
        assert (part.status_code, part.content) == (206, whole.content[5000:100_000])
        assert get(running, "like.jpg", query, **{"If-None-Match": etag}).status_code == 304
        head = call("HEAD", f"{running.url('like.jpg')}?{query}", headers=running.headers())
        assert head.headers["Content-Length"] == str(len(whole.content))
        assert get(running, "like.jpg", query).content == whole.content

    await deferToThread(session)


def processes_of_pictures() -> list[int]:
    """The pids of the image processes that this test's process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"pictures/process.py" in stat.with_name("cmdline").read_bytes():
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found


@pytest_twisted.ensureDeferred
async def test_killed_processes_cost_no_request(running: Running) -> None:
    """Each is tried again by another process; a request that meets two kills may be refused, with Retry-After."""

    def session() -> list[requests.Response]:
        put(running, "kill.jpg", picture(2000, 1500))
        with ThreadPoolExecutor(4) as pool:
            queries = [f"width={100 + number}&format=avif" for number in range(24)]
            return list(pool.map(lambda query: get(running, "kill.jpg", query), queries))

    answering = deferToThread(session)
    killed = 0

    def kill_one() -> bool:
        nonlocal killed
        if killed < 3 and (pids := processes_of_pictures()):
            os.kill(pids[0], signal.SIGKILL)
            killed += 1
        return bool(answering.called)

    await until(kill_one)
    answers = await answering
    assert killed == 3
    assert {one.status_code for one in answers} <= {200, 503}
    assert sum(one.status_code == 200 for one in answers) >= 20
    assert all(one.headers["Retry-After"] for one in answers if one.status_code == 503)
    retried = await deferToThread(get, running, "kill.jpg", "width=100&format=avif")
    assert retried.status_code == 200
    assert await stored_and_known(running)


@pytest_twisted.ensureDeferred
async def test_policies_decide_about_pictures_too(running: Running) -> None:
    """Whoever may not see the object gets 404 of all of its sizes; deleting it as a user drops them."""
    run_sql(
        running.api.dsn,
        "create policy see_own on storage.objects for select to authenticated"
        " using (bucket = 'ruled' and owner = auth.uid());"
        "create policy add_own on storage.objects for insert to authenticated"
        " with check (bucket = 'ruled' and owner = auth.uid());"
        "create policy change_own on storage.objects for update to authenticated"
        " using (bucket = 'ruled' and owner = auth.uid());"
        "create policy drop_own on storage.objects for delete to authenticated"
        " using (bucket = 'ruled' and owner = auth.uid())",
    )
    other = str((await running.api.sign_up("other@example.test"))["access_token"])

    def session() -> None:
        assert running.admin("POST", "", json={"name": "ruled", "policies": True}).status_code == 201
        put(running, "mine.jpg", picture(), "ruled")
        assert size_of(get(running, "mine.jpg", "width=40", "ruled").content) == (40, 30)
        for query in ("width=40", "width=41"):
            answer = get(running, "mine.jpg", query, "ruled", Authorization=f"Bearer {other}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "object_not_found")
        put(running, "mine.jpg", picture(300, 300), "ruled")
        assert size_of(get(running, "mine.jpg", "width=40", "ruled").content) == (40, 40)
        gone = call("DELETE", running.url("mine.jpg", "ruled"), headers=running.headers())
        assert gone.status_code == 204, gone.text

    await deferToThread(session)
    assert await stored_and_known(running)
