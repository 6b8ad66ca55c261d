"""What the parameters of a picture mean, and the shapes that follow from them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.errors import ApiError
from project_service.http.request import parse_query
from project_service.settings.model import Images
from project_service.storage.pictures import images
from project_service.storage.pictures.images import Rendition, Wanted
from project_service.storage.pictures.process import Job, Shape, shape_of

sides = st.integers(1, 20_000)
NAMES = ("width", "height", "fit", "format", "quality")
boxes = st.none() | st.integers(1, 2500)


def wanted(raw: str, **settings: Any) -> Wanted | None:
    return images.wanted(raw.encode(), Images(**settings))


def job(width: int | None, height: int | None, fit: str = "cover", longest: int = 2500) -> Job:
    return Job(1, width, height, fit, "webp", 80, longest)


class Parameters(SynchronousTestCase):
    @given(st.text(alphabet="widthegfaquly=&%0123456789x-", max_size=60))
    def test_any_query_gives_a_value_or_a_refusal(self, raw: str) -> None:
        try:
            found = wanted(raw)
        except ApiError as refusal:
            self.assertIn(refusal.code, ("validation_failed", "invalid_query"))
            return
        names = {name for name, _ in parse_query(raw.encode())}
        self.assertEqual(found is not None, not names.isdisjoint(NAMES))

    @given(boxes, boxes, st.sampled_from(images.FITS), st.sampled_from(images.FORMATS), st.integers(1, 100))
    def test_what_is_allowed_is_read_as_it_is(
        self, width: int | None, height: int | None, fit: str, kind: str, quality: int
    ) -> None:
        has_size = width is not None or height is not None
        sent = {
            "width": width,
            "height": height,
            "fit": fit if has_size else None,
            "format": kind,
            "quality": quality,
        }
        raw = "&".join(f"{name}={value}" for name, value in sent.items() if value is not None)
        self.assertEqual(wanted(raw), Wanted(width, height, fit if has_size else "cover", kind, quality))

    def test_a_query_about_something_else(self) -> None:
        for raw in ("", "inline=true", "download=width", "widths=3&xformat=1", "token=aheightb"):
            self.assertIsNone(wanted(raw))

    def test_the_greatest_size_and_the_list_of_sizes(self) -> None:
        self.assertIsNotNone(wanted("width=10", max_size=10))
        self.assertRaises(ApiError, wanted, "width=11", max_size=10)
        self.assertRaises(ApiError, wanted, "width=9", sizes=(8, 10))
        self.assertIsNotNone(wanted("width=8&height=10", sizes=(8, 10)))

    def test_the_file_name_gets_the_ending_of_the_format(self) -> None:
        webp = Rendition(1, 1, "cover", "webp", 80)
        for key, named in (
            ("a/b.JPEG", "a/b.webp"),
            ("b.png", "b.webp"),
            ("v1.2", "v1.2.webp"),
            ("a.jpg/b", "a.jpg/b.webp"),
            ("photo", "photo.webp"),
        ):
            self.assertEqual(webp.key(key), named)


class Shapes(SynchronousTestCase):
    def test_examples(self) -> None:
        for source, wanted_job, expected in (
            ((4000, 3000), job(400, 400), Shape(533, 400, 400, 400)),
            ((3000, 4000), job(400, 400), Shape(400, 533, 400, 400)),
            ((4000, 3000), job(400, 400, "inside"), Shape(400, 300, 400, 300)),
            ((4000, 3000), job(400, 400, "contain"), Shape(400, 300, 400, 400)),
            ((4000, 3000), job(400, None), Shape(400, 300, 400, 300)),
            ((4000, 3000), job(None, 300), Shape(400, 300, 400, 300)),
            ((4000, 3000), job(None, None), Shape(2500, 1875, 2500, 1875)),
            # Nothing is enlarged; the proportions of the box stay.
            ((100, 100), job(400, 200), Shape(100, 100, 100, 50)),
            ((100, 50), job(400, 400, "inside"), Shape(100, 50, 100, 50)),
            ((100, 50), job(400, 400, "contain"), Shape(100, 50, 400, 400)),
            ((10_000, 1), job(100, None), Shape(100, 1, 100, 1)),
            ((1, 10_000), job(100, None), Shape(1, 2500, 1, 2500)),
        ):
            self.assertEqual(shape_of(*source, wanted_job), expected)

    @given(sides, sides, boxes, boxes, st.sampled_from(images.FITS))
    def test_every_shape_fits(
        self, width: int, height: int, wide: int | None, high: int | None, fit: str
    ) -> None:
        shape = shape_of(width, height, job(wide, high, fit))
        self.assertTrue(1 <= shape.width <= max(width, 1) and 1 <= shape.height <= max(height, 1), shape)
        self.assertLessEqual(shape.box_width, wide or 2500)
        self.assertLessEqual(shape.box_height, high or 2500)
        # Either side is cropped or padded, or neither; never one of each.
        wider, higher = shape.box_width - shape.width, shape.box_height - shape.height
        if fit == "contain":
            self.assertTrue(wider >= 0 and higher >= 0, shape)
        elif fit == "cover":
            self.assertTrue(wider <= 0 and higher <= 0, shape)
        else:
            self.assertEqual((wider, higher), (0, 0))
        # The proportions stay, within a pixel; one side of 1 has no proportions.
        if min(shape.width, shape.height) > 1:
            self.assertLessEqual(abs(shape.width * height - shape.height * width), 1.01 * max(width, height))
