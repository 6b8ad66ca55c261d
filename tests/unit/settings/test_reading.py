"""Reading settings: all faults are reported at once, which source takes precedence, and no secret is shown."""

from __future__ import annotations

from base64 import b64encode
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.settings import reading
from project_service.settings.model import Auth, Hooks, Secret, Server, Settings, Stage, StageDatabase
from project_service.settings.reading import BadSettings, Source, with_data_dir_defaults
from tests.unit.settings.loading import faults, loaded

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


class Faults(TestCase):
    def test_all_faults_are_reported_at_once_with_file_key_and_reason(self) -> None:
        with self.assertRaises(BadSettings) as caught:
            loaded(
                '[server]\nworkers = "x"\nfoo = 1\n[auth]\nbcrypt_cost = 3\n',
                {"PROJECT_SERVICE__STORE__ADDRESSING_STYLE": "round"},
            )
        text = str(caught.exception)
        self.assertRegex(text, r"c\.toml: server\.workers must be a whole number")
        self.assertRegex(text, r"c\.toml: server\.foo is not a setting")
        self.assertRegex(text, r"c\.toml: auth\.bcrypt_cost must be from 4 to 31")
        self.assertIn("environment: store.addressing_style must be one of path, virtual", text)

    def test_unknown_sections_and_keys_are_faults(self) -> None:
        self.assertEqual(faults("top = 1\n"), ["top is not a setting"])
        self.assertEqual(faults(environ={"PROJECT_SERVICE__AUTH__X": "1"}), ["auth.x is not a setting"])
        self.assertEqual(faults("[stages.dev]\nx = 1\n"), ["stages.dev.x is not a setting"])

    def test_the_name_that_was_probably_meant_is_suggested(self) -> None:
        for toml, name, meant in (
            ("[sotre]\nbucket = 'x'", "sotre.bucket", "[store]"),
            ("[serve]\nlisten = []", "serve.listen", "[server]"),
            (
                "[stage.dev.databases.main]\ndsn = ''",
                "stage.dev.databases.main.dsn",
                "[stages.dev.databases.main]",
            ),
            ("[stages.d.database.m]\ndsn = ''", "stages.d.database.m.dsn", "[stages.d.databases.m]"),
            ("[auth]\nallow_singup = true", "auth.allow_singup", "auth.allow_signup"),
            ("[server]\nmax-connections = 1", "server.max-connections", "server.max_connections"),
            ("[store]\nsecret_acces_key = 'hidden'", "store.secret_acces_key", "store.secret_access_key"),
            (
                "[stages.d.databases.m]\nscheme = 'a'",
                "stages.d.databases.m.scheme",
                "stages.d.databases.m.schemas",
            ),
            ("[server]\nbcrypt_cost = 4", "server.bcrypt_cost", "auth.bcrypt_cost"),
            (
                "[server]\npool_size = 4",
                "server.pool_size",
                "database.pool_size or stages.STAGE.databases.NAME.pool_size",
            ),
            ("log_level = 'debug'", "log_level", "server.log_level"),
        ):
            self.assertEqual(faults(toml + "\n"), [f"{name} is not a setting; did you mean {meant}?"])
        misspelt = {"PROJECT_SERVICE__SERVER__WORKER": "2"}
        self.assertEqual(
            faults(environ=misspelt), ["server.worker is not a setting; did you mean server.workers?"]
        )

    def test_a_missing_or_malformed_file_is_a_fault(self) -> None:
        with self.assertRaises(BadSettings) as caught:
            Source(Path("/nonexistent/c.toml"), data_dir=Path("/data")).read({})
        self.assertIn("/nonexistent/c.toml: cannot be read", str(caught.exception))
        self.assertIn("is not TOML", faults("[a\n")[0])

    def test_what_is_missing_matters_only_to_those_who_use_it(self) -> None:
        dsn = {"PROJECT_SERVICE__DATABASE__DSN": "postgresql:///x"}
        self.assertIsNotNone(Source().read(dsn, {"database"}).database.dsn)
        for part in ("store", "token keys"):
            self.assertRaises(BadSettings, Source().read, dsn, {part})
        self.assertRaises(BadSettings, Source().read, {}, {"database"})
        self.assertIsNone(Source().read({}, ()).database.dsn)

    def test_what_is_no_value_matters_to_everybody(self) -> None:
        mistyped = {"PROJECT_SERVICE__AUTH__BCRYPT_COST": "many"}
        self.assertRaises(BadSettings, Source().read, mistyped, ())

    def test_all_faults_are_listed_beside_the_settings_that_have_none(self) -> None:
        given = {
            "PROJECT_SERVICE__AUTH__BCRYPT_COST": "many",
            "PROJECT_SERVICE__DATABASE__DSN": "postgresql:///x",
        }
        settings, faults = Source().look_through(given)
        self.assertIsNotNone(settings.database.dsn)
        names = ["auth.bcrypt_cost", "store.endpoint_url", "auth.jwt_keys_file"]
        self.assertEqual([fault.name for fault in faults], names)

    def test_without_embedding_database_store_and_keys_must_be_configured(self) -> None:
        names = [fault.split()[0] for fault in faults(embedded=False)]
        self.assertEqual(names, ["database.dsn", "store.endpoint_url", "auth.jwt_keys_file"])
        self.assertEqual(
            [fault.split()[0] for fault in faults("[store]\nendpoint_url = 'http://s3.test'\n")],
            ["store.access_key_id", "store.secret_access_key"],
        )
        half = "[store]\nendpoint_url = 'http://s3.test'\naccess_key_id = 'a'\n"
        self.assertEqual(faults(half), ["store.secret_access_key is missing"])
        # A wrong setting is not reported as missing too.
        wrong = faults("[database]\ndsn = 'bogus=1'\n", embedded=False)
        self.assertEqual([fault.split()[0] for fault in wrong].count("database.dsn"), 1)

    def test_a_pooler_of_transactions_needs_a_way_around_it(self) -> None:
        alone = "[database]\ndsn = 'host=pooler'\nprepare = false\n"
        reason = "database.prepare is for a pooler of transactions, so database.direct_dsn is needed too"
        self.assertEqual(faults(alone), [reason])
        self.assertFalse(loaded(f"{alone}direct_dsn = 'host=server'").database.prepare)
        missing = "database.direct_dsn is for dsn that leads to a pooler, and there is no database.dsn"
        self.assertEqual(faults("[database]\ndirect_dsn = 'host=server'"), [missing])
        where = "stages.dev.databases.main"
        self.assertEqual(
            faults(f"[{where}]\ndirect_dsn = 'host=server'"),
            [f"{where}.direct_dsn is for its dsn, and there is none"],
        )

    def test_sessions_are_had_by_direct_dsn(self) -> None:
        system = "[database]\ndsn = 'host=pooler'\ndirect_dsn = 'host=server'\n"
        settings = loaded(
            f"{system}[stages.dev.databases.own]\ndsn = 'host=x'\n[stages.dev.databases.main]\n"
        )
        own, main = (settings.stages["dev"].databases[name] for name in ("own", "main"))
        self.assertEqual(
            [settings.session_dsn(one).reveal() for one in (None, main, own)],
            ["host=server", "host=server", "host=x"],
        )
        self.assertEqual([settings.is_pooled(one) for one in (None, main, own)], [True, True, False])
        self.assertFalse(settings.with_database("host=embedded").is_pooled())

    def test_mail_needs_a_server_and_a_sender(self) -> None:
        self.assertEqual(faults("[smtp]\nhost = 'mail.test'\n"), ["smtp.sender is missing"])
        confirm = "[auth]\nconfirm_email = true\n"
        elsewhere = "[database]\ndsn = 'postgresql:///x'\n[store]\nendpoint_url = 'http://s3.test'\n"
        elsewhere += "access_key_id = 'a'\nsecret_access_key = 's'\n"
        needed = ["auth.confirm_email needs [smtp] host (or mail_dir, to try it)"]
        self.assertEqual(faults(confirm + elsewhere), needed)
        assert loaded(f"{confirm}[smtp]\nmail_dir = 'm'\n{elsewhere}").auth.confirm_email
        assert loaded(f"{confirm}[smtp]\nhost = 'mail.test'\nsender = 'a@mail.test'\n").auth.confirm_email

    def test_where_a_server_is_embedded_mails_go_to_a_folder_of_the_data_directory(self) -> None:
        """If neither is, a service may be in production, and nobody would read them."""
        database = "[database]\ndsn = 'postgresql:///x'\n"
        store = "[store]\nendpoint_url = 'http://s3.test'\naccess_key_id = 'a'\nsecret_access_key = 's'\n"
        confirm = "[auth]\nconfirm_email = true\n"
        for toml, folder in (
            ("", "/data/mail"),
            (database, "/data/mail"),
            (store, "/data/mail"),
            ("[smtp]\nmail_dir = '/m'\n", "/m"),
        ):
            self.assertEqual(loaded(confirm + toml).smtp.mail_dir, folder)
        assert loaded(database + store).smtp.mail_dir is None
        assert loaded(f"{database}{store}[smtp]\nmail_dir = '/m'\n").smtp.mail_dir == "/m"

    def test_values_that_would_only_fail_later_are_faults(self) -> None:
        for toml, words in {
            "[server]\nlisten = []": "server.listen must not be empty",
            "[server]\nlisten = ['foo']": "server.listen must be endpoints such as",
            "[server]\nlisten = 'tcp:1'": "server.listen must be a list",
            "[server]\nadmin_listen = 'port 80'": "server.admin_listen must be endpoints",
            "[server]\npublic_url = 'https://a.test:99999'": "server.public_url must have a port",
            "[server]\npublic_url = 'https://a.test?x=y'": "server.public_url must not hold",
            "[database]\nstatement_timeout_seconds = 3000000": "database.statement_timeout_seconds must be from 0",
            "[database]\ndsn = 'host=a target_session_attrs=standby'": "database.dsn asks for a server",
            "[stages.d.databases.m]\nschemas = []": "stages.d.databases.m.schemas must not be empty",
            "[store]\nregion = 7": "store.region must be a string",
            '[store]\nregion = "a\\u0000"': "store.region must not contain NUL",
            "[auth]\nallow_signup = 'yes'": "auth.allow_signup must be true or false",
            "[auth]\nallow_signup = 1": "auth.allow_signup must be true or false",
            "[auth]\nlogin_failures_max = true": "auth.login_failures_max must be a whole number",
            "[server]\nshutdown_seconds = 'soon'": "server.shutdown_seconds must be a number of seconds",
            "[server]\nshutdown_seconds = true": "server.shutdown_seconds must be a number of seconds",
            "[server]\nshutdown_seconds = nan": "server.shutdown_seconds must be from 0 to",
            "[server]\ntrusted_proxies = ['10.0.0']": "server.trusted_proxies must be IP addresses",
            "[server]\npublic_url = 'ftp://a.test'": "server.public_url must be an http or https address",
            "[server]\npublic_url = 'https://'": "server.public_url must be an http or https address",
            "[server]\npublic_url = 'https://u@a.test'": "server.public_url must not hold",
            "[server]\npublic_url = 'https://:p@a.test'": "server.public_url must not hold",
            "[server]\npublic_url = 'https://a.test#x'": "server.public_url must not hold",
            "[stages.d.databases.m]\ntrace_header = 'a b'": "stages.d.databases.m.trace_header must be the name",
            "[stages.d.databases.m]\napp_settings = []": "stages.d.databases.m.app_settings must be a table",
        }.items():
            self.assertTrue(faults(toml + "\n")[0].startswith(words), (toml, faults(toml + "\n")))

    def test_an_empty_setting_is_missing(self) -> None:
        self.assertEqual(
            [fault.split()[0] for fault in faults("[database]\ndsn = ''\n", embedded=False)],
            ["database.dsn", "store.endpoint_url", "auth.jwt_keys_file"],
        )

    def test_a_fault_never_shows_a_secret(self) -> None:
        for bad in ("postgres://u:hunter2@h/db?bogus=1", "password=hunter2 bogus=1", "://hunter2"):
            for fault in faults(f"[database]\ndsn = '{bad}'\n"):
                self.assertNotIn("hunter2", fault)

    @given(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.booleans(), st.none())))
    def test_any_input_gives_settings_or_faults(self, section: dict[str, Any]) -> None:
        options = {f"server.{name}": value for name, value in section.items()}
        try:
            Source(None, options, Path("/data")).read({})
        except BadSettings as fault:
            self.assertTrue(fault.faults)


class Tracing(TestCase):
    CONFIG = '[tracing]\nendpoint = "http://127.0.0.1:4318/v1/traces"\n'

    def test_a_collector_needs_the_extra_to_be_installed(self) -> None:
        self.assertEqual(loaded(self.CONFIG).tracing.endpoint, "http://127.0.0.1:4318/v1/traces")
        for missing in (lambda name: None, self._not_even_its_package):
            self.patch(reading, "find_spec", missing)
            expected = "tracing.endpoint needs an extra: pip install 'project-service[tracing]'"
            self.assertEqual(faults(self.CONFIG), [expected])
            self.assertIsNone(loaded().tracing.endpoint)

    def _not_even_its_package(self, name: str) -> None:
        raise ModuleNotFoundError(name)


class Precedence(TestCase):
    def test_options_win_over_the_environment_and_the_environment_over_the_file(self) -> None:
        toml = "[server]\nidle_timeout_seconds = 1\nshutdown_seconds = 1\nworkers = 1\n"
        environ = {
            "PROJECT_SERVICE__SERVER__SHUTDOWN_SECONDS": "2",
            "PROJECT_SERVICE__SERVER__WORKERS": "2",
        }
        server = loaded(toml, environ, server__workers="auto").server
        self.assertEqual(
            (server.idle_timeout_seconds, server.shutdown_seconds, server.workers), (1.0, 2.0, "auto")
        )

    def test_lists_and_tables_in_the_environment_are_json(self) -> None:
        settings = loaded(
            environ={
                "PROJECT_SERVICE__SERVER__CORS_ORIGINS": '["https://a.test"]',
                "PROJECT_SERVICE__STAGES__PROD__DATABASES__SHOP": '{"schemas": ["api"], "max_rows": 5}',
                "PROJECT_SERVICE__STAGES__PROD__DATABASES__SHOP__APP_SETTINGS": '{"a": "b"}',
                "PROJECT_SERVICE__STAGES__DEV": '{"databases": {"main": {}}}',
            }
        )
        self.assertEqual(settings.server.cors_origins, ("https://a.test",))
        shop = settings.stages["prod"].databases["shop"]
        self.assertEqual((shop.schemas, shop.max_rows, shop.app_settings), (("api",), 5, {"a": "b"}))
        for name, value, fault in (
            ("SERVER__CORS_ORIGINS", "https://a.test", "server.cors_origins must be a list (as JSON"),
            ("STAGES", "[dev", "stages must be a table (as JSON"),
            ("STAGES__DEV__DATABASES__MAIN", "[]", "stages.dev.databases.main must be a table (as JSON"),
        ):
            self.assertTrue(faults(environ={f"PROJECT_SERVICE__{name}": value})[0].startswith(fault), name)

    def test_values_are_kept_as_they_are_given(self) -> None:
        given: dict[str, Any] = {
            "listen": (
                "tcp:80",
                "tcp6:port=80",
                "ssl:443:privateKey=k",
                "unix:/run/s",
                "systemd:x",
                "haproxy:x",
            ),
            "admin_listen": "tcp:81",
            "trusted_proxies": ("10.0.0.0/8", "::1", "192.0.2.1/24"),
            "cors_origins": ("*", "https://a.test:8443"),
            "public_url": "http://a.test:8080/b",
        }
        server = loaded(**{f"server__{name}": value for name, value in given.items()}).server
        self.assertEqual({name: getattr(server, name) for name in given}, given)
        where = "PROJECT_SERVICE__STAGES__DEV__DATABASES__MAIN__"
        environ = {"TRACE_HEADER": "X-Trace", "SCHEMAS": '["a", "b,c"]', "EXTRA_SEARCH_PATH": "a, b,"}
        settings = loaded(environ={where + name: value for name, value in environ.items()})
        main = settings.stages["dev"].databases["main"]
        self.assertEqual(main.trace_header, "X-Trace")
        self.assertEqual((main.schemas, main.extra_search_path), (("a", "b,c"), ("a", "b")))

    def test_booleans_and_numbers_in_the_environment(self) -> None:
        settings = loaded(
            environ={
                "PROJECT_SERVICE__AUTH__CONFIRM_EMAIL": "False",
                "PROJECT_SERVICE__AUTH__REQUIRE_PROJECT_KEY": "TRUE",
                "PROJECT_SERVICE__SERVER__SHUTDOWN_SECONDS": "1.5",
                "PROJECT_SERVICE__AUTH__ISSUER": "",
            }
        )
        self.assertEqual((settings.auth.confirm_email, settings.auth.require_project_key), (False, True))
        self.assertEqual((settings.server.shutdown_seconds, settings.auth.issuer), (1.5, None))

    def test_a_trailing_slash_of_public_url_is_dropped(self) -> None:
        self.assertEqual(
            loaded("[server]\npublic_url = 'https://a.test/b/'\n").server.public_url, "https://a.test/b"
        )

    def test_postgrests_names_of_settings_are_accepted(self) -> None:
        toml = """
        [stages.dev.databases.main]
        db-schemas = "api, v2"
        db-extra-search-path = ""
        db_max_rows = 5
        db-plan-enabled = true
        db-prepared-statements = false
        jwt-role-claim-key = ".a"
        openapi-mode = "disabled"
        client-error-verbosity = "minimal"
        server-timing-enabled = true
        url-use-legacy-target-names = false
        """
        main = loaded(toml, {"PROJECT_SERVICE__STAGES__DEV__DATABASES__MAIN__MAX_ROWS": "6"})
        database = main.stages["dev"].databases["main"]
        self.assertEqual(
            (database.schemas, database.extra_search_path, database.max_rows), (("api", "v2"), (), 6)
        )
        self.assertEqual((database.plan, database.prepare, database.role_claim), (True, False, ".a"))
        self.assertEqual((database.openapi, database.error_verbosity), ("disabled", "minimal"))
        self.assertEqual((database.server_timing, database.legacy_target_names), (True, False))

    def test_one_setting_under_two_names_is_a_fault(self) -> None:
        name = "stages.dev.databases.main"
        reason = f"is another name of {name}.max_rows, which is there too"
        for lines, second in (
            ("max_rows = 1\ndb-max-rows = 2\n", "db-max-rows"),
            ("db-max-rows = 2\nmax_rows = 1\n", "db-max-rows"),
            ("db-max-rows = 2\ndb_max_rows = 1\n", "db_max_rows"),
        ):
            reported = faults(f"[stages.dev.databases.main]\n{lines}")
            self.assertEqual(reported, [f"{name}.{second} {reason}"])
        self.assertEqual(faults("[server]\nserver-timing = 1\n"), ["server.server-timing is not a setting"])

    def test_secrets_print_as_stars(self) -> None:
        settings = loaded(
            "[database]\ndsn = 'postgres://u:hunter2@h/db'\n[smtp]\npassword = 'hunter3'\n"
            '[stages.dev.databases.main]\njwks = \'{"kty": "oct", "k": "hunter4"}\'\n'
        )
        self.assertNotIn("hunter", repr(settings))
        self.assertIn("***", repr(settings))
        assert settings.database.dsn is not None
        self.assertIn("hunter2", settings.database.dsn.reveal())


class Sources(TestCase):
    def loaded(self, toml: str = "", environ: dict[str, str] | None = None) -> Settings:
        return loaded(toml, {f"PROJECT_SERVICE__{name}": value for name, value in (environ or {}).items()})

    def test_servers_that_are_not_embedded_are_configured(self) -> None:
        self.assertEqual(loaded(NEEDED, embedded=False).auth.jwt_keys_file, "/keys.json")

    def test_a_database_needs_no_settings(self) -> None:
        self.assertEqual(list(self.loaded("[stages.dev.databases.main]\n").stages["dev"].databases), ["main"])
        whole = {"STAGES": '{"live": {"databases": {"main": {}, "other": {"max_rows": 7}}}}'}
        databases = self.loaded("[server]\n", whole).stages["live"].databases
        self.assertEqual({name: one.max_rows for name, one in databases.items()}, {"main": 1000, "other": 7})

    def test_a_misspelled_databases_table_is_a_fault(self) -> None:
        for name in ("datbases.main", "main.databases"):
            (fault,) = faults(f"[stages.dev.{name}]\nmax_rows = 7\n")
            self.assertIn(f"stages.dev.{name}.max_rows is not a setting; did you mean", fault)

    def test_a_setting_whose_value_is_a_table(self) -> None:
        toml = "[stages.dev.databases.main.app_settings]\n'a.b' = 'c'\nd = 'e'\n"
        main = self.loaded(toml).stages["dev"].databases["main"]
        self.assertEqual(main.app_settings, {"a.b": "c", "d": "e"})

    def test_a_section_may_be_one_json_object_in_the_environment(self) -> None:
        given = {"DATABASE": '{"pool_size": 3, "acquire_timeout_seconds": 2}', "DATABASE__POOL_SIZE": "4"}
        database = self.loaded(environ=given).database
        self.assertEqual((database.pool_size, database.acquire_timeout_seconds), (4, 2.0))

    def test_values_in_place_of_tables_are_faults(self) -> None:
        for toml, environ, message in (
            ("server = 1", {}, "c.toml: server must be a table"),
            ("[[server]]\nworkers = 2", {}, "c.toml: server must be a table"),
            ("[stages.dev]", {}, "c.toml: stages.dev names no database"),
            ("[stages.dev.databases]\nmain = 1", {}, "c.toml: stages.dev.databases.main must be a table"),
            ("[stages.dev]\ndatabase = 1", {}, "c.toml: stages.dev.database is not a setting"),
            ("", {"SERVER": "{"}, "environment: server must be a table (as JSON in the environment)"),
            ("", {"STAGES": "[]"}, "environment: stages must be a table (as JSON in the environment)"),
        ):
            with self.assertRaises(BadSettings, msg=message) as caught:
                self.loaded(toml, environ)
            self.assertEqual(str(caught.exception).rpartition("/")[2], message)

    def test_stage_and_database_names_that_no_path_can_have_are_refused(self) -> None:
        for name in ("stages.''.databases.main", "stages.dev.databases.'a/b'"):
            (fault,) = faults(f"[{name}]\nmax_rows = 7\n")
            self.assertTrue(
                fault.endswith(" has a name that no path can have: empty, or with a slash"), fault
            )

    def test_a_json_object_for_a_text_setting_is_text(self) -> None:
        self.assertEqual(self.loaded(environ={"AUTH__ISSUER": '{"a": 1}'}).auth.issuer, '{"a": 1}')

    def test_a_missing_setting_is_reported_where_it_was_left_empty(self) -> None:
        with self.assertRaises(BadSettings) as caught:
            Source().read({"PROJECT_SERVICE__DATABASE__DSN": ""})
        origins = [(one.where, one.name) for one in caught.exception.faults]
        self.assertEqual(
            origins[:2], [("environment", "database.dsn"), ("configuration", "store.endpoint_url")]
        )
        with self.assertRaises(BadSettings) as caught:
            loaded(embedded=False)
        self.assertEqual({Path(one.where).name for one in caught.exception.faults}, {"c.toml"})


class ProvidersAndHooks(TestCase):
    """Sections within [auth], some with names that the operator chooses."""

    GOOGLE = "[auth.providers.google]\nclient_id = 'g'\n"

    def loaded(self, toml: str, environ: dict[str, str] | None = None) -> Auth:
        return loaded(toml, environ).auth

    def test_a_provider_that_is_known_needs_its_client_id_only(self) -> None:
        auth = self.loaded(self.GOOGLE)
        self.assertEqual({name: one.client_ids for name, one in auth.providers.items()}, {"google": ("g",)})
        self.assertEqual(auth.hooks, Hooks())

    def test_a_provider_may_have_several_client_ids(self) -> None:
        for written in ("'a,b'", "'a, b'", "['a', 'b']"):
            auth = self.loaded(f"[auth.providers.google]\nclient_id = {written}\n")
            self.assertEqual(auth.providers["google"].client_ids, ("a", "b"))

    def test_a_provider_without_client_id_is_a_fault(self) -> None:
        for toml in ("[auth.providers.google]\n", "[auth.providers.google]\nscopes = []\n"):
            self.assertEqual(faults(toml), ["auth.providers.google.client_id is missing"])

    def test_a_provider_that_is_not_known_needs_its_issuer(self) -> None:
        for name in ("email", "phone"):
            toml = f"[auth.providers.{name}]\nclient_id = 'k'\nissuer = 'https://id.example.com'\n"
            self.assertEqual(faults(toml), [f"auth.providers.{name} has the name of another way to sign in"])
        (fault,) = faults("[auth.providers.keycloak]\nclient_id = 'k'\n")
        self.assertIn("auth.providers.keycloak.issuer is missing (only apple, azure,", fault)
        toml = "[auth.providers.keycloak]\nclient_id = 'k'\nissuer = 'https://id.example.com/realms/a/'\n"
        self.assertEqual(self.loaded(toml).providers["keycloak"].issuer, "https://id.example.com/realms/a/")

    def test_an_issuer_by_http_needs_allow_private_hosts(self) -> None:
        toml = self.GOOGLE + "issuer = 'http://127.0.0.1:9/'\n"
        (fault,) = faults(toml)
        self.assertIn("auth.providers.google.issuer must begin with https://", fault)
        self.loaded(f"[auth]\nallow_private_hosts = true\n{toml}")

    def test_the_environment_has_each_setting_of_a_provider_and_whole_tables(self) -> None:
        environ = {"PROJECT_SERVICE__AUTH__PROVIDERS__GOOGLE__CLIENT_SECRET": "hush"}
        provider = self.loaded(self.GOOGLE, environ).providers["google"]
        self.assertEqual((provider.client_ids, provider.secret), (("g",), Secret("hush")))
        for name, value in (
            ("AUTH__PROVIDERS__X", '{"client_id": "x"}'),
            ("AUTH__PROVIDERS", '{"x": {"client_id": "x"}}'),
            ("AUTH", '{"providers": {"x": {"client_id": "x"}}}'),
        ):
            self.assertEqual(
                list(self.loaded("", {f"PROJECT_SERVICE__{name}": value}).providers), ["x"], name
            )
        hooks = self.loaded("", {"PROJECT_SERVICE__AUTH__HOOKS__SEND_EMAIL": "sql:public.mail"}).hooks
        self.assertEqual(hooks.send_email, "sql:public.mail")

    def test_a_secret_is_in_the_settings_or_in_a_file_and_never_shown(self) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "secret"
            path.write_text("hush\n")
            toml = f"{self.GOOGLE}client_secret_file = '{path}'\n"
            provider = self.loaded(toml).providers["google"]
            self.assertEqual(provider.secret, Secret("hush"))
            self.assertNotIn("hush", repr(provider))
            (fault,) = faults(f"{toml}client_secret = 'hush2'\n")
            self.assertEqual(fault, "auth.providers.google.client_secret is named besides client_secret_file")
            path.write_text("\n")
            self.assertIn("client_secret_file names a file that is empty", faults(toml)[0])
            path.unlink()
            self.assertIn("client_secret_file names a file that cannot be read", faults(toml)[0])

    def test_what_signs_apples_secret_is_named_as_a_whole(self) -> None:
        (fault,) = faults("[auth.providers.apple]\nclient_id = 'a'\nteam_id = 't'\n")
        self.assertEqual(
            fault, "auth.providers.apple.private_key_file needs team_id and key_id, and they need it"
        )

    def test_misspelt_names_are_told_with_what_is_meant(self) -> None:
        for toml, fault in (
            (self.GOOGLE + "clientid = 'x'\n", "did you mean auth.providers.google.client_id?"),
            ("[auth.hooks]\nsend_mail = 'sql:a.b'\n", "did you mean auth.hooks.send_email?"),
            ("[auth.provider.google]\nclient_id = 'x'\n", "did you mean auth.providers.NAME.client_id?"),
            ("[auth]\nsend_email = 'sql:a.b'\n", "did you mean auth.hooks.send_email?"),
            ("[auth.providers]\ngoogle = 1\n", "auth.providers.google must be a table"),
            ("[auth]\nproviders = 1\n", "auth.providers must be a table"),
            ("[auth]\nhooks = 1\n", "auth.hooks must be a table"),
            ("[auth.providers.Google]\nclient_id = 'x'\n", "has a name other than of a-z, 0-9 and _"),
        ):
            self.assertTrue(any(fault in one for one in faults(toml)), faults(toml))

    def test_passkeys_need_to_know_their_host_and_origins(self) -> None:
        on = "[auth]\npasskeys = true\n"
        missing = "is missing (or name auth.site_url, whose it is then)"
        self.assertEqual(faults(on), [f"auth.passkey_rp_id {missing}", f"auth.passkey_origins {missing}"])
        self.loaded(f"{on}site_url = 'https://app.example.com/'\n")
        auth = self.loaded(
            f"{on}passkey_rp_id = 'example.com'\npasskey_origins = ['https://www.example.com']\n"
        )
        self.assertEqual(auth.passkey_origins, ("https://www.example.com",))
        for setting in (
            *("passkey_rp_id = 'https://example.com'", "passkey_rp_id = 'example.com:443'"),
            *("passkey_rp_id = 'Example.com'", "passkey_rp_id = 'a@b'", "passkey_rp_id = '[x'"),
            *("passkey_origins = ['*']", "passkey_origins = ['https://example.com/']"),
        ):
            self.assertEqual(len(faults(f"[auth]\n{setting}\n")), 1, setting)

    def test_a_hook_is_a_function_or_an_address(self) -> None:
        secret = "v1,whsec_" + "A" * 32
        for good in ("sql:public.may_sign_up", "https://hooks.example.com/a?b=c"):
            toml = f"[auth.hooks]\nsend_email = '{good}'\nsend_email_secret = '{secret}'\n"
            self.assertEqual(self.loaded(toml).hooks.send_email, good)
        for bad in (
            "sql:f",
            "sql:Public.f",
            "sql:a.b.c",
            "sql:a.b(",
            "sql:a.b;drop",
            "ftp://a/",
            "x",
            "https://",
        ):
            (fault,) = faults(f"[auth.hooks]\nsend_email = '{bad}'\n")
            self.assertIn("auth.hooks.send_email must be sql:schema.function", fault, bad)
        (fault,) = faults(f"[auth.hooks]\nsend_email = 'http://a/'\nsend_email_secret = '{secret}'\n")
        self.assertIn("auth.hooks.send_email must begin with https://", fault)

    def test_a_hook_at_an_address_needs_its_secret(self) -> None:
        (fault,) = faults("[auth.hooks]\nsend_email = 'https://hooks.example.com/'\n")
        self.assertIn("auth.hooks.send_email_secret is missing", fault)
        self.loaded("[auth.hooks]\nsend_email = 'sql:public.mail'\n")

    def test_the_secret_of_a_hook_has_the_form_of_standard_webhooks(self) -> None:
        key = b64encode(b"k" * 24).decode()
        for good in (f"v1,whsec_{key}", f"v1,whsec_{key}|v1,whsec_{b64encode(b'm' * 64).decode()}"):
            self.loaded(f"[auth.hooks]\nsend_email_secret = '{good}'\n")
        for bad in (
            key,
            f"whsec_{key}",
            "v1,whsec_",
            "v1,whsec_AAAA",
            f"v1,whsec_{key}|",
            "v1,whsec_" + "A" * 89,
        ):
            (fault,) = faults(f"[auth.hooks]\nsend_email_secret = '{bad}'\n")
            self.assertIn("must be v1,whsec_ and 24 to 64 bytes in base64", fault, bad)

    def test_a_reload_takes_providers_and_hooks_over(self) -> None:
        old, new = Settings(), loaded(f"{self.GOOGLE}[auth.hooks]\nsend_email = 'sql:a.b'\n")
        current = old.changed_without_restart(new)
        self.assertEqual(
            (list(current.auth.providers), current.auth.hooks.send_email), (["google"], "sql:a.b")
        )
        self.assertEqual([one for one in old.waiting_for_restart(new) if one.startswith("auth.p")], [])


class Console(TestCase):
    def test_an_embedded_database_allows_sql_and_finds_the_folder_of_migrations(self) -> None:
        folder = Path(self.enterContext(TemporaryDirectory())).resolve()
        self.enterContext(chdir(folder))
        embedded = with_data_dir_defaults(Settings(), folder).server
        self.assertEqual((embedded.console_sql, embedded.migrations_dir), (True, None))
        Path("migrations").mkdir()
        found = with_data_dir_defaults(Settings(), folder).server.migrations_dir
        self.assertEqual(found, str(folder / "migrations"))
        named = with_data_dir_defaults(Settings().with_database("dbname=x"), folder).server
        self.assertEqual((named.console_sql, named.migrations_dir), (None, None))
        asked = Settings(server=Server(console_sql=False, migrations_dir="elsewhere"))
        kept = with_data_dir_defaults(asked, folder).server
        self.assertEqual((kept.console_sql, kept.migrations_dir), (False, "elsewhere"))

    def test_a_database_beside_the_embedded_one_takes_no_sql_unless_that_is_asked_for(self) -> None:
        folder = Path(self.enterContext(TemporaryDirectory())).resolve()
        of_stages = {"dev": StageDatabase(), "live": StageDatabase(dsn=Secret("dbname=x"))}
        beside = Settings(stages={"dev": Stage(of_stages)})
        server = with_data_dir_defaults(beside, folder).server
        self.assertEqual((server.console_sql, server.console_log), (False, True))
        asked = evolve(beside, server=Server(console_sql=True))
        self.assertIs(with_data_dir_defaults(asked, folder).server.console_sql, True)
