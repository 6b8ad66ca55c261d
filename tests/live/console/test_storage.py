"""The page of storage, as a person uses it: buckets and their rules, files, uploads, links."""

from __future__ import annotations

import hashlib
import io
import re
import struct
import wave
import zlib
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pytest
import requests
from playwright.sync_api import Browser, FilePayload, Locator, Page, Request, ViewportSize, expect

from tests.live.console.browsing import NARROW, WIDE, Axe, Running, Tab, opened
from tests.live.console.network import network_to
from tests.live.daemon import eventually

MIB = 2**20


@pytest.fixture
def bucket(running: Running) -> str:
    """The name of a bucket of the test's own."""
    name = f"b-{uuid4().hex[:8]}"
    assert running.call("POST", "/admin/buckets", json={"name": name}).status_code == 201
    return name


def put(running: Running, bucket: str, key: str, content: bytes = b"x", kind: str = "text/plain") -> None:
    path = f"/storage/buckets/{bucket}/objects/{quote(key)}"
    answer = running.call("PUT", path, data=content, headers={"Content-Type": kind})
    assert answer.status_code in (200, 201), answer.text


def keys_in(running: Running, bucket: str) -> list[str]:
    query = {"recursive": "true", "max_keys": "1000"}
    listing = running.call("GET", f"/storage/buckets/{bucket}/objects", params=query).json()
    return [one["key"] for one in listing["objects"]]


def file(name: str, content: bytes, kind: str = "text/plain") -> FilePayload:
    return {"name": name, "mimeType": kind, "buffer": content}


def picture(width: int = 64, height: int = 48) -> bytes:
    """A PNG."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    row = b"\0" + b"".join(bytes((x * 255 // width, 90, 160)) for x in range(width))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(row * height))
        + chunk(b"IEND", b"")
    )


def sound() -> bytes:
    """A second of silence."""
    written = io.BytesIO()
    with wave.open(written, "wb") as made:
        made.setnchannels(1)
        made.setsampwidth(1)
        made.setframerate(8000)
        made.writeframes(b"\x80" * 8000)
    return written.getvalue()


PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj "
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]>>endobj trailer<</Root 1 0 R>>"
)


def upload(page: Page, *files: FilePayload) -> None:
    page.locator(".choose-files").set_input_files(list(files))


def upload_from(page: Page, path: Path) -> None:
    page.locator(".choose-files").set_input_files(path)


def dialog(page: Page, title: str) -> Locator:
    return page.get_by_role("dialog", name=title)


def leave(page: Page) -> None:
    """Close the file that is shown."""
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page).not_to_have_url(re.compile("file="))


def test_a_bucket_is_made_changed_and_deleted(tab: Tab, running: Running) -> None:
    page, name = tab.page, f"b-{uuid4().hex[:8]}"
    tab.go("storage")
    page.get_by_role("button", name="New bucket").click()
    form = dialog(page, "New bucket")
    form.get_by_label("Name").fill("Not a name")
    form.get_by_label("Quota of the bucket", exact=True).fill("5")
    form.get_by_label("Content types").fill("image/*, text/plain")
    form.get_by_role("button", name="Make bucket").click()
    # What the service says of a field stands at the field, and what was typed stays.
    expect(form.locator(".field", has_text="Name").locator(".wrong")).not_to_be_empty()
    form.get_by_label("Name").fill(name)
    form.get_by_role("button", name="Make bucket").click()
    # And there one is.
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    page.get_by_role("link", name="Buckets").click()
    card = page.get_by_role("list", name="Buckets").get_by_role("listitem").filter(has_text=name)
    expect(card).to_contain_text("Private")
    expect(card).to_contain_text("0 B of 5 MiB")
    made = running.call("GET", f"/admin/buckets/{name}").json()
    assert (made["max_bucket_bytes"], made["allowed_content_types"]) == (5 * MIB, ["image/*", "text/plain"])

    card.get_by_role("button", name="Rules").click()
    form = dialog(page, f"Rules of {name}")
    form.get_by_role("radio", name="Public").check()
    form.get_by_label("Open to everybody").check()
    form.get_by_role("button", name="Save rules").click()
    expect(card).to_contain_text("Everybody reads, without a key")
    changed = running.call("GET", f"/admin/buckets/{name}").json()
    assert changed["anonymous_reads"] is True
    assert changed["max_bucket_bytes"] == 5 * MIB

    put(running, name, "a.txt")
    page.reload()
    card.get_by_role("button", name="Delete").click()
    sure = dialog(page, f"Delete the bucket {name}?")
    expect(sure).to_contain_text("1 file, 1 B")
    sure.get_by_role("textbox").fill(name)
    sure.get_by_role("button", name="Delete bucket").click()
    expect(card).to_have_count(0)
    assert running.call("GET", f"/admin/buckets/{name}").status_code == 404


def test_what_is_wrong_with_a_bucket_is_in_sight(chrome: Browser, running: Running) -> None:
    with opened(chrome, running, viewport={"width": 1280, "height": 480}) as tab:
        page, name = tab.page, f"b-{uuid4().hex[:8]}"
        tab.go("storage?new")
        form = dialog(page, "New bucket")
        form.get_by_label("Name").fill(name)
        types = form.get_by_label("Content types")
        types.fill("pictures")
        form.get_by_label("Cache-Control").fill("max-age=60")
        form.get_by_role("button", name="Make bucket").click()
        expect(types).to_be_focused()
        expect(types).to_be_in_viewport()
        expect(form.get_by_role("alert")).to_have_text(
            "Content types: Write types such as image/*, with commas between them."
        )
        expect(form.get_by_role("alert")).to_be_in_viewport()
        types.fill("")
        form.get_by_role("button", name="Pictures").click()
        form.get_by_role("button", name="PDF").click()
        expect(types).to_have_value("image/*, application/pdf")
        form.get_by_role("button", name="Make bucket").click()
        expect(form).to_have_count(0)
        made = running.call("GET", f"/admin/buckets/{name}").json()
        assert made["allowed_content_types"] == ["image/*", "application/pdf"]


def test_an_upload_that_is_cancelled_leaves_nothing(
    chrome: Browser, running: Running, bucket: str, tmp_path: Path
) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(20 * MIB))
    with network_to(running, 8 * MIB) as (network, reached), opened(chrome, reached) as tab:
        page = tab.page
        tab.go(f"storage/{bucket}")
        # It does not come to its end before it is cancelled.
        network.room = 3 * MIB
        with page.expect_response(re.compile("/resumable$")) as begun:
            upload_from(page, large)
        shown = page.get_by_role("region", name="Uploads").get_by_role("listitem")
        expect(shown).to_contain_text(re.compile(r"[1-9][\d.]* MiB of 20 MiB"))
        shown.get_by_role("button", name="Cancel large.bin").click()
        network.room = inf
        expect(shown).to_have_count(0)
        path = begun.value.headers["location"]
    assert running.call("HEAD", path, headers={"Tus-Resumable": "1.0.0"}).status_code == 404
    assert keys_in(running, bucket) == []


def test_a_broken_upload_goes_on_where_it_was(
    chrome: Browser, running: Running, bucket: str, tmp_path: Path
) -> None:
    content = bytes(range(256)) * (24 * MIB // 256)
    film = tmp_path / "film.bin"
    film.write_bytes(content)
    offsets: list[int] = []

    def seen(request: Request) -> None:
        if request.method == "PATCH":
            offsets.append(int(request.headers["upload-offset"]))

    with network_to(running, 8 * MIB) as (network, reached), opened(chrome, reached) as tab:
        page = tab.page
        page.on("request", seen)
        tab.go(f"storage/{bucket}/films")
        shown = page.get_by_role("region", name="Uploads").get_by_role("listitem")
        # Some of it arrives, however long it takes to look.
        network.room = 3 * MIB
        upload_from(page, film)
        eventually(lambda: network.room <= 0, "a part of the film")
        expect(shown).to_contain_text(re.compile(r"[1-9][\d.]* MiB of 24 MiB"))
        tab.expected.append("net::ERR_")
        network.broken = True
        expect(shown).to_contain_text("The service does not answer")
        network.room = 3 * MIB
        network.broken = False
        eventually(lambda: network.room <= 0, "another part of it")
        expect(shown).to_have_class(re.compile("sending"))
        # By hand as well.
        shown.get_by_role("button", name="Pause films/film.bin").click()
        expect(shown).to_contain_text("Paused at")
        network.room = inf
        # And after the page was loaded anew, when the file has been chosen again.
        page.reload()
        upload_from(page, film)
        expect(shown).to_have_class(re.compile("done"))
        expect(page.get_by_role("link", name="film.bin")).to_be_visible()
    assert offsets[0] == 0
    assert 0 < offsets[1] < offsets[-1]
    got = running.call("GET", f"/storage/buckets/{bucket}/objects/films/film.bin").content
    assert hashlib.sha256(got).digest() == hashlib.sha256(content).digest()


def test_files_that_are_dropped_are_uploaded(tab: Tab, running: Running, bucket: str) -> None:
    page = tab.page
    tab.go(f"storage/{bucket}/trip")
    expect(page.get_by_text("Nothing is in here yet")).to_be_visible()
    dropped = page.evaluate_handle(
        """() => {
          const dropped = new DataTransfer()
          for (const name of ["a.txt", "b.txt", "c.txt", "d.txt"]) dropped.items.add(new File([name], name))
          return dropped
        }"""
    )
    place = page.locator("ps-folder > .page")
    place.dispatch_event("dragenter", {"dataTransfer": dropped})
    expect(page.get_by_text("Drop files to upload them into trip")).to_be_visible()
    place.dispatch_event("drop", {"dataTransfer": dropped})
    expect(page.locator(".file-row")).to_have_count(4)
    assert keys_in(running, bucket) == [f"trip/{name}.txt" for name in "abcd"]


def test_a_name_that_is_taken_is_asked_about(tab: Tab, running: Running, bucket: str) -> None:
    page = tab.page
    put(running, bucket, "a.txt", b"old")
    tab.go(f"storage/{bucket}")
    upload(page, file("a.txt", b"new"), file("b.txt", b""))
    shown = page.get_by_role("region", name="Uploads").get_by_role("listitem")
    expect(shown.filter(has_text="b.txt")).to_have_class(re.compile("done"))
    taken = shown.filter(has_text="a.txt")
    expect(taken).to_contain_text("There is a file of this name already.")
    # Once the folder has it, nothing moves any more while a button is pressed.
    expect(page.get_by_role("link", name="b.txt")).to_be_visible()
    path = f"/storage/buckets/{bucket}/objects/a.txt"
    assert running.call("GET", path).content == b"old"
    taken.get_by_role("button", name="Replace").click()
    expect(taken).to_have_class(re.compile("done"))
    assert running.call("GET", path).content == b"new"


def test_what_a_bucket_does_not_take_is_not_sent(tab: Tab, running: Running, bucket: str) -> None:
    page, sent = tab.page, list[str]()
    rules = {"max_object_bytes": 5 * MIB, "allowed_content_types": ["image/png", "image/webp"]}
    assert running.call("PATCH", f"/admin/buckets/{bucket}", json=rules).status_code == 200
    page.on("request", lambda request: sent.append(request.url) if request.method == "PUT" else None)
    tab.go(f"storage/{bucket}")
    upload(
        page,
        file("huge.png", bytes(int(5.7 * MIB)), "image/png"),
        file("notes.txt", b"1", "text/plain"),
        # Only the service knows whether that is another name of what the bucket takes.
        file("p.gif", b"GIF89a", "image/gif"),
        file("p.png", picture(), "image/x-png"),
    )
    shown = page.get_by_role("region", name="Uploads")
    expect(shown.get_by_role("status")).to_have_text("3 of 4 files were refused")
    for name, why in (
        ("huge.png", "huge.png has 5.7 MiB; this bucket takes up to 5 MiB."),
        ("notes.txt", "notes.txt is text/plain; this bucket takes image/png, image/webp."),
        ("p.gif", "p.gif is image/gif; this bucket takes image/png, image/webp."),
    ):
        row = shown.get_by_role("listitem").filter(has_text=why)
        expect(row).to_have_count(1)
        expect(row.get_by_role("button", name=f"Go on with {name}")).to_have_count(0)
    assert sorted(url.rpartition("/")[2] for url in sent) == ["p.gif", "p.png"]
    assert keys_in(running, bucket) == ["p.png"]
    # Whoever has changed the rules chooses it again.
    running.call("PATCH", f"/admin/buckets/{bucket}", json={"allowed_content_types": None})
    upload(page, file("notes.txt", b"1", "text/plain"))
    expect(page.get_by_role("link", name="notes.txt")).to_be_visible()


def test_files_are_shown_by_what_they_are(tab: Tab, running: Running, bucket: str) -> None:
    page = tab.page
    put(running, bucket, "p.png", picture(), "image/png")
    put(running, bucket, "t.txt", b"A line.\n" * 40_000)
    put(running, bucket, "d.pdf", PDF, "application/pdf")
    put(running, bucket, "s.wav", sound(), "audio/wav")
    put(running, bucket, "broken.png", b"no picture", "image/png")
    tab.go(f"storage/{bucket}")

    def shown(name: str) -> Locator:
        page.get_by_role("link", name=name, exact=True).click()
        return dialog(page, name)

    expect(shown("p.png").get_by_role("img", name="p.png")).to_have_js_property("naturalWidth", 64)
    leave(page)
    text = shown("t.txt")
    expect(text.get_by_label("Preview")).to_contain_text("A line.")
    expect(text).to_contain_text("These are the first 256 KiB.")
    assert len(text.get_by_label("Preview").inner_text()) <= 256 * 1024
    # Back closes what was opened, and the address opens it again.
    page.go_back()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.go_forward()
    expect(text).to_be_visible()
    leave(page)
    expect(shown("d.pdf").locator("iframe")).to_have_attribute("src", re.compile("^blob:"))
    leave(page)
    heard = shown("s.wav").get_by_label("s.wav", exact=True)
    expect(heard).to_have_js_property("duration", 1)
    leave(page)
    expect(shown("broken.png")).to_contain_text("The browser cannot show this")


def test_a_large_film_is_played_by_a_link_that_ends_with_it(tab: Tab, running: Running, bucket: str) -> None:
    page = tab.page
    put(running, bucket, "film.webm", bytes(33 * MIB), "video/webm")
    with page.expect_request(re.compile("/storage/download")) as asked:
        tab.go(f"storage/{bucket}?file=film.webm")
    assert "inline=true" in asked.value.url
    assert asked.value.headers.get("range") == "bytes=0-"
    expect(dialog(page, "film.webm")).to_contain_text("The browser cannot show this")
    leave(page)
    eventually(
        lambda: running.call("GET", f"/storage/buckets/{bucket}/links").json()["links"] == [],
        "what was decided to be done",
    )


HOSTILE = [
    "<img src=x onerror=pwned()>.txt",
    '"><script>pwned()',
    "javascript:pwned().txt",
    "שלום مرحبا.txt",
    "a" * 860 + ".txt",
    "${pwned()} {{pwned()}}.txt",
    "?file=x&sort=size#top.txt",
    "%2e%2e%2f.txt",
]


def test_hostile_names_and_files_are_text(tab: Tab, running: Running, bucket: str) -> None:
    page = tab.page
    for name in HOSTILE:
        put(running, bucket, f"dir <b>{name[:20]}/{name}", b"<script>pwned()</script>", "text/html")
    svg = (
        b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><script>parent.pwned()</script></svg>"
    )
    put(running, bucket, "x.svg", svg, "image/svg+xml")
    page.evaluate("() => { globalThis.pwned = () => { globalThis.wasPwned = true } }")
    for viewport in (WIDE, NARROW):
        page.set_viewport_size(viewport)
        tab.go(f"storage/{bucket}")
        expect(page.get_by_role("link", name="dir <b>")).to_have_count(len(HOSTILE))
        tab.has_no_sideways_scrolling()
        for name in HOSTILE:
            tab.go(f"storage/{bucket}/{quote(f'dir <b>{name[:20]}', safe='')}")
            link = page.locator(".file-row a")
            expect(link).to_have_count(1)
            link.click()
            preview = page.get_by_role("dialog").get_by_label("Preview")
            expect(preview).to_have_text("<script>pwned()</script>")
            tab.has_no_sideways_scrolling()
            leave(page)
        tab.go(f"storage/{bucket}?file=x.svg")
        expect(page.get_by_role("img", name="x.svg")).to_have_js_property("naturalWidth", 9)
        leave(page)
    assert page.evaluate("globalThis.wasPwned === undefined")


def test_many_are_deleted_after_a_moment_in_which_that_can_be_undone(
    tab: Tab, running: Running, bucket: str
) -> None:
    page, names = tab.page, [f"{number}.txt" for number in range(9)]
    for name in names:
        put(running, bucket, name)
    tab.go(f"storage/{bucket}")
    rows = page.locator(".file-row")
    page.get_by_label("Select 2.txt").click()
    page.get_by_label("Select 5.txt").click(modifiers=["Shift"])
    delete = page.get_by_role("button", name="Delete")
    expect(page.get_by_text("4 selected")).to_be_visible()
    delete.click()
    expect(rows).to_have_count(5)
    assert keys_in(running, bucket) == names
    page.get_by_role("button", name="Undo").click()
    expect(rows).to_have_count(9)

    page.get_by_label("Select 8.txt").check()
    delete.click()
    expect(rows).to_have_count(8)
    page.keyboard.press("Control+z")
    expect(rows).to_have_count(9)

    # It stands still where nothing lets it run, whatever else takes its time.
    page.clock.pause_at(datetime.now(UTC) + timedelta(minutes=1))
    page.get_by_label("Select 8.txt").check()
    delete.click()
    expect(page.get_by_text("Deleting 1 file …")).to_be_visible()
    page.clock.run_for(19_000)
    # Whoever is about to undo it is not too late.
    page.get_by_text("Deleting 1 file …").hover()
    page.clock.run_for(60_000)
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    assert keys_in(running, bucket) == names
    page.mouse.move(0, 0)
    with page.expect_response(re.compile("/delete$")):
        page.clock.run_for(20_000)
    expect(page.get_by_text("Deleted 1 file.")).to_be_visible()
    expect(page.get_by_text("Deleting 1 file …")).to_have_count(0)
    expect(rows).to_have_count(8)
    assert keys_in(running, bucket) == names[:8]
    page.clock.resume()

    # Whoever leaves has decided.
    page.get_by_label("Select 7.txt").check()
    delete.click()
    expect(rows).to_have_count(7)
    page.goto("about:blank")
    eventually(lambda: keys_in(running, bucket) == names[:7], "what was decided to be done")


def test_more_than_can_be_sent_on_leaving_is_deleted_at_once(tab: Tab, running: Running, bucket: str) -> None:
    running.sql(
        "insert into storage.objects (bucket, key, version, size, content_type, etag) select %s,"
        " n || repeat('x', 400), gen_random_uuid(), 1, 'text/plain', '' from generate_series(1, 150) n",
        bucket,
    )
    page = tab.page
    tab.go(f"storage/{bucket}")
    page.get_by_label("Select all").check()
    page.get_by_role("button", name="Delete").click()
    sure = dialog(page, "Delete 150 files?")
    expect(sure).to_contain_text("cannot be undone")
    sure.get_by_role("button", name="Delete 150 files").click()
    expect(page.get_by_text("Nothing is in here yet")).to_be_visible()  # also while they are being deleted
    expect(page.get_by_text("Deleted 150 files.")).to_be_visible()
    assert keys_in(running, bucket) == []


def test_a_file_is_deleted_where_it_is_looked_at(tab: Tab, running: Running, bucket: str) -> None:
    page = tab.page
    put(running, bucket, "a.txt")
    tab.go(f"storage/{bucket}")
    page.get_by_role("link", name="a.txt").click()
    dialog(page, "a.txt").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Nothing is in here yet")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("link", name="a.txt")).to_be_visible()
    assert keys_in(running, bucket) == ["a.txt"]


def test_a_folder_is_deleted_with_what_is_in_it(tab: Tab, running: Running, bucket: str) -> None:
    page = tab.page
    for key in ("trip/1.txt", "trip/deep/2.txt", "other/3.txt"):
        put(running, bucket, key, b"12345")
    tab.go(f"storage/{bucket}")
    page.get_by_label("Select trip").check()
    page.get_by_role("button", name="Delete").click()
    sure = dialog(page, "Delete 1 folder?")
    expect(sure).to_contain_text("In the folder: 2 files, 10 B.")
    sure.get_by_role("button", name="Delete 1 folder").click()
    expect(page.get_by_role("link", name="trip")).to_have_count(0)
    # Another page of the console is another place: it is sent now.
    page.get_by_role("link", name="Buckets").click()
    eventually(lambda: keys_in(running, bucket) == ["other/3.txt"], "what was decided to be done")


def test_files_and_folders_are_renamed_moved_and_copied(tab: Tab, running: Running, bucket: str) -> None:
    page = tab.page
    for key in ("a.txt", "trip/1.txt", "trip/deep/2.txt"):
        put(running, bucket, key, key.encode())
    tab.go(f"storage/{bucket}")
    page.get_by_label("Select trip").check()
    page.get_by_role("button", name="Rename or move").click()
    form = dialog(page, "Rename or move trip")
    form.get_by_label("New name").fill("journey")
    form.get_by_role("button", name="Move").click()
    expect(page.get_by_role("link", name="journey")).to_be_visible()
    assert keys_in(running, bucket) == ["a.txt", "journey/1.txt", "journey/deep/2.txt"]

    page.get_by_role("link", name="a.txt").click()
    dialog(page, "a.txt").get_by_role("button", name="Copy").click()
    form = dialog(page, "Copy a.txt")
    form.get_by_label("New name").fill("journey/1.txt")
    form.get_by_role("button", name="Copy").click()
    expect(form).to_contain_text("0 of 1 done.")
    assert running.call("GET", f"/storage/buckets/{bucket}/objects/journey/1.txt").content == b"trip/1.txt"
    form.get_by_role("button", name="Close").last.click()
    dialog(page, "a.txt").get_by_role("button", name="Copy").click()
    form.get_by_label("Bucket").select_option("private")
    form.get_by_label("New name").fill(f"{bucket}/a.txt")
    form.get_by_role("button", name="Copy").click()
    expect(form).to_have_count(0)
    assert running.call("GET", f"/storage/buckets/private/objects/{bucket}/a.txt").content == b"a.txt"


def test_details_are_shown_and_changed(tab: Tab, running: Running, bucket: str) -> None:
    page, owner = tab.page, str(uuid4())
    put(running, bucket, "a.txt")
    path = f"/storage/buckets/{bucket}/objects/a.txt"
    assert running.call("PATCH", path, json={"owner": owner}).status_code == 200
    tab.go(f"storage/{bucket}?file=a.txt")
    shown = dialog(page, "a.txt")
    expect(shown.get_by_role("link", name=owner)).to_have_attribute("href", f"#/users/{owner}")
    shown.get_by_text("Edit its details").click()
    shown.get_by_label("Cache-Control").fill("max-age=60")
    shown.get_by_label("Metadata").fill('{"album": ')
    shown.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("The metadata is not JSON")
    shown.get_by_label("Metadata").fill('{"album": "trip"}')
    shown.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.")).to_be_visible()
    known = running.call("GET", path, params={"info": "true"}).json()
    assert (known["cache_control"], known["metadata"], known["owner"]) == (
        "max-age=60",
        {"album": "trip"},
        owner,
    )


def test_links_are_made_listed_and_revoked(chrome: Browser, running: Running, bucket: str) -> None:
    put(running, bucket, "a.txt", b"content")
    with opened(chrome, running, permissions=["clipboard-read", "clipboard-write"]) as tab:
        page = tab.page
        tab.go(f"storage/{bucket}?file=a.txt")
        dialog(page, "a.txt").get_by_role("button", name="Link").click()
        made = dialog(page, "Link for a download")
        expect(made.get_by_label("Works for").get_by_role("option")).to_have_text(
            ["5 minutes", "1 hour", "1 day", "7 days"]
        )
        expect(made.get_by_label("Works for")).to_have_value("3600")
        made.get_by_label("Works for").select_option(label="1 day")
        expect(made.get_by_label("Any number of times")).to_be_checked()
        made.get_by_role("button", name="Make link").click()
        expect(made).to_contain_text("It works for 1 day, any number of times, until")
        made.get_by_role("button", name="Copy link").click()
        expect(page.get_by_text("Copied the link.")).to_be_visible()
        url = page.evaluate("navigator.clipboard.readText()")
        assert requests.get(url, timeout=60).content == b"content"
        tab.go(f"storage/{bucket}?show=links")
        row = page.get_by_role("row").filter(has_text="a.txt")
        expect(row).to_contain_text("Any")
        row.get_by_role("button", name="Revoke").click()
        dialog(page, "Revoke this link?").get_by_role("button", name="Revoke").click()
        expect(row).to_have_count(0)
        assert requests.get(url, timeout=60).status_code == 404
        page.get_by_role("button", name="Link for uploads").click()
        made = dialog(page, "Link for an upload")
        made.get_by_label("The file's name begins with").fill("inbox/")
        made.get_by_role("button", name="Make link").click()
        url = made.get_by_label("The link").input_value()
        assert requests.put(f"{url}&key=b.txt", data=b"b", timeout=60).status_code == 201
        assert keys_in(running, bucket) == ["a.txt", "inbox/b.txt"]


def test_the_address_for_everybody_is_copied(chrome: Browser, running: Running, bucket: str) -> None:
    rules = {"visibility": "public", "anonymous_reads": True}
    assert running.call("PATCH", f"/admin/buckets/{bucket}", json=rules).status_code == 200
    put(running, bucket, "a/ü.txt", b"content")
    with opened(chrome, running, permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.go(f"storage/{bucket}/a?file=%C3%BC.txt")
        dialog(tab.page, "ü.txt").get_by_role("button", name="Public address").click()
        expect(tab.page.get_by_text("Copied the address.")).to_be_visible()
        url = tab.page.evaluate("navigator.clipboard.readText()")
    assert requests.get(url, timeout=60).content == b"content"


def test_a_file_is_saved_under_its_name(tab: Tab, running: Running, bucket: str) -> None:
    put(running, bucket, "trip/a b.txt", b"content")
    tab.go(f"storage/{bucket}/trip?file=a%20b.txt")
    with tab.page.expect_download() as saved:
        dialog(tab.page, "a b.txt").get_by_role("button", name="Download").click()
    assert saved.value.suggested_filename == "a b.txt"
    assert saved.value.path().read_bytes() == b"content"
    assert running.service_key not in saved.value.url


def test_the_address_has_what_is_shown(tab: Tab, running: Running, bucket: str) -> None:
    page = tab.page
    for number, key in enumerate(("trip/zebra.txt", "trip/day/ape.txt", "trip/yak.txt")):
        put(running, bucket, key, bytes(number + 1))
    tab.go(f"storage/{bucket}")
    page.get_by_role("link", name="trip").click()
    names = page.locator(".file-row a")
    expect(names).to_have_text(["day", "yak.txt", "zebra.txt"])
    page.get_by_role("button", name="Size").click()
    expect(names).to_have_text(["zebra.txt", "day/ape.txt", "yak.txt"])
    page.get_by_role("button", name="Size").click()
    expect(names).to_have_text(["yak.txt", "day/ape.txt", "zebra.txt"])
    expect(page.get_by_role("columnheader", name="Size")).to_have_attribute("aria-sort", "descending")
    page.reload()
    expect(names).to_have_text(["yak.txt", "day/ape.txt", "zebra.txt"])
    page.get_by_role("button", name="Name").click()
    page.get_by_label("Find by name").fill("z")
    expect(names).to_have_text(["zebra.txt"])
    page.get_by_label("How to find").select_option("contains")
    page.get_by_label("Find by name").fill("APE")
    expect(names).to_have_text(["day/ape.txt"])
    page.get_by_label("Find by name").fill("nothing")
    expect(page.get_by_text("Nothing has this name")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    expect(names).to_have_count(3)
    page.get_by_role("navigation", name="Folders").get_by_role("link", name=bucket).click()
    expect(names).to_have_text(["trip"])


def test_a_folder_of_100000_files_is_fetched_as_far_as_it_is_looked_at(
    tab: Tab, running: Running, bucket: str
) -> None:
    running.sql(
        "insert into storage.objects (bucket, key, version, size, content_type, etag) select %s,"
        " 'big/' || lpad(n::text, 6, '0'), gen_random_uuid(), n, 'text/plain', '' from generate_series(1, 100000) n",
        bucket,
    )
    # As it is soon done by itself.
    running.sql("analyze storage.objects")
    page, asked = tab.page, list[str]()
    page.on("request", lambda request: asked.append(request.url) if "/objects?" in request.url else None)
    tab.go(f"storage/{bucket}/big")
    rows = page.locator(".file-row")
    expect(rows.first).to_contain_text("000001")
    expect(page.get_by_text("200 so far")).to_be_visible()
    assert len(asked) == 1
    assert rows.count() < 60
    # To the end of what there is, four times.
    files = page.get_by_role("table", name="Files and folders")
    for number in (200, 1200, 2200, 3200):
        files.evaluate("list => list.scrollTo(0, list.scrollHeight)")
        expect(page.get_by_text(f"{number + 1000:,} so far")).to_be_visible()
        assert rows.count() < 60
    expect(page.get_by_role("link", name="003200", exact=True)).to_be_in_viewport()
    page.get_by_label("Find by name").fill("09999")
    expect(rows).to_have_count(10)
    expect(rows.last).to_contain_text("099999")
    # The number of what would be deleted is known before.
    page.get_by_role("navigation", name="Folders").get_by_role("link", name=bucket).click()
    page.get_by_label("Select big").check()
    page.get_by_role("button", name="Delete").click()
    expect(dialog(page, "Delete 1 folder?")).to_contain_text("100,000 files")


def test_every_view_shows_its_request(tab: Tab, running: Running, bucket: str) -> None:
    page = tab.page
    put(running, bucket, "trip/a.txt")
    for address, request in (
        ("storage", "/admin/buckets"),
        (f"storage/{bucket}/trip", f"/storage/buckets/{bucket}/objects?prefix=trip%2F&max_keys=100"),
        (f"storage/{bucket}/trip?file=a.txt", f"/storage/buckets/{bucket}/objects/trip/a.txt?info=true"),
        (f"storage/{bucket}?show=links", f"/storage/buckets/{bucket}/links"),
    ):
        tab.go(address)
        place = dialog(page, "a.txt") if "file=" in address else page.locator("ps-storage")
        place.get_by_role("button", name="Code").click()
        shown = dialog(page, "This request in a script")
        expect(shown.get_by_role("tabpanel")).to_contain_text(running.url + request)
        page.keyboard.press("Escape")
        expect(shown).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_keeps_nobody_out(
    chrome: Browser, running: Running, bucket: str, axe: Axe, theme: str
) -> None:
    put(running, bucket, "a/p.png", picture(), "image/png")
    put(running, bucket, "p.png", picture(), "image/png")
    running.call("POST", f"/storage/buckets/{bucket}/presign", json={"key": "p.png"})
    with opened(chrome, running, color_scheme=theme) as tab:
        page = tab.page
        tab.go("storage")
        expect(page.get_by_role("link", name=bucket, exact=True)).to_be_visible()
        axe.check(tab)
        page.get_by_role("button", name="New bucket").click()
        expect(dialog(page, "New bucket")).to_be_visible()
        axe.check(tab)
        page.keyboard.press("Escape")
        tab.go(f"storage/{bucket}")
        upload(page, file("u.txt", b"1"), file("p.png", b"2"))
        expect(page.get_by_text("There is a file of this name already.")).to_be_visible()
        expect(page.get_by_role("link", name="u.txt")).to_be_visible()
        axe.check(tab)
        page.get_by_label("Select p.png").check()
        axe.check(tab)
        page.get_by_role("link", name="p.png").click()
        expect(page.get_by_role("img", name="p.png")).to_be_visible()
        page.get_by_text("Edit its details").click()
        axe.check(tab)
        page.keyboard.press("Escape")
        # What closes goes back to the bucket, and would do so from the links as well.
        page.wait_for_url(lambda url: "file=" not in url)
        tab.go(f"storage/{bucket}?show=links")
        expect(page.get_by_role("button", name="Revoke")).to_be_visible()
        axe.check(tab)


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_short_list_has_no_empty_end_and_selecting_moves_nothing(
    tab: Tab, running: Running, bucket: str, viewport: ViewportSize
) -> None:
    page = tab.page
    page.set_viewport_size(viewport)
    put(running, bucket, "a.txt")
    tab.go(f"storage/{bucket}")
    row, files = page.locator(".file-row"), page.get_by_role("table", name="Files and folders")
    expect(row).to_have_count(1)
    before, around = row.bounding_box(), files.bounding_box()
    assert before is not None
    assert around is not None
    assert abs((around["y"] + around["height"]) - (before["y"] + before["height"])) < 5
    page.get_by_label("Select a.txt").check()
    expect(page.get_by_text("1 selected")).to_be_visible()
    assert row.bounding_box() == before


def test_the_keyboard_is_enough(tab: Tab, running: Running, bucket: str) -> None:
    page = tab.page
    for name in ("a.txt", "b.txt"):
        put(running, bucket, name)
    tab.go(f"storage/{bucket}")
    expect(page.get_by_role("link", name="b.txt")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Find by name")).to_be_focused()
    page.get_by_role("link", name="a.txt").focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name="b.txt")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog(page, "b.txt")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="b.txt")).to_be_focused()
