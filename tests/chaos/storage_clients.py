"""Clients of a mixed load for what storage can do besides objects: pictures in other sizes, and upload links."""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import requests
from attrs import define, field

from tests.live.mixed_load import PASSWORD, VERIFYING_SECONDS, Client, Load
from tests.pictures import looks, png

OBJECTS = "/storage/buckets/private/objects"
# In this bucket everybody knows of their own objects only.
PERSONAL = "/storage/buckets/personal"
WIDTHS = (8, 16, 32)
SIDE = 64
BOUNDARY = "frontier"


class PictureClient(Client):
    """Pictures that are replaced and deleted again and again, and requested in other sizes in between: what comes is
    always of the last that was acknowledged.

    The colour of each tells it from all others. A key is given up when a change of it is not acknowledged, because
    it may or may not have been made, or may yet be.
    """

    def __init__(self, load: Load, part: str, number: int) -> None:
        super().__init__(load, part, number)
        # None: it has been deleted.
        self._colours: dict[str, tuple[int, ...] | None] = {}
        self._key = ""

    def once(self) -> None:
        if self._key not in self._colours or self.random.random() < 0.05:
            self._key = f"{self.name}/{self.number}"
            self._replace()
        else:
            self.random.choices([self._look, self._replace, self._delete], [8, 3, 1])[0]()

    def _replace(self) -> None:
        red, green, blue = self.random.randbytes(3)
        self._colours.pop(self._key, None)
        headers = {**self.load.headers, "Content-Type": "image/png"}
        picture = png(red, green, blue, SIDE)
        if self.send("PUT", f"{OBJECTS}/{self._key}", data=picture, headers=headers) is not None:
            self._colours[self._key] = (red, green, blue)

    def _delete(self) -> None:
        if self._colours.pop(self._key) is None:
            self._replace()
        elif self.send("DELETE", f"{OBJECTS}/{self._key}", expected={204}) is not None:
            self._colours[self._key] = None

    def _look(self) -> None:
        width = self.random.choice(WIDTHS)
        path = f"{OBJECTS}/{self._key}?width={width}"
        answer = self.send("GET", path, expected={404})
        if answer is not None and (fault := self._fault(answer, self._key, width)):
            self.blame(fault)

    def _fault(self, answer: requests.Response, key: str, width: int) -> str:
        """What is wrong with a response for a picture in this width."""
        colour = self._colours[key]
        if answer.status_code != 200 or colour is None:
            expected = 404 if colour is None else 200
            return (
                ""
                if answer.status_code == expected
                else f"picture {key}: {answer.status_code}, not {expected}"
            )
        shown = looks(answer.content)
        return "" if shown == (width, colour) else f"picture {key}: {shown}, not {(width, colour)}"

    def lost(self) -> list[str]:
        faults = []
        with requests.Session() as session:
            for key in self._colours:
                for width in WIDTHS:
                    answer = session.get(
                        f"{self.load.base_url}{OBJECTS}/{key}?width={width}",
                        headers=self.load.headers,
                        timeout=VERIFYING_SECONDS,
                    )
                    faults.append(self._fault(answer, key, width))
        return [fault for fault in faults if fault]


@define
class _Link:
    """``folder`` is that of its prefix. ``sent`` are the SHA-256 of all that was uploaded by it, by key;
    ``acknowledged`` are the keys of those that were."""

    id: str
    path: str
    folder: str
    user: str
    sent: dict[str, str] = field(factory=dict)
    acknowledged: list[str] = field(factory=list)
    revoked: bool = False


class LinkClient(Client):
    """Upload links that are used again and again until they are refused, and some that are revoked first: each makes
    one object, of the user who made the link, or none if it was revoked."""

    def __init__(self, load: Load, part: str, number: int) -> None:
        super().__init__(load, part, number)
        self._user: dict[str, Any] = {}
        self._links: list[_Link] = []

    def once(self) -> None:
        if not self._user or self.number % 100 == 0:
            self._sign_up()
        elif (link := self._signed()) is not None:
            self._links.append(link)
            if self.random.random() < 0.25:
                self._revoke(link)
            self._use_up(link)

    @property
    def _headers(self) -> dict[str, str]:
        token = self._user["access_token"]
        return {"X-Service-Key": self.load.keys.anon, "Authorization": f"Bearer {token}"}

    def _sign_up(self) -> None:
        account = {"email": f"{self.name}-{self.number}@example.test", "password": PASSWORD}
        answer = self.send("POST", "/auth/signup", json=account)
        if answer is not None:
            self._user = answer.json()["data"]

    def _signed(self) -> _Link | None:
        folder = f"{self.name}/{self.number}/"
        body = {"method": "PUT", "key_prefix": folder}
        answer = self.send("POST", f"{PERSONAL}/presign", json=body, headers=self._headers)
        if answer is None:
            return None
        made = answer.json()
        # The service may be at another address by the time it is used.
        url = urlsplit(made["url"])
        return _Link(made["id"], f"{url.path}?{url.query}", folder, self._user["user"]["id"])

    def _revoke(self, link: _Link) -> None:
        expected = {204}
        while not self.load.ended:
            path = f"{PERSONAL}/links/{link.id}"
            if self.send("DELETE", path, headers=self._headers, expected=expected) is not None:
                link.revoked = True
                return
            # An earlier request may have done it.
            expected = {204, 404}

    def _use_up(self, link: _Link) -> None:
        refusal = 404 if link.revoked else 410
        while not self.load.ended:
            answer = self._upload(link, f"{link.folder}{len(link.sent)}", refusal)
            if answer is None:
                continue
            if answer.status_code == refusal:
                if len(link.sent) == 1 and not link.revoked:
                    self.blame(f"a new link was used up: {answer.text}")
                return

    def _upload(self, link: _Link, key: str, refusal: int) -> requests.Response | None:
        payload = self.random.randbytes(self.random.choice((0, 1000, 70_000)))
        link.sent[key] = sha256(payload).hexdigest()
        rest = key.removeprefix(link.folder)
        if self.random.random() < 0.5:
            answer = self.send("PUT", f"{link.path}&key={rest}", data=payload, headers={}, expected={refusal})
        else:
            file = {"file": (rest, payload)}
            answer = self.send("POST", link.path, files=file, headers={}, expected={refusal})
        if answer is not None and answer.status_code != refusal:
            link.acknowledged.append(key)
        return answer

    def lost(self) -> list[str]:
        with requests.Session() as session:
            session.headers.update(self.load.headers)
            there = self._there(session)
            return [text for link in self._links if (text := self._fault(session, link, there))]

    def _there(self, session: requests.Session) -> set[str]:
        """The keys of all objects that came by the client's links."""
        query: dict[str, str | None] = {"prefix": f"{self.name}/", "recursive": "true", "max_keys": "1000"}
        keys: set[str] = set()
        while True:
            answer = session.get(
                f"{self.load.base_url}{PERSONAL}/objects", params=query, timeout=VERIFYING_SECONDS
            )
            answer.raise_for_status()
            page = answer.json()
            keys.update(one["key"] for one in page["objects"])
            query["page_token"] = page["next_token"]
            if page["next_token"] is None:
                return keys

    def _fault(self, session: requests.Session, link: _Link, there: set[str]) -> str:
        """What is wrong with the object of a link, or without it."""
        made = [key for key in link.sent if key in there]
        if len(made) > (0 if link.revoked else 1):
            return f"link {link.folder}: {made}" + (", and it was revoked" if link.revoked else "")
        if not set(link.acknowledged) <= set(made):
            return f"link {link.folder}: {link.acknowledged} was acknowledged, not {made}"
        for key in made:
            url = f"{self.load.base_url}{PERSONAL}/objects/{key}"
            payload = session.get(url, timeout=VERIFYING_SECONDS).content
            owner = session.get(f"{url}?info=true", timeout=VERIFYING_SECONDS).json().get("owner")
            if (sha256(payload).hexdigest(), owner) != (link.sent[key], link.user):
                return f"link {link.folder}: {len(payload)} bytes, of {owner}, not {link.user}"
        return ""
