"""Signatures and addresses, against the examples of the S3 API Reference and against botocore's own request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from unittest import mock
from urllib.parse import unquote, urlsplit

from botocore import auth
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.storage.s3 import xml
from project_service.storage.s3.errors import NoSuchObject, StoreUnreachable
from project_service.storage.s3.signing import EMPTY_SHA256, Address, Signer

# "Signature Calculations for the Authorization Header", Amazon S3 API Reference: examples.
SIGNER = Signer("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1")
THEN = datetime(2013, 5, 24, tzinfo=UTC)
# Without those that botocore signs unasked, and with some that it never signs.
NAMES = st.sampled_from(
    ["content-type", "Content-MD5", "range", "x-amz-meta-a", "x-amz-b", "User-Agent", "expect", "te"]
)
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=5).flatmap(
    lambda word: st.sampled_from([word, f" {word}", f"{word}  {word} ", ""])
)
ANY = st.characters(exclude_categories=("Cs", "Cc"))
HOST = "https://examplebucket.s3.amazonaws.com"


def signature(headers: dict[str, str]) -> str:
    return headers["Authorization"].rpartition("Signature=")[2]


class Examples(SynchronousTestCase):
    def test_get_object_with_a_range(self) -> None:
        signed = SIGNER.headers("GET", HOST + "/test.txt", {"Range": "bytes=0-9"}, EMPTY_SHA256, THEN)
        self.assertEqual(
            signature(signed), "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        )
        self.assertIn("SignedHeaders=host;range;x-amz-content-sha256;x-amz-date", signed["Authorization"])

    def test_put_object(self) -> None:
        signed = SIGNER.headers(
            "PUT",
            HOST + "/test%24file.text",
            {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
            THEN,
        )
        self.assertEqual(
            signature(signed), "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
        )

    def test_get_bucket_lifecycle_and_list(self) -> None:
        signed = SIGNER.headers("GET", HOST + "/?lifecycle", {}, EMPTY_SHA256, THEN)
        self.assertEqual(
            signature(signed), "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        )
        signed = SIGNER.headers("GET", HOST + "/?max-keys=2&prefix=J", {}, EMPTY_SHA256, THEN)
        self.assertEqual(
            signature(signed), "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        )

    def test_repr_shows_no_secret(self) -> None:
        self.assertNotIn("wJalr", repr(SIGNER))
        self.assertNotIn("hidden", repr(Signer("a", "b", "c", "hidden")))

    def test_a_session_token_is_sent_and_signed(self) -> None:
        signed = Signer("a", "b", "c", "of a role").headers("GET", HOST + "/k", {}, EMPTY_SHA256, THEN)
        self.assertEqual(signed["X-Amz-Security-Token"], "of a role")
        self.assertIn(";x-amz-security-token, ", signed["Authorization"])
        self.assertNotIn("X-Amz-Security-Token", SIGNER.headers("GET", HOST, {}, EMPTY_SHA256, THEN))


def plain(signer: Signer, method: str, url: str, headers: dict[str, str], then: datetime) -> str:
    """A request as botocore signs it. There is no body, because botocore would hash it."""
    request = AWSRequest(method=method, url=url, headers=headers)
    with mock.patch.object(auth, "get_current_datetime", lambda: then):
        pair = Credentials(signer.access_key_id, signer.secret_access_key, signer.session_token or None)
        S3SigV4Auth(pair, "s3", signer.region).add_auth(request)
    signed: str = request.headers["Authorization"]
    return signed


class Agreement(SynchronousTestCase):
    """Signatures agree with botocore's."""

    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.text(ANY, min_size=1, max_size=30),
        st.dictionaries(
            st.text(ANY, min_size=1, max_size=9),
            st.text(ANY, max_size=9),
            max_size=4,
        ),
    )
    def test_on_any_key_and_query(self, key: str, query: dict[str, str]) -> None:
        url = Address("http://127.0.0.1:8333", "b").url(key, query)
        ours = SIGNER.headers("PUT", url, {"content-type": "a/b"}, EMPTY_SHA256, THEN)
        self.assertEqual(ours["Authorization"], plain(SIGNER, "PUT", url, {"content-type": "a/b"}, THEN))
        self.assertEqual(unquote(urlsplit(url).path), f"/b/{key}")
        self.assertTrue(url.isascii() and url.isprintable() and " " not in url)

    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.sampled_from(
            [
                SIGNER,
                Signer("other", "secret", "eu-west-1"),
                Signer("other", "Ää", "eu-west-1"),
                Signer("other", "secret", "eu-west-1", "of/a+role=="),
            ]
        ),
        st.sampled_from(["GET", "PUT", "HEAD", "POST", "DELETE"]),
        st.sampled_from(
            [
                "http://h",
                "https://H:443",
                "https://h:80",
                "http://h:9000/base",
                "http://[::1]:9000",
                "http://h:80/",
            ]
        ),
        st.sampled_from(["path", "virtual"]),
        st.dictionaries(NAMES, VALUES, max_size=5),
        st.datetimes(datetime(2000, 1, 1), datetime(2099, 1, 1), timezones=st.just(UTC)),
    )
    def test_on_any_request(
        self, signer: Signer, method: str, endpoint: str, style: str, headers: dict[str, str], then: datetime
    ) -> None:
        """The same signers are used for all requests, so what they cache must not matter."""
        address = Address(endpoint, "b", "path" if "[" in endpoint else style)
        url = address.url("k/ä", {"uploads": ""})
        ours = signer.headers(method, url, headers, EMPTY_SHA256, then)
        self.assertEqual(ours["Authorization"], plain(signer, method, url, headers, then))
        stated = {**headers, "host": address.host}
        self.assertEqual(
            ours["Authorization"], signer.headers(method, url, stated, EMPTY_SHA256, then)["Authorization"]
        )

    def test_a_time_in_another_zone_is_the_same_time(self) -> None:
        elsewhere = THEN.astimezone(timezone(timedelta(hours=-5)))
        ours = [SIGNER.headers("GET", HOST + "/k", {}, EMPTY_SHA256, then) for then in (THEN, elsewhere)]
        self.assertEqual(ours[0], ours[1])


class Addresses(SynchronousTestCase):
    def test_path_style_and_virtual_hosts(self) -> None:
        path = Address("https://s3.test:9000/", "b")
        self.assertEqual(path.url("k/ä ~+"), "https://s3.test:9000/b/k/%C3%A4%20~%2B")
        self.assertEqual(path.url("", {"uploads": ""}), "https://s3.test:9000/b?uploads=")
        virtual = Address("https://s3.test:9000", "b", "virtual")
        self.assertEqual(virtual.url("k"), "https://b.s3.test:9000/k")
        self.assertEqual((virtual.origin, virtual.host), ("https://b.s3.test:9000", "b.s3.test:9000"))
        self.assertEqual(
            Address("https://S3.test:443/base/", "b", "virtual").url("k"), "https://b.S3.test:443/base/k"
        )
        self.assertEqual(Address("https://S3.test:443", "b").host, "s3.test")
        self.assertEqual(virtual.url("", {"b": "2", "a": "1/x"}), "https://b.s3.test:9000/?a=1%2Fx&b=2")


class Documents(SynchronousTestCase):
    """XML documents of the store."""

    def test_a_listing_with_and_without_a_namespace(self) -> None:
        for attribute in (b"", b' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'):
            page = xml.parse_objects(
                b"<ListBucketResult"
                + attribute
                + b"><IsTruncated>true</IsTruncated><Contents><Key>a&amp;b</Key>"
                b"<Size>3</Size><ETag>&quot;e&quot;</ETag><LastModified>2026-11-21T00:00:00.000Z</LastModified></Contents>"
                b"<NextContinuationToken>t</NextContinuationToken></ListBucketResult>"
            )
            self.assertEqual([(o.key, o.size) for o in page.objects], [("a&b", 3)])
            self.assertEqual(page.next_token, "t")

    def test_malformed_documents_are_a_failure_of_the_store(self) -> None:
        for parse in (
            xml.parse_objects,
            xml.parse_multiparts,
            xml.parse_failed_deletes,
            lambda body: xml.text_of(body, "UploadId"),
        ):
            for body in (b"", b"<html><br>", b"not at all", b"\xff"):
                self.assertRaises(StoreUnreachable, parse, body)
        self.assertRaises(StoreUnreachable, xml.text_of, b"<R><UploadId/></R>", "UploadId")
        for size in (b"", b"-1", b"x"):
            page = b"<R><Contents><Key>k</Key><Size>" + size + b"</Size></Contents></R>"
            self.assertRaises(StoreUnreachable, xml.parse_objects, page)

    def test_open_uploads(self) -> None:
        uploads, markers = xml.parse_multiparts(
            b"<R><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>"
            b"<Upload><Key>k</Key><UploadId>u</UploadId></Upload></R>"
        )
        self.assertEqual((uploads, markers), ((xml.OpenMultipart("k", "u"),), ("k", "u")))

    @given(st.binary(max_size=100))
    def test_any_bytes_as_an_error_document(self, body: bytes) -> None:
        self.assertIsInstance(xml.error_text(body), str)

    def test_refusals_by_status_and_code(self) -> None:
        body = b"<Error><Code>%s</Code><Message>host 10.0.0.1</Message></Error>"
        self.assertIsInstance(xml.refusal(404, b""), NoSuchObject)
        self.assertIsInstance(xml.refusal(400, body % b"NoSuchUpload"), NoSuchObject)
        denied = xml.refusal(403, body % b"AccessDenied")
        self.assertEqual((denied.status, denied.code), (403, "AccessDenied"))
        self.assertNotIn("10.0.0.1", str(denied))
        self.assertTrue(xml.worth_retrying(503, ""))
        self.assertTrue(xml.worth_retrying(200, "SlowDown"))
        self.assertFalse(xml.worth_retrying(403, "AccessDenied"))
