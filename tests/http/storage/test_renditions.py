"""Pictures in other sizes and formats: who gets what, that each is made once, and that none outlives its object."""

from __future__ import annotations

import json
from unittest.mock import Mock
from uuid import UUID

from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.http.admission import Limits
from project_service.lifecycle import start
from project_service.settings.model import Images
from project_service.storage.durations import REMOVAL_TIMEOUT_SECONDS
from project_service.storage.pictures import renditions
from project_service.storage.pictures.pool import NotInstalled, PictureRefused, ProcessGone, TookTooLong
from project_service.storage.pictures.renditions import TOO_SLOW_SECONDS
from project_service.storage.s3.errors import BrokenRead
from project_service.storage.sweeper import Swept
from project_service.storage.values import StoredRendition
from tests.fakes.common import ANON_KEY, Client, Response, parse_response, raw_request
from tests.fakes.store import MemoryStore
from tests.http.storage.app import ANON, OTHER, USER, StorageApp, refused

PATH = "/storage/buckets/open/objects/a/cat.JPG"
SMALL = f"{PATH}?width=100"


class Case(TestCase):
    images = Images()

    def setUp(self) -> None:
        self.app = StorageApp(images=self.images)
        self.pool = self.app.image_pool
        self.put()

    def put(
        self, payload: bytes = b"picture", content_type: str = "image/jpeg", bucket: str = "open"
    ) -> None:
        self.app.put("a/cat.JPG", payload, bucket, Content_Type=content_type)

    def get(self, target: str = SMALL, method: str = "GET", **headers: str) -> Response:
        sent = {**ANON, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.app.request(method, target, sent)

    def begin(self, target: str = SMALL) -> Client:
        """Send a request that is not answered yet."""
        client = self.app.connect()
        client.send(raw_request("GET", target, ANON, None))
        return client

    def stored(self) -> list[bytes]:
        """All payloads in the store. Asserts that each belongs to an object or to a rendition of a current one."""
        current = {row.version: row.path for row in self.app.tables.objects.values()}
        made = {f"open/{one.version}" for one in self.app.tables.renditions.values()}
        self.assertLessEqual({of for of, _ in self.app.tables.renditions}, current.keys())
        self.assertEqual(set(self.app.store.objects), {*current.values(), *made})
        self.assertFalse(self.app.uploading or self.app.tables.garbage)
        return sorted(one.payload for one in self.app.store.objects.values())


class Renditions(Case):
    def test_a_picture_is_sent_in_another_size_and_format(self) -> None:
        response = self.get(f"{PATH}?width=100&height=50&format=webp&quality=70")
        self.assertEqual((response.status, response.body), (200, b"small"))
        job = self.pool.jobs[0]
        self.assertEqual(
            (job.width, job.height, job.fit, job.format, job.quality), (100, 50, "cover", "webp", 70)
        )
        self.assertEqual(self.pool.sources, [b"picture"])
        for name, value in {
            "content-type": "image/webp",
            "content-length": "5",
            "content-disposition": "attachment; filename=\"cat.webp\"; filename*=UTF-8''cat.webp",
            "cache-control": "public, no-cache",
            "accept-ranges": "bytes",
            "x-content-type-options": "nosniff",
            "last-modified": self.app.get("a/cat.JPG").header("last-modified"),
        }.items():
            self.assertEqual(response.header(name), value, name)
        self.assertNotEqual(response.header("etag"), self.app.get("a/cat.JPG").header("etag"))
        # The digest of the object is not that of these bytes.
        self.assertIsNotNone(self.get(PATH, Want_Repr_Digest="sha-256=1").header("repr-digest"))
        self.assertIsNone(self.get(Want_Repr_Digest="sha-256=1").header("repr-digest"))
        self.assertEqual(self.app.get("a/cat.JPG").body, b"picture")

    def test_each_is_made_once_and_is_then_like_an_object(self) -> None:
        etag = self.get().header("etag") or ""
        self.assertEqual(self.get().body, b"small")
        part = self.get(Range="bytes=1-2", If_Range=etag)
        self.assertEqual((part.status, part.body, part.header("content-range")), (206, b"ma", "bytes 1-2/5"))
        self.assertEqual(self.get(If_None_Match=etag).status, 304)
        self.assertEqual(refused(self.get(If_Match='"other"')), (412, "precondition_failed"))
        head = self.get(method="HEAD")
        self.assertEqual((head.status, head.header("content-length"), head.body), (200, "5", b""))
        self.assertEqual(len(self.pool.jobs), 1)
        self.assertEqual(self.get(f"{PATH}?width=101").status, 200)
        self.assertEqual(len(self.pool.jobs), 2)

    def test_a_stored_one_takes_no_query_more_than_the_object(self) -> None:
        find = self.app.storage.renditions.rows.find
        asked: list[str] = []

        async def counted(of: UUID, name: str) -> StoredRendition | None:
            asked.append(name)
            return await find(of, name)

        self.app.storage.renditions.rows = Mock(wraps=self.app.storage.renditions.rows, find=counted)
        for _ in range(3):
            self.assertEqual(self.get().body, b"small")
        self.assertEqual(len(asked), 2)

    def test_the_first_request_may_be_for_a_range_or_the_head(self) -> None:
        self.assertEqual(self.get(Range="bytes=-2").body, b"ll")
        head = self.get(f"{PATH}?width=9", "HEAD")
        self.assertEqual((head.header("content-length"), head.body), ("5", b""))

    def test_parameters_without_effect_make_nothing_new(self) -> None:
        for query in (
            "width=9&fit=cover",
            "width=9&fit=inside",
            "width=9&format=jpeg&quality=80",
            "quality=80&width=9",
        ):
            self.assertEqual(self.get(f"{PATH}?{query}").status, 200)
        for query in ("format=png", "format=png&quality=5"):
            self.assertEqual(self.get(f"{PATH}?{query}").status, 200)
        self.assertEqual(len(self.pool.jobs), 2)

    def test_simultaneous_requests_have_it_made_once(self) -> None:
        self.pool.holds = True
        clients = [self.begin() for _ in range(20)]
        self.assertEqual(len(self.pool.jobs), 1)
        self.pool.held[0].callback(None)
        self.assertEqual({parse_response(one.received()).body for one in clients}, {b"small"})
        self.assertEqual(self.stored(), [b"picture", b"small"])

    def test_a_failure_is_everybodys_who_waits_and_the_next_tries_again(self) -> None:
        self.pool.holds = True
        clients = [self.begin() for _ in range(3)]
        self.pool.outcomes = [BrokenRead("early"), b"small"]
        self.pool.held[0].callback(None)
        for one in clients:
            self.assertEqual(refused(parse_response(one.received())), (503, "store_unavailable"))
        self.pool.holds = False
        self.assertEqual(self.get().body, b"small")

    def test_who_leaves_while_waiting_for_a_process_has_nothing_made(self) -> None:
        self.pool.busy = True
        first, second = self.begin(), self.begin()
        self.assertEqual(len(self.pool.waiting), 1)
        first.hang_up()
        self.assertEqual(len(self.pool.waiting), 1)
        second.hang_up()
        self.assertEqual(self.pool.waiting, [])
        self.pool.busy = False
        self.assertEqual(self.get().body, b"small")

    def test_what_has_begun_is_stored_although_the_client_left(self) -> None:
        self.pool.holds = True
        self.begin().hang_up()
        self.pool.held[0].callback(None)
        self.assertEqual(self.stored(), [b"picture", b"small"])
        self.assertEqual((self.get().body, len(self.pool.jobs)), (b"small", 1))

    def test_others_are_served_while_a_picture_is_made(self) -> None:
        self.app = StorageApp(limits={"storage": Limits(1, 5.0)})
        self.app.image_pool.holds = True
        self.put()
        client = self.begin()
        self.assertEqual(self.get(PATH).body, b"picture")
        self.app.image_pool.held[0].callback(None)
        self.assertEqual(parse_response(client.received()).body, b"small")

    def test_what_was_lost_in_the_store_is_made_again(self) -> None:
        self.put(b"p" * 9000)
        self.pool.outcomes = [b"s" * 300_000]
        self.get()
        for one in self.app.tables.renditions.values():
            del self.app.store.objects[f"open/{one.version}"]
        self.assertEqual(len(self.get().body), 300_000)
        self.assertEqual((len(self.pool.jobs), len(self.stored())), (2, 2))


class Parameters(Case):
    images = Images(max_size=1000, sizes=(100, 200))

    def test_details_of_an_object_are_those_of_its_original(self) -> None:
        shown = self.get(f"{PATH}?info=true&width=100")
        self.assertEqual((json.loads(shown.body)["size"], self.pool.jobs), (7, []))

    def test_values_that_are_not_allowed(self) -> None:
        for query in (
            "width=0",
            "width=1001",
            "width=-1",
            "width=1e2",
            "width=",
            "height=101",
            "fit=fill&width=100",
            "fit=cover",
            "format=svg",
            "format=gif",
            "quality=0&width=100",
            "quality=101",
        ):
            for path in (f"{PATH}?{query}", f"{PATH}?{query}&info=true"):
                response = self.get(path)
                self.assertEqual(refused(response), (422, "validation_failed"), path)
                self.assertIn(query.partition("=")[0], json.loads(response.body)["error"]["details"])
                self.assertEqual(response.header("cache-control"), "no-store")
        self.assertEqual(refused(self.get(f"{PATH}?width=100&width=100")), (400, "invalid_query"))
        self.assertEqual(self.pool.jobs, [])
        self.assertEqual(self.get(f"{PATH}?%77idth=200&other=1").body, b"small")

    def test_only_pictures_are_resized(self) -> None:
        for content_type in ("image/svg+xml", "image/tiff", "text/html", "application/pdf"):
            self.put(b"<svg/>", content_type)
            self.assertEqual(refused(self.get()), (422, "image_type_unsupported"))
        self.assertEqual(self.pool.jobs, [])

    def test_without_a_format_the_content_type_says_what_is_sent(self) -> None:
        """Whatever the bytes are, which libvips finds out by itself."""
        self.put(b"\xff\xd8\xff JPEG", "image/png")
        self.assertEqual(self.get().header("content-type"), "image/png")
        self.assertEqual(self.get(f"{SMALL}&format=webp").header("content-type"), "image/webp")
        self.assertEqual([job.format for job in self.pool.jobs], ["png", "webp"])

    def test_a_picture_is_one_by_whichever_name_of_its_type(self) -> None:
        for named, kind in (
            ("image/jpg", "jpeg"),
            ("image/pjpeg", "jpeg"),
            ("IMAGE/X-PNG; a=b", "png"),
            ("image/x-webp", "webp"),
            ("image/x-gif", "gif"),
        ):
            self.put(named.encode(), named)
            self.assertEqual(self.get().header("content-type"), f"image/{kind}", named)
            self.assertEqual(self.get(PATH).header("content-type"), named)
        self.put()
        accepts = self.get(f"{SMALL}&format=auto", Accept="image/x-webp")
        self.assertEqual(accepts.header("content-type"), "image/webp")

    def test_auto_is_what_the_client_accepts(self) -> None:
        browser = "text/html,image/avif,image/webp,*/*;q=0.8"
        for content_type, accept, chosen in (
            ("image/jpeg", browser, "image/avif"),
            ("image/jpeg", "image/webp,*/*", "image/webp"),
            ("image/jpeg", "image/avif;q=0,*/*", "image/jpeg"),
            ("image/jpeg", "image/avif;q=0.5,IMAGE/WEBP", "image/webp"),
            ("image/jpeg", "image/avif;q=0.5,image/jpeg,image/webp;q=0.5", "image/jpeg"),
            ("image/jpeg", "image/avif;q=0.5,image/jpeg;q=0.5", "image/avif"),
            ("image/png", "*/*", "image/png"),
            ("image/png; x=y", "image/*", "image/png"),
            # These may be animated.
            ("image/gif", browser, "image/webp"),
            ("image/webp", browser, "image/webp"),
            ("image/gif", "*/*", "image/gif"),
        ):
            self.put(content_type=content_type)
            response = self.get(f"{PATH}?format=auto&width=100", Accept=accept)
            self.assertEqual(response.header("content-type"), chosen, (content_type, accept))
            self.assertEqual(response.header("vary"), "Accept")
            etag = response.header("etag") or ""
            again = self.get(f"{PATH}?format=auto&width=100", Accept=accept, If_None_Match=etag)
            self.assertEqual((again.status, again.header("vary")), (304, "Accept"))
        self.assertIsNone(self.get(f"{PATH}?width=100").header("vary"))


class Lifetime(Case):
    def test_a_rendition_goes_with_its_object(self) -> None:
        self.get()
        self.assertEqual(self.stored(), [b"picture", b"small"])
        self.put(b"another")
        self.assertEqual(self.stored(), [b"another"])
        self.pool.outcomes = [b"other"]
        self.assertEqual(self.get().body, b"other")
        self.assertEqual(self.stored(), [b"another", b"other"])
        self.app.request("DELETE", PATH, USER)
        self.assertEqual(self.stored(), [])
        self.assertEqual(refused(self.get()), (404, "object_not_found"))

    def test_one_of_an_object_that_was_moved_stays_and_one_moved_onto_goes(self) -> None:
        self.get()
        self.app.put("b.jpg", b"b", Content_Type="image/jpeg")
        self.pool.outcomes = [b"small b"]
        self.assertEqual(self.get("/storage/buckets/open/objects/b.jpg?width=100").body, b"small b")
        moved = self.app.post("/storage/buckets/open/move", {"from": "a/cat.JPG", "to": "b.jpg"})
        self.assertEqual(moved.status, 200)
        self.assertEqual(self.stored(), [b"picture", b"small"])
        self.assertEqual(self.get("/storage/buckets/open/objects/b.jpg?width=100").body, b"small")

    def test_one_of_an_object_that_was_replaced_meanwhile_is_sent_but_not_stored(self) -> None:
        self.pool.holds = True
        client = self.begin()
        self.put(b"another")
        self.pool.held[0].callback(None)
        self.assertEqual(parse_response(client.received()).body, b"small")
        self.assertEqual(self.stored(), [b"another"])
        self.pool.holds, self.pool.outcomes = False, [b"other"]
        self.assertEqual(self.get().body, b"other")

    def test_removed_bytes_stay_as_long_as_those_of_their_object(self) -> None:
        self.get()
        self.app.storage.live.settings = evolve(self.app.storage.live.settings, keep_removed_seconds=60)
        self.put(b"another")
        self.assertEqual(len(self.app.store.objects), 3)
        self.app.clock.advance(61)
        swept = self.successResultOf(self.sweep())
        self.assertEqual((swept.versions, self.stored()), (2, [b"another"]))

    def sweep(self) -> Deferred[Swept]:
        return start(self.app.storage.sweeper.sweep(orphans=True))

    def test_it_is_no_orphan(self) -> None:
        self.get()
        swept = self.successResultOf(self.sweep())
        self.assertEqual((swept.orphans, self.stored()), (0, [b"picture", b"small"]))


class Limited(Case):
    images = Images(max_per_object=2, max_source_bytes=100)

    def sized(self, *widths: int) -> list[int | None]:
        """Request these, which are too large for the cache; the widths that were made for that."""
        self.pool.outcomes = [b"s" * 300_000]
        before = len(self.pool.jobs)
        for width in widths:
            self.assertEqual(len(self.get(f"{PATH}?width={width}").body), 300_000)
            self.app.clock.advance(1)
            self.assertLessEqual(len(self.stored()), 3)
        return [job.width for job in self.pool.jobs[before:]]

    def test_the_one_that_was_not_used_for_the_longest_time_makes_room(self) -> None:
        self.assertEqual(self.sized(1, 2, 1, 3), [1, 2, 3])
        self.assertEqual(self.sized(1, 3, 2), [2])
        self.assertEqual(self.sized(3, 2, 1, 2), [1])
        self.assertEqual(self.sized(1, 2, 2), [])

    def test_its_bytes_are_deleted_at_once_also_where_those_of_objects_stay(self) -> None:
        self.app.storage.live.settings = evolve(self.app.storage.live.settings, keep_removed_seconds=60)
        self.sized(1, 2, 3, 4)

    def test_a_request_does_not_wait_long_for_the_deletion_of_what_made_room(self) -> None:
        self.sized(1, 2)
        deletions: list[Deferred[None]] = []

        async def unanswered(*_: object) -> None:
            deletions.append(Deferred())
            await deletions[-1]

        for name in ("delete", "delete_many"):
            self.patch(MemoryStore, name, unanswered)
        client = self.begin(f"{PATH}?width=3")
        self.app.clock.pump([1 / 8] * int(8 * (REMOVAL_TIMEOUT_SECONDS - 1)))
        self.assertEqual((client.received(), len(deletions)), (b"", 1))
        self.app.clock.pump([1 / 8] * 8 * 2)
        self.assertEqual(parse_response(client.received()).status, 200)

    def test_no_more_are_remembered_than_an_object_may_have(self) -> None:
        self.sized(1, 1, 2, 2, 3, 3, 4, 4)
        (known,) = self.app.storage.renditions._known.values()
        self.assertEqual(sorted(name.split("-")[2] for name in known), ["3x", "4x"])

    def test_a_process_remembers_a_limited_number(self) -> None:
        self.patch(renditions, "REMEMBERED", 3)
        self.app = StorageApp(images=Images())
        for number in range(5):
            self.app.put(f"{number}.jpg", Content_Type="image/jpeg")
            for width in (1, 2, 1, 2):
                self.get(f"/storage/buckets/open/objects/{number}.jpg?width={width}")
        known = self.app.storage.renditions._known.values()
        self.assertEqual([len(one) for one in known], [2])

    def test_one_that_another_process_evicted_is_made_again(self) -> None:
        self.pool.outcomes = [b"s" * 300_000] * 2
        self.get(f"{PATH}?width=1")
        (key,) = self.app.tables.renditions
        evicted = self.app.tables.renditions.pop(key)
        del self.app.store.objects[f"open/{evicted.version}"]
        self.assertEqual(len(self.get(f"{PATH}?width=1").body), 300_000)
        self.assertEqual([job.width for job in self.pool.jobs], [1, 1])
        self.assertEqual(len(self.stored()), 2)

    def test_none_is_stored_if_none_may_be(self) -> None:
        self.app = StorageApp(images=Images(max_per_object=0))
        self.pool = self.app.image_pool
        self.put()
        for _ in range(2):
            self.assertEqual(self.get().body, b"small")
        self.assertEqual((len(self.pool.jobs), self.stored()), (2, [b"picture"]))

    def test_an_object_that_is_too_large_is_not_read(self) -> None:
        self.put(b"x" * 101)
        self.assertEqual(refused(self.get()), (422, "image_too_large"))
        self.put(b"")
        self.assertEqual(refused(self.get()), (422, "image_invalid"))
        self.assertEqual((self.pool.jobs, self.pool.taken), ([], 0))

    def test_a_picture_that_is_refused_is_not_tried_again(self) -> None:
        for reason, code in (
            ("invalid", "image_invalid"),
            ("too_large", "image_too_large"),
            ("unsupported", "image_type_unsupported"),
        ):
            self.pool.outcomes = [PictureRefused(reason)]  # type: ignore[arg-type]
            self.put(reason.encode())
            before = len(self.pool.jobs)
            for _ in range(2):
                self.assertEqual(refused(self.get()), (422, code))
            self.assertEqual(len(self.pool.jobs), before + 1)
            self.assertEqual(self.get(PATH).body, reason.encode())

    def test_one_that_took_too_long_is_tried_again_after_a_while(self) -> None:
        self.pool.outcomes = [TookTooLong(), b"small"]
        for _ in range(2):
            self.assertEqual(refused(self.get()), (422, "image_too_large"))
        self.assertEqual(len(self.pool.jobs), 1)
        self.app.clock.advance(TOO_SLOW_SECONDS + 1)
        self.assertEqual(self.get().body, b"small")

    def test_one_whose_process_was_ended_is_tried_once_more(self) -> None:
        self.pool.outcomes = [ProcessGone("signal 9"), b"small"]
        self.assertEqual(self.get().body, b"small")
        self.pool.outcomes = [ProcessGone("signal 9")]
        response = self.get(f"{PATH}?width=1")
        self.assertEqual(refused(response), (503, "overloaded"))
        self.assertTrue(response.header("retry-after"))
        self.assertEqual((len(self.pool.jobs), self.pool.taken), (4, 0))

    def test_without_the_extra_the_answer_says_what_to_install(self) -> None:
        self.pool.outcomes = [NotInstalled()]
        self.assertEqual(refused(self.get()), (501, "images_not_installed"))
        self.app.storage.renditions.installed = False
        response = self.get(f"{PATH}?format=webp")
        self.assertEqual(refused(response), (501, "images_not_installed"))
        self.assertIn("project-service[images]", json.loads(response.body)["error"]["message"])
        self.assertEqual((self.get(PATH).status, len(self.pool.jobs)), (200, 1))


class Rights(Case):
    def test_they_are_those_of_the_object_and_come_first(self) -> None:
        self.put(bucket="shut")
        shut = SMALL.replace("open", "shut")
        self.assertEqual(refused(self.get(shut)), (401, "authentication_required"))
        self.assertEqual(refused(self.app.request("GET", SMALL)), (401, "project_key_required"))
        self.app.rules("shut", owner_only_reads=True)
        self.assertEqual(refused(self.app.request("GET", shut, OTHER)), (404, "object_not_found"))
        self.assertEqual(
            refused(self.app.request("GET", shut + "&format=svg", ANON)), (401, "authentication_required")
        )
        self.assertEqual(self.pool.jobs, [])
        response = self.app.request("GET", shut, USER)
        self.assertEqual((response.body, response.header("cache-control")), (b"small", "private, no-store"))
        self.assertEqual(refused(self.app.request("GET", shut, OTHER)), (404, "object_not_found"))
        self.assertEqual(refused(self.get(shut)), (401, "authentication_required"))

    def test_a_public_page_shows_it(self) -> None:
        page = "/storage/public/open/a/cat.JPG?width=100&format=auto"
        self.assertEqual(refused(self.app.request("GET", page)), (404, "object_not_found"))
        self.assertEqual(self.pool.jobs, [])
        self.app.rules("open", anonymous_reads=True)
        response = self.app.request("GET", page, {"Accept": "image/webp"})
        self.assertEqual((response.status, response.body), (200, b"small"))
        self.assertIn('inline; filename="cat.webp"', response.header("content-disposition") or "")
        named = self.app.request("GET", f"{page}&download=me.jpg", {"Accept": "image/webp"})
        self.assertIn('attachment; filename="me.jpg"', named.header("content-disposition") or "")

    def link(self, uses: int = 1) -> str:
        body = {"key": "a/cat.JPG", "uses": uses}
        made = self.app.post("/storage/buckets/open/presign", body, {"X-Service-Key": ANON_KEY})
        url: str = json.loads(made.body)["url"]
        return url.removeprefix("http://api.example.test") + "&width=100"

    def test_it_consumes_a_link_like_a_download(self) -> None:
        link = self.link()
        self.assertEqual(self.app.request("HEAD", link).status, 200)
        response = self.app.request("GET", link)
        self.assertEqual((response.status, response.body), (200, b"small"))
        etag = response.header("etag") or ""
        self.assertEqual(refused(self.app.request("GET", link)), (410, "token_used"))
        rest = {"Range": "bytes=2-", "If-Range": etag}
        self.assertEqual(self.app.request("GET", link, rest).body, b"all")
        # Nothing is made for a link that is used up.
        before = len(self.pool.jobs)
        self.assertEqual(refused(self.app.request("GET", f"{link}&format=webp", rest)), (410, "token_used"))
        self.assertEqual(len(self.pool.jobs), before)

    def test_nothing_is_made_by_a_link_without_taking_a_use(self) -> None:
        link, later = self.link(uses=2), "Sat, 01 Jan 2095 00:00:00 GMT"
        for method, headers, status in (
            ("HEAD", {}, 200),
            ("HEAD", {"Range": "bytes=1-2"}, 200),
            ("HEAD", {"If-Match": '"x"'}, 412),
            ("GET", {"If-Match": '"x"'}, 412),
            ("GET", {"If-None-Match": "*"}, 304),
            ("GET", {"If-Modified-Since": later}, 304),
            ("GET", {"If-Unmodified-Since": "Sat, 01 Jan 2000 00:00:00 GMT"}, 412),
            ("GET", {"Purpose": "prefetch"}, 503),
        ):
            for width in (1, 2):
                response = self.app.request(method, f"{link}{width}", headers)
                self.assertEqual(response.status, status, (method, headers))
            if status == 200:
                self.assertEqual(response.header("content-type"), "image/jpeg")
                self.assertEqual(response.header("cache-control"), "no-store")
                # What only the picture would show.
                self.assertIsNone(response.header("content-length"))
                self.assertIsNone(response.header("etag"))
        self.assertEqual(self.pool.jobs, [])
        # What has it made takes a use, whatever range of it was wanted.
        for number, headers in enumerate(({"Range": "bytes=99-"}, {"If-None-Match": '"x"'}), 3):
            response = self.app.request("GET", f"{link}{number}", headers)
            self.assertEqual((response.status, response.body), (200, b"small"))
        self.assertEqual(len(self.pool.jobs), 2)
        self.assertEqual(refused(self.app.request("GET", f"{link}3")), (410, "token_used"))
        self.assertEqual(self.app.request("HEAD", f"{link}5").status, 410)
        # Of one that is there already, all is as of an object.
        link = self.link()
        self.get(f"{PATH}?width=100")
        head = self.app.request("HEAD", link)
        self.assertEqual((head.status, head.header("content-length")), (200, "5"))
        self.assertEqual(self.app.request("GET", link, {"Range": "bytes=99-"}).status, 416)
        etag = head.header("etag") or ""
        self.assertEqual(self.app.request("GET", link, {"If-None-Match": etag}).status, 304)
        self.assertEqual(self.app.request("GET", link, {"Range": "bytes=1-2"}).body, b"ma")
        self.assertEqual(refused(self.app.request("GET", link)), (410, "token_used"))

    def test_who_knows_the_bytes_beforehand_has_nothing_made_for_nothing(self) -> None:
        """libvips makes the same bytes of a picture each time, so that their ETag can be known."""
        etag = self.get(f"{PATH}?width=7").header("etag") or ""
        for headers in ({"If-None-Match": etag}, {"If-Range": etag, "Range": "bytes=2-"}):
            link = self.link(2)
            self.assertEqual(self.app.request("GET", link).body, b"small")
            before = len(self.pool.jobs)
            self.assertEqual(self.app.request("GET", f"{link}&quality=9", headers).body, b"small")
            self.assertEqual(len(self.pool.jobs), before + 1)
            self.assertEqual(refused(self.app.request("GET", link)), (410, "token_used"))
            self.app.put("a/cat.JPG", b"another", Content_Type="image/jpeg")

    def test_a_link_for_any_number_has_what_a_head_asks_for_made(self) -> None:
        link = self.link(0)
        self.assertEqual(self.app.request("HEAD", link).header("content-length"), "5")

    def test_a_picture_that_is_refused_leaves_the_link_unused(self) -> None:
        link = self.link()
        self.pool.outcomes = [PictureRefused("invalid")]
        self.assertEqual(refused(self.app.request("GET", link)), (422, "image_invalid"))
        # A person reads that it is the picture, not the address, that is broken.
        page = self.app.request("GET", link, {"Accept": "text/html"})
        self.assertEqual((page.status, page.header("content-type")), (422, "text/html; charset=utf-8"))
        self.assertIn(b"broken or cut short", page.body)
        self.assertEqual(self.app.request("GET", link.removesuffix("&width=100")).body, b"picture")
