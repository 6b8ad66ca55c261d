"""``/storage/v1`` in memory: all of storage with the endpoints for clients."""

from __future__ import annotations

import json
from typing import Any

from project_service.auth.tokens import KeySet, rotated
from project_service.supabase.storage.mounting import ClientStorage
from project_service.supabase.storage.signatures import Signatures
from tests.fakes.common import ANON_KEY, SERVICE_KEY, Response
from tests.http.storage.app import ALICE, BOB, StorageApp

V1 = "/storage/v1"
# As clients send them: storage clients alone have the key in Authorization and nothing else.
SERVICE = {"Authorization": f"Bearer {SERVICE_KEY}"}
ANON = {"apikey": ANON_KEY, "Authorization": f"Bearer {ANON_KEY}"}
USER = {"apikey": ANON_KEY, "Authorization": f"Bearer user:{ALICE}"}
OTHER = {"apikey": ANON_KEY, "Authorization": f"Bearer user:{BOB}"}


class ClientApp(StorageApp):
    """It also has the buckets ``policed`` (private) and ``shown`` (public), as clients make them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.key_set = KeySet.parse(rotated(None, "ES256"))
        signatures = Signatures(lambda: self.key_set, lambda: self.now().timestamp())
        ClientStorage(self.storage, {("dev", "main")}, signatures).mount(self.router)
        for name, public in (("policed", False), ("shown", True)):
            made = self.ask("POST", "/bucket", {"name": name, "public": public}, SERVICE)
            assert made.status == 200, made.body

    def ask(
        self, method: str, path: str, value: Any = None, headers: dict[str, str] = USER, base: str = V1
    ) -> Response:
        body = None if value is None else json.dumps(value).encode()
        sent = {**headers, "Content-Type": "application/json"} if value is not None else headers
        return self.request(method, f"{base}{path}", sent, body)

    def value(
        self, method: str, path: str, value: Any = None, headers: dict[str, str] = USER, base: str = V1
    ) -> Any:
        """The value of a response that is a success."""
        response = self.ask(method, path, value, headers, base)
        assert response.status == 200, (response.status, response.body)
        return json.loads(response.body)


def told(response: Response) -> tuple[int, str, str]:
    """What is said of a refusal: its status, the one that is meant, and the code."""
    said = json.loads(response.body)
    assert sorted(said) == ["code", "error", "message", "statusCode"], said
    return response.status, said["statusCode"], said["code"]
