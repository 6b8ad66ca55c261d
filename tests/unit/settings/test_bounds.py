"""The bounds of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.settings.reading import BadSettings, Source


class Bounds(TestCase):
    def read(self, name: str, value: Any) -> Any:
        """The setting's value; None if it is refused."""
        section, _, key = name.partition(".")
        try:
            return getattr(getattr(Source(None, {name: value}, Path("/data")).read({}), section), key)
        except BadSettings as fault:
            self.assertEqual([one.name for one in fault.faults], [name])
            return None

    def test_bounds_are_included(self) -> None:
        for name, least, most, step in (
            ("server.workers", 1, 256, 1),
            ("server.max_json_bytes", 1024, None, 1),
            ("server.idle_timeout_seconds", 1.0, 2147483.0, 0.5),
            ("server.shutdown_seconds", 0.0, 2147483.0, 0.5),
            ("database.acquire_timeout_seconds", 0.01, 2147483.0, 0.001),
            ("auth.bcrypt_cost", 4, 31, 1),
            ("auth.password_min_bytes", 1, 72, 1),
            ("auth.login_failures_max", 0, 2147483647, 1),
            ("storage.max_object_bytes", 1, 5 * 1024**4, 1),
            ("storage.part_bytes", 5 * 1024**2, 5 * 1024**3, 1),
            ("storage.default_expires_in_seconds", 1, 604800, 1),
            ("smtp.port", 1, 65535, 1),
        ):
            self.assertEqual((self.read(name, least), self.read(name, str(least))), (least, least), name)
            self.assertIsNone(self.read(name, least - step), name)
            if most is None:
                self.assertEqual(self.read(name, 2**62), 2**62, name)
            else:
                self.assertEqual((self.read(name, most), self.read(name, str(most))), (most, most), name)
                self.assertIsNone(self.read(name, most + step), name)

    def test_cors_origins_have_a_scheme_and_a_host_and_nothing_else(self) -> None:
        for good in ("*", "https://a.test", "http://[::1]:80", "capacitor://localhost"):
            self.assertEqual(self.read("server.cors_origins", [good]), (good,))
        for bad in ("", "https://", "a.test", "//a.test", "https://a.test/", "https://a.test?x", "null"):
            self.assertIsNone(self.read("server.cors_origins", [bad]), bad)
