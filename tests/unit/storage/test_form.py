"""The parser of upload forms: the same events into whatever pieces the bytes are split, and refusals of malformed
forms."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.errors import ApiError
from project_service.storage.form import (
    MAX_AROUND_BYTES,
    Event,
    Field,
    FileStart,
    FormReader,
    boundary_of,
)

payloads = st.one_of(
    st.binary(max_size=300),
    st.lists(
        st.sampled_from([b"\r\n", b"--", b"\r\n--", b"\r", b"\n", b"edge", b"--edge", b"\r\n--edg", b"x"])
    ).map(b"".join),
).filter(lambda payload: b"\r\n--edge" not in payload and not payload.startswith(b"--edge"))


def read(body: bytes, cuts: list[int]) -> list[Event]:
    """The events, with consecutive bytes joined."""
    reader = FormReader("edge")
    events: list[Event] = []
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for first, last in pairwise(places):
        for event in reader.feed(body[first:last]):
            if isinstance(event, bytes) and events and isinstance(events[-1], bytes):
                events[-1] += event
            else:
                events.append(event)
    reader.finish()
    return events


class Reading(SynchronousTestCase):
    @settings(max_examples=200, deadline=None)
    @given(payloads, payloads, st.lists(st.integers(0, 10_000), max_size=30), st.booleans(), st.booleans())
    def test_pieces_make_no_difference(
        self, payload: bytes, value: bytes, cuts: list[int], field_first: bool, is_key: bool
    ) -> None:
        """Fields other than ``key`` bring no event, whatever bytes they hold."""
        name = b"key" if is_key else b"note"
        field = b'--edge\r\nContent-Disposition: form-data; name="' + name + b'"\r\n\r\n' + value + b"\r\n"
        file = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="\xc3\xb6 x.txt"\r\n'
        file += b"Content-Type: text/plain; charset=utf-8\r\n\r\n" + payload + b"\r\n"
        body = (field + file if field_first else file + field) + b"--edge--\r\n"
        expected: list[Event] = [FileStart("ö x.txt", "text/plain; charset=utf-8")]
        expected += [payload] if payload else []
        try:
            key: list[Event] = [Field("key", value.decode())] if is_key else []
        except UnicodeDecodeError:
            self.assertEqual(self.assertRaises(ApiError, read, body, cuts).code, "invalid_key")
        else:
            self.assertEqual(read(body, cuts), key + expected if field_first else expected + key)

    @settings(max_examples=300, deadline=None)
    @given(st.binary(max_size=400), st.lists(st.integers(0, 500), max_size=10))
    def test_any_body_is_parsed_or_refused(self, body: bytes, cuts: list[int]) -> None:
        for one in (
            body,
            b"--edge\r\n" + body,
            b'--edge\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + body,
        ):
            try:
                read(one, cuts)
            except ApiError as error:
                self.assertIn((error.status, error.code), {(400, "invalid_multipart"), (422, "invalid_key")})

    def test_bytes_held_back_as_a_possible_boundary_do_not_count_as_preamble(self) -> None:
        """Byte by byte, a file that resembles the boundary brings no event for longer than the preamble may be."""
        payload = b"\r\n--edg" * (MAX_AROUND_BYTES // 6)
        body = (
            b'--edge\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + payload + b"\r\n--edge--\r\n"
        )
        self.assertEqual(read(body, list(range(len(body))))[1], payload)

    def test_a_short_epilogue_is_ignored_and_a_long_one_refused(self) -> None:
        whole = b'--edge\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--edge--'
        self.assertEqual(read(whole + b"\r\n" + b"epilogue", [len(whole), len(whole) + 2])[1], b"x")
        reader = FormReader("edge")
        list(reader.feed(whole))
        with self.assertRaises(ApiError):
            for _ in range(10):
                list(reader.feed(b"x" * 10_000))

    def test_what_rfc_2046_allows(self) -> None:
        """Blanks after a boundary, folded headers, anything before and after, and parts without a body."""
        name, value = (
            b'Content-Disposition: form-data;\tname="file"; filename=a',
            [FileStart("a", None), b"x"],
        )
        for body in (
            b"--edge \r\n" + name + b"\r\n\r\nx\r\n--edge--",
            b"--edge\t \t\r\n" + name + b"\r\n\r\nx\r\n--edge-- \t\r\nend\r\n--edge\r\n",
            b"To whom it may concern\r\n--edge\r\n" + name + b"\r\n\r\nx\r\n--edge--",
            b"\r\n--edge\r\n" + name.replace(b"; f", b";\r\n\tf") + b"\r\n\r\nx\r\n--edge--",
            b"--edge\r\n"
            + name.upper().replace(b"FILE", b"file").replace(b"=A", b"=a")
            + b"\r\n\r\nx\r\n--edge--",
            b"--edge\r\n"
            + name
            + b'\r\n\r\nx\r\n--edge \r\nContent-Disposition: form-data; name="n"\r\n\r\n--edge--',
        ):
            for cuts in ([], list(range(len(body)))):
                self.assertEqual(read(body, cuts), value, body)
        empty = b"--edge\r\n" + name + b"\r\n\r\n--edge--"
        self.assertEqual(read(empty, list(range(len(empty)))), value[:1])

    def test_a_length_of_a_part_is_ignored(self) -> None:
        """RFC 7578 section 4.8."""
        for length in ("1", "5", "x", "-1", "007", ""):
            head = f"--edge\r\nContent-Length: {length}\r\nContent-Disposition: form-data; name=file\r\n\r\n".encode()
            twice = head.replace(b"Content-D", b"Content-Length: 9\r\nContent-D")
            for one in (head, twice):
                self.assertEqual(
                    read(one + b"hello\r\n--edge--", []), [FileStart(None, None), b"hello"], length
                )

    def test_file_names_as_clients_send_them(self) -> None:
        for sent, name in (
            ('filename="\u00f6.txt"', "\u00f6.txt"), ("filename=a.txt", "a.txt"), ('filename="a%22b"', 'a"b'),
            ('filename="=?utf-8?B?w7Y=?="; filename*=utf-8\'\'%C3%B6.txt', "\u00f6.txt"),
            ("filename*=UTF-8'de'%C3%B6%20x.txt; filename=plain", "\u00f6 x.txt"),
            ("filename=plain; filename*=utf-8''%FF", "plain"), ("filename=plain; filename*=latin1''%F6", "plain"),
            ("filename=plain; filename*=iso-8859-1'en'%A3%20rates", "\u00a3 rates"),
            ("filename*=ISO-8859-1''na%EFve.txt", "na\u00efve.txt"), ("filename*=utf-16''%00", None),
            ("\tfilename\t=\t\"a.txt\"\t", "a.txt"), ("filename=my file.txt", "my file.txt"),
            ('filename="a\tb"', "a\tb"), ('FileName="C:\\\\dir\\\\a.txt"', "a.txt"),
            ('filename="a; filename*=utf-8\'\'b"', "a; filename*=utf-8''b"), ("filename*=", None),
            ("filename=plain; filename*=utf-8''\"b\"", "plain"), ("filename=plain; xfilename*=utf-8''b", "plain"),
            ("filename* = utf-8''b ; filename=plain", "b"),
            ('filename="a\\"; filename*=utf-8\'\'b"', "a\"; filename*=utf-8''b"),
            # A quoted string without an end extends to the end of the header.
            ("filename=plain; x=\"; filename*=utf-8''b", "plain"), ('filename=plain; x=*"\\', "plain"),
        ):  # fmt: skip
            head = f'--edge\r\nContent-Disposition: form-data; name="file"; {sent}\r\n\r\n'.encode()
            self.assertEqual(read(head + b"x\r\n--edge--", [])[0], FileStart(name, None), sent)

    def test_a_refusal_says_why_as_soon_as_possible(self) -> None:
        def part(name: str, value: bytes = b"x", *more: str) -> bytes:
            lines = "\r\n".join((f'Content-Disposition: form-data; name="{name}"', *more, "", ""))
            return b"--edge\r\n" + lines.encode() + value + b"\r\n"

        unfit = "The object key is not allowed: "
        whole, base64 = part("file"), "Content-Transfer-Encoding: base64"
        for begun, why in (
            (whole + part("file"), "it has more than one part named file"),
            (part("key") + part("key"), "it has more than one part named key"),
            (part("note", b"x" * 70_000), "a field is longer than 65536 bytes"),
            (b"--other\r\n" * 10_000, "the boundary of its Content-Type does not come"),
            (b"--edge\r\nnothing\r\n", "a header of a part is not a name, a colon and a value"),
            (b"--edge\r\n: x\r\n", "a header of a part is not a name, a colon and a value"),
            (b"--edge\r\nX Y: x\r\n", "a header of a part is not a name, a colon and a value"),
            (b"--edge\r\n X: y\r\n", "the headers of a part begin with a blank"),
            (b"--edge\r\nX: y\n", "a line of a part's headers does not end with CRLF"),
            (b"--edge\r\nX: y\nZ: z\r\n\r\n", "a line of a part's headers does not end with CRLF"),
            (b"--edge\r\nX: " + b"y" * 8192, "a header of a part is longer than 8192 bytes"),
            (b"--edge\r\n" + b"X: y\r\n" * 17, "a part has more than 16 headers"),
            (b"--edge\r\n\r\n", "a part has no Content-Disposition that is form-data"),
            (
                b"--edge\r\nContent-Disposition: file\r\n\r\n",
                "a part has no Content-Disposition that is form-data",
            ),
            (
                b"--edge\r\n" + b"Content-Disposition: form-data\r\n" * 2 + b"\r\n",
                "a part has more than one Content-Disposition",
            ),
            (b"--edge x\r\n", "a boundary is not followed by CRLF"),
            (b"--edge\n", "a boundary is not followed by CRLF"),
            (b"--edge" + b" " * 9000, "a boundary is not followed by CRLF"),
            (whole + b"--edgex", "a boundary is not followed by CRLF"),
            (part("n") * 101, "it has more than 100 parts"),
            (part("owner", b"\xff") + whole, "the field owner is not UTF-8"),
            (part("owner") + part("owner"), "it has more than one part named owner"),
            (whole + b"--edge--" + b"x" * 70_000, "too much follows its last boundary"),
            (part("key", b"\xff") + whole, unfit + "it is not UTF-8"),
            (
                b'--edge\r\nContent-Disposition: form-data; name="file"; filename="\xf6"\r\n\r\n',
                "the name of the file is not UTF-8",
            ),
            (
                b'--edge\r\nContent-Disposition: form-data; name="\xf6"\r\n\r\n',
                "the name of a field is not UTF-8",
            ),
            (part("file", b"x", base64), "The body must be sent without a transfer encoding of its parts"),
        ):
            with self.assertRaises(ApiError) as caught:
                list(FormReader("edge").feed(begun))
            said = caught.exception.message
            self.assertEqual(said, f"{why}." if why[0].isupper() else f"The form cannot be read: {why}.")
        for body, why in (
            (whole, "it ends before its last boundary"),
            (b"--edge--", "it has no part named file"),
        ):
            with self.assertRaises(ApiError) as caught:
                read(body, [])
            self.assertEqual(caught.exception.message, f"The form cannot be read: {why}.")


class Boundaries(SynchronousTestCase):
    def test_a_boundary_may_be_quoted(self) -> None:
        self.assertEqual(boundary_of("multipart/form-data; boundary=abc"), "abc")
        self.assertEqual(boundary_of("multipart/form-data;\tboundary\t=\tabc"), "abc")
        self.assertEqual(boundary_of('multipart/form-data; boundary="a\\\\b"'), "a\\b")
        self.assertEqual(boundary_of('Multipart/Form-Data; charset=utf-8; boundary="a b:c"'), "a b:c")

    def test_an_unusable_boundary_is_refused(self) -> None:
        for sent in ("", "x" * 71, '"x "', "\u00e4", '"\u00e4"', '"a\tb"', '"a\x7fb"'):
            with self.assertRaises(ApiError) as caught:
                boundary_of(f"multipart/form-data; boundary={sent}")
            self.assertEqual(caught.exception.code, "invalid_multipart", sent)
            self.assertIn("the Content-Type has no usable boundary", caught.exception.message)
        with self.assertRaises(ApiError) as caught:
            boundary_of(None)
        self.assertEqual(caught.exception.message, "The body must be multipart/form-data.")
        for fine in ("x", "x" * 70):
            self.assertEqual(boundary_of(f"multipart/form-data; boundary={fine}"), fine)

    @given(st.text(max_size=100))
    def test_any_content_type_is_parsed_or_refused(self, header: str) -> None:
        for sent in (header, "multipart/form-data; " + header, "multipart/form-data; boundary=" + header):
            try:
                boundary = boundary_of(sent)
            except ApiError as error:
                self.assertIn(error.status, {400, 415})
            else:
                self.assertTrue(1 <= len(boundary) <= 70)
