"""Where settings come from: the file, the environment or nowhere."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import TestCase

from project_service.settings.model import Settings
from project_service.settings.reading import BadSettings, Source
from tests.temporary import temporary_directory

NEEDED = """
[database]
dsn = "postgresql:///here"
[store]
endpoint_url = "http://s3.test"
access_key_id = "a"
secret_access_key = "b"
[auth]
jwt_keys_file = "/keys.json"
"""


class Places(TestCase):
    def loaded(
        self, toml: str = "", environ: dict[str, str] | None = None, embedded: bool = True
    ) -> Settings:
        path = temporary_directory(self) / "c.toml"
        path.write_text(toml)
        named = {f"PROJECT_SERVICE__{name}": value for name, value in (environ or {}).items()}
        return Source(path, data_dir=Path("/data") if embedded else None).read(named)

    def test_servers_that_are_not_embedded_are_configured(self) -> None:
        self.assertEqual(self.loaded(NEEDED, embedded=False).auth.jwt_keys_file, "/keys.json")

    def test_a_database_needs_no_settings(self) -> None:
        self.assertEqual(list(self.loaded("[stages.dev.databases.main]\n").stages["dev"].databases), ["main"])
        whole = {"STAGES": '{"live": {"databases": {"main": {}, "other": {"max_rows": 7}}}}'}
        found = self.loaded("[server]\n", whole).stages["live"].databases
        self.assertEqual({name: one.max_rows for name, one in found.items()}, {"main": 1000, "other": 7})

    def test_a_misspelled_databases_table_is_a_fault(self) -> None:
        for name in ("datbases.main", "main.databases"):
            with self.assertRaises(BadSettings) as caught:
                self.loaded(f"[stages.dev.{name}]\nmax_rows = 7\n")
            self.assertTrue(
                str(caught.exception).endswith(f"stages.dev.{name}.max_rows is not a setting"), name
            )

    def test_a_setting_whose_value_is_a_table(self) -> None:
        toml = "[stages.dev.databases.main.app_settings]\n'a.b' = 'c'\nd = 'e'\n"
        main = self.loaded(toml).stages["dev"].databases["main"]
        self.assertEqual(main.app_settings, {"a.b": "c", "d": "e"})

    def test_a_section_may_be_one_json_object_in_the_environment(self) -> None:
        given = {"DATABASE": '{"pool_size": 3, "acquire_timeout_seconds": 2}', "DATABASE__POOL_SIZE": "4"}
        database = self.loaded(environ=given).database
        self.assertEqual((database.pool_size, database.acquire_timeout_seconds), (4, 2.0))

    def test_values_in_place_of_tables_are_faults(self) -> None:
        for toml, environ, said in (
            ("server = 1", {}, "c.toml: server must be a table"),
            ("[[server]]\nworkers = 2", {}, "c.toml: server must be a table"),
            ("[stages.dev]", {}, "c.toml: stages.dev names no database"),
            ("[stages.dev.databases]\nmain = 1", {}, "c.toml: stages.dev.databases.main must be a table"),
            ("[stages.dev]\ndatabase = 1", {}, "c.toml: stages.dev.database is not a setting"),
            ("", {"SERVER": "{"}, "environment: server must be a table (as JSON in the environment)"),
            ("", {"STAGES": "[]"}, "environment: stages must be a table (as JSON in the environment)"),
        ):
            with self.assertRaises(BadSettings, msg=said) as caught:
                self.loaded(toml, environ)
            self.assertEqual(str(caught.exception).rpartition("/")[2], said)

    def test_stage_and_database_names_that_no_path_can_have_are_refused(self) -> None:
        for name in ("stages.''.databases.main", "stages.dev.databases.'a/b'"):
            with self.assertRaises(BadSettings, msg=name) as caught:
                self.loaded(f"[{name}]\nmax_rows = 7\n")
            why = "has a name that no path can have: empty, or with a slash"
            self.assertEqual([fault.reason for fault in caught.exception.faults], [why])

    def test_a_json_object_for_a_text_setting_is_text(self) -> None:
        self.assertEqual(self.loaded(environ={"AUTH__ISSUER": '{"a": 1}'}).auth.issuer, '{"a": 1}')

    def test_a_missing_setting_is_reported_where_it_was_left_empty(self) -> None:
        with self.assertRaises(BadSettings) as caught:
            Source().read({"PROJECT_SERVICE__DATABASE__DSN": ""})
        places = [(one.where, one.name) for one in caught.exception.faults]
        self.assertEqual(
            places[:2], [("environment", "database.dsn"), ("configuration", "store.endpoint_url")]
        )
        with self.assertRaises(BadSettings) as caught:
            self.loaded(embedded=False)
        self.assertEqual({Path(one.where).name for one in caught.exception.faults}, {"c.toml"})
