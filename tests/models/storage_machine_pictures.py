"""The last part of ``storage_machine``: pictures in other sizes."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.fakes.common import Response
from tests.models.storage import PICTURES, Caller, Condition, Rules, Stored
from tests.models.storage_machine_links import LinksMachine
from tests.models.storage_machine_objects import METHODS
from tests.models.storage_world import CALLERS, RULES, SERVICE, WRITERS, code

WIDTHS = st.sampled_from([1, 2])


class PicturesMachine(LinksMachine):
    @initialize(data=st.data(), rules=RULES, private_rules=RULES)
    def begin(self, data: st.DataObject, rules: Rules, private_rules: Rules) -> None:
        super().begin(data, rules, private_rules)
        for picture in PICTURES:
            self.put_a_picture(data, data.draw(WRITERS), picture, 1)

    def picture(self, data: st.DataObject) -> tuple[str, str]:
        """A bucket and a key, more often those of a picture."""
        known = [name for name, one in self.model.objects.items() if not one.not_resized()]
        if not known or data.draw(st.sampled_from([True, False, False])):
            return self.bucket_and_key(data)
        return data.draw(st.sampled_from(known))

    @rule(data=st.data(), caller=WRITERS, picture=st.sampled_from(PICTURES), width=WIDTHS)
    def put_a_picture(self, data: st.DataObject, caller: Caller, picture: bytes, width: int) -> None:
        """It is seen at once, also where another one of the key has been seen."""
        bucket, key = self.picture(data)
        self.put_at(bucket, key, caller, picture, "image/png", Condition())
        self.look(SERVICE, "GET", bucket, key, width)

    @rule(data=st.data(), caller=CALLERS, method=METHODS, width=WIDTHS)
    def download_resized(self, data: st.DataObject, caller: Caller, method: str, width: int) -> None:
        self.look(caller, method, *self.picture(data), width)

    def look(self, caller: Caller, method: str, bucket: str, key: str, width: int) -> None:
        """Rights are those of the object, and come first."""
        answer = self.call(caller, method, f"{self.path(bucket, key)}?width={width}")
        refusals = self.model.unreadable(caller, bucket)
        if refusals:
            assert answer.status in (401, 404)
            assert method == "HEAD" or code(answer) in refusals
            return
        there = self.model.seen(caller, bucket, key)
        if self.resized(answer, method, bucket, key, there, width) and there is not None:
            assert answer.header("Cache-Control") == self.model.caching(bucket, there, to_all=False)

    @rule(data=st.data(), method=METHODS, width=WIDTHS)
    def see_a_public_page_resized(self, data: st.DataObject, method: str, width: int) -> None:
        bucket, key = self.picture(data)
        path = f"/storage/public/{self.world.prefix}{bucket}/{quote(key)}?width={width}"
        answer = self.world.request(method, path, {}, None)
        self.resized(answer, method, bucket, key, self.model.page(bucket, key), width)

    @precondition(lambda self: self.has_links(uploads=False))
    @rule(data=st.data(), method=METHODS, width=WIDTHS)
    def follow_a_link_resized(self, data: st.DataObject, method: str, width: int) -> None:
        token = self.token(data, uploads=False)
        link, now = self.links[token], self.world.now()
        spent, there = self.model.spent(token, now), self.model.linked(link)
        answer = self.world.request(method, f"/storage/download?token={token}&width={width}", {}, None)
        if spent:
            assert answer.status == 410 if token in self.model.links else 404, answer
            assert method == "HEAD" or code(answer) == spent
        elif method == "HEAD" and link.uses is not None and answer.header("ETag") is None:
            # Nothing is made for it, so that it does not say what only a picture would show.
            assert answer.status in ({404} if there is None else {200, 422}), answer
        elif self.resized(answer, method, link.bucket, link.key, there, width) and method == "GET":
            link.continued_until = now + 600
            link.use()

    def resized(
        self, answer: Response, method: str, bucket: str, key: str, there: Stored | None, width: int
    ) -> bool:
        """Whether it is a picture. It is one of the bytes that the object has now, never of earlier ones."""
        refusals = {"object_not_found"} if there is None else there.not_resized()
        if there is None or refusals:
            assert answer.status == (404 if there is None else 422), answer
            assert method == "HEAD" or code(answer) in refusals, (answer, refusals)
            return False
        assert answer.status == 200, answer
        assert answer.header("Content-Type") == "image/png"
        assert answer.header("ETag") != f'"{there.etag}"'
        if method == "GET":
            assert answer.header("Content-Length") == str(len(answer.body))
            assert self.world.shows(answer.body, there.payload, width), answer
        self.model.resized(bucket, key, [width])
        return True
