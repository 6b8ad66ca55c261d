"""``GET /admin/settings``: every setting with its value and its source, and none of a secret."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import orjson
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.operators.settings import shown
from project_service.settings.model import INNER_SECTIONS, SECTIONS, Settings, StageDatabase, Store
from project_service.settings.reading import Source

# What may be in a secret, in a URL and in a header alike.
SECRETS = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=32, max_size=40)
DATABASE = "stages.dev.databases.main"


def by_name(settings: Settings) -> Mapping[str, Any]:
    return {one["name"]: one for one in shown(settings)["settings"]}


def read(
    toml: str, environ: Mapping[str, str] = {}, data_dir: str | None = "/data", **options: Any
) -> Settings:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "c.toml"
        path.write_text(toml)
        given_options = {name.replace("__", "."): value for name, value in options.items()}
        return Source(path, given_options, None if data_dir is None else Path(data_dir)).look_through(
            environ
        )[0]


class Canaries:
    """A configuration that is full of secrets, each another one; ``found`` collects them."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.folder = folder
        self.seed = seed
        self.found: dict[str, str] = {}

    def canary(self, name: str) -> str:
        return self.found.setdefault(name, f"{self.seed}{len(self.found):03}")

    def file(self, name: str, content: str) -> str:
        path = self.folder / f"secret{len(self.found)}"
        path.write_text(content)
        return str(path)

    def value(self, name: str, field: Any) -> Any:
        """A value with a canary for the setting, if it may hold a secret; None for others."""
        last, of_hooks = name.rpartition(".")[2], ".hooks." in name
        value: Any = None
        if last in ("private_key_file", "client_secret_file"):
            value = self.file(name, self.canary(name))
        elif last == "headers_file":
            value = self.file(name, f"authorization: Bearer {self.canary(name)}")
        elif last in ("dsn", "direct_dsn", "read_dsn"):
            value = f"postgresql://user:{self.canary(name)}@db.test/x"
        elif of_hooks and last.endswith("_secret"):
            self.found[name] = base64.b64encode(self.canary(name).encode()).decode()
            value = f"v1,whsec_{self.found[name]}"
        elif of_hooks:
            # In the query, by which the other side may know who calls.
            value = f"https://hooks.test/x?key={self.canary(name)}"
        elif last == "jwks":
            self.found[name] = base64.urlsafe_b64encode(self.canary(name).encode()).decode()
            value = json.dumps({"keys": [{"kty": "oct", "k": self.found[name]}]})
        elif last == "app_settings":
            value = {"pepper": self.canary(name)}
        elif "Secret" in str(field.type):
            value = self.canary(name)
        return value

    def toml(self) -> str:
        """Of all settings."""
        inner = {name.replace("NAME", "google"): section for name, section in INNER_SECTIONS.items()}
        lines = []
        for path, section in {**SECTIONS, **inner, DATABASE: StageDatabase}.items():
            lines.append(f"[{path}]")
            for field in attrs.fields(section):
                name = f"{path}.{field.name}"
                value = self.value(name, field) if "kind" in field.metadata else None
                if isinstance(value, dict):
                    lines.append(f"{field.name} = {{ pepper = {orjson.dumps(value['pepper']).decode()} }}")
                elif value is not None:
                    lines.append(f"{field.name} = {json.dumps(value)}")
        return "\n".join(lines)


class Secrets(TestCase):
    @given(SECRETS)
    def test_no_secret_of_a_file_is_shown(self, seed: str) -> None:
        with TemporaryDirectory() as folder:
            canaries = Canaries(Path(folder), seed)
            settings = read(canaries.toml(), data_dir=None)
        answer = orjson.dumps(shown(settings)).decode()
        for name, canary in canaries.found.items():
            self.assertNotIn(canary, answer, name)
        self.assertNotIn(seed, answer)
        listed = by_name(settings)
        for name in canaries.found:
            is_address = name.startswith("auth.hooks.") and not name.endswith("_secret")
            self.assertTrue(listed[name]["set"], name)
            self.assertEqual(listed[name]["secret"], not is_address, name)
            self.assertEqual(listed[name]["value"], "https://hooks.test/x?…" if is_address else None)
        self.assertGreater(len(canaries.found), 15)

    def test_everything_that_is_a_secret_is_marked_also_if_it_is_not_set(self) -> None:
        listed = by_name(Settings())
        for name in ("database.dsn", "store.secret_access_key", "store.credentials_file", "smtp.password"):
            self.assertEqual(
                {key: listed[name][key] for key in ("value", "secret", "set")},
                {"value": None, "secret": True, "set": False},
                name,
            )
        self.assertFalse(listed["smtp.host"]["secret"])

    def test_the_keys_of_a_file_are_no_text(self) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "credentials"
            path.write_text(
                "[default]\naws_access_key_id = public\naws_secret_access_key = canary-of-the-file\n"
            )
            settings = read(f"[store]\nendpoint_url = 'http://s3.test'\ncredentials_file = '{path}'\n")
        self.assertNotIn("canary", orjson.dumps(shown(settings)).decode())
        listed = by_name(settings)
        for name in ("credentials_file", "secret_access_key"):
            self.assertEqual(
                (listed[f"store.{name}"]["set"], listed[f"store.{name}"]["source"]), (True, "file")
            )

    @given(SECRETS, st.sampled_from(["", ":"]), st.sampled_from(["/p", "", "?q", "/p w@x"]))
    def test_what_is_before_the_host_of_a_url_is_left_out(self, seed: str, colon: str, end: str) -> None:
        """Wherever somebody has put one."""
        url = f"https://user{colon}{seed}@host.test{end}"
        base = Settings()
        settings = evolve(
            base,
            server=evolve(base.server, trusted_proxies=("10.0.0.1", url)),
            auth=evolve(base.auth, issuer=url),
            smtp=evolve(base.smtp, template_variables={"a": f"see {url}"}),
        )
        self.assertNotIn(seed, orjson.dumps(shown(settings)).decode())

    def test_a_value_of_an_unknown_type_is_not_shown(self) -> None:
        odd: Any = object()
        settings = evolve(Settings(), smtp=evolve(Settings().smtp, helo=odd))
        self.assertRaises(TypeError, shown, settings)


class Sources(TestCase):
    TOML = "[auth]\nbcrypt_cost = 5\naudit_days = 7\n[server]\nlisten = ['tcp:1']\n"

    def test_each_setting_says_where_it_comes_from(self) -> None:
        environ = {
            "PROJECT_SERVICE__AUTH__AUDIT_DAYS": "8",
            "PROJECT_SERVICE__STORAGE": '{"sweep_seconds": 9}',
        }
        listed = by_name(read(self.TOML, environ, server__workers="2"))
        for name, value, source, reloads in (
            ("auth.bcrypt_cost", 5, "file", False),
            ("auth.audit_days", 8, "environment", True),
            ("storage.sweep_seconds", 9.0, "environment", False),
            ("server.workers", 2, "command line", False),
            ("server.listen", ["tcp:1"], "file", False),
            ("server.max_json_bytes", 1048576, "default", True),
            ("auth.jwt_keys_file", "/data/jwt-keys.json", "embedded", False),
            ("smtp.mail_dir", "/data/mail", "embedded", False),
            ("server.console_sql", True, "embedded", False),
            (f"{DATABASE}.extra_search_path", ["public", "extensions"], "embedded", False),
            (f"{DATABASE}.max_rows", 1000, "default", False),
        ):
            one = listed[name]
            self.assertEqual((one["value"], one["source"], one["reloads"]), (value, source, reloads), name)

    def test_every_setting_is_listed(self) -> None:
        names = set(by_name(read("[auth.providers.google]\nclient_id = 'x'\n")))
        inner = {name.replace("NAME", "google"): section for name, section in INNER_SECTIONS.items()}
        self.assertEqual(
            names,
            {
                f"{path}.{field.name}"
                for path, section in {**SECTIONS, **inner, DATABASE: StageDatabase}.items()
                for field in attrs.fields(section)
                if "kind" in field.metadata
            },
        )

    def test_the_file_is_named_if_something_is_set_there(self) -> None:
        self.assertIsNone(shown(read(""))["file"])
        self.assertRegex(shown(read(self.TOML))["file"], r"/c\.toml$")

    def test_what_an_embedded_server_has_set_is_marked(self) -> None:
        settings = read("").with_database("postgresql:///e").with_store(Store(endpoint_url="http://s3.test"))
        listed = by_name(settings)
        for name in ("database.dsn", "store.endpoint_url"):
            self.assertEqual((listed[name]["set"], listed[name]["source"]), (True, "embedded"))

    def test_a_reload_changes_the_source_of_what_it_takes_over_alone(self) -> None:
        old = read(self.TOML).with_database("postgresql:///e")
        # A worker reads what is embedded as options.
        new = read(
            "[auth]\naudit_days = 9\nbcrypt_cost = 6\n[storage]\nresumable_seconds = 5\n", database__dsn="x"
        )
        listed = by_name(old.changed_without_restart(new))
        for name, value, source in (
            ("auth.audit_days", 9, "file"),
            ("auth.bcrypt_cost", 5, "file"),
            ("storage.resumable_seconds", 5, "file"),
            ("server.listen", ["tcp:1"], "file"),
            ("database.dsn", None, "embedded"),
        ):
            self.assertEqual((listed[name]["value"], listed[name]["source"]), (value, source), name)
        listed = by_name(old.changed_without_restart(read("")))
        self.assertEqual(
            (listed["auth.audit_days"]["value"], listed["auth.audit_days"]["source"]), (90, "default")
        )
