"""The kinds of settings: values that would only fail later are refused at the start, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.settings.model import Settings, Store
from project_service.settings.reading import BadSettings, Source
from tests.temporary import temporary_directory
from tests.unit.settings.loading import faults, loaded

MAIN = "stages.dev.databases.main"
FILE = """
[other]
aws_access_key_id = no
[default]
aws_access_key_id = AKID
aws_secret_access_key = xyz%(zyx)s/+==
region = eu-west-1
"""


class Values(TestCase):
    def loaded(self, name: str, value: str) -> Settings:
        section, _, key = name.rpartition(".")
        return loaded(f"[{section}]\n{key} = {value}\n")

    def refused(self, name: str, value: str) -> str:
        """The reason."""
        section, _, key = name.rpartition(".")
        [fault] = faults(f"[{section}]\n{key} = {value}\n")
        self.assertTrue(fault.startswith(f"{name} "), fault)
        return fault.removeprefix(f"{name} ")

    def test_numbers_are_limited_to_what_dates_and_postgresql_can_hold(self) -> None:
        for name in (
            "auth.access_token_seconds",
            "auth.refresh_token_seconds",
            "auth.refresh_reuse_seconds",
            "auth.login_failures_max",
            "auth.login_failures_max_per_address",
            "auth.login_failures_window_seconds",
            "auth.signups_max_per_address",
            "storage.public_max_age_seconds",
            "storage.keep_removed_seconds",
        ):
            self.assertIn("to 2147483647", self.refused(name, "2147483648"))
            self.loaded(name, "2147483647")
        self.assertEqual(self.refused("auth.audit_days", "36501"), "must be from 1 to 36500")
        self.assertIn("to 9223372036854775807", self.refused(f"{MAIN}.max_rows", "9223372036854775808"))
        self.loaded(f"{MAIN}.max_rows", "9223372036854775807")

    def test_the_name_said_to_the_mail_server_is_that_of_a_host_or_an_address(self) -> None:
        long = ".".join(["x" * 63] * 4)
        for name in (
            "www.example.com",
            "localhost",
            "xn--bcher-kva.test",
            "[192.0.2.1]",
            "[IPv6:2001:db8::1]",
            long,
        ):
            self.assertEqual(self.loaded("smtp.helo", f'"{name}"').smtp.helo, name)
        for name in (
            "bücher.test",
            "a b.test",
            "a.test\\r\\nMAIL FROM:<a@b.test>",
            "a_b.test",
            "-a.test",
            "a..test",
            "a.test.",
            "x" * 64,
            f"{long}.x",
            "192.0.2.1]",
            "192.0.2.1",
            "[192.0.2]",
            "[2001:db8::1]",
            "[IPv6:192.0.2.1]",
            "https://a.test",
            "[]",
        ):
            self.assertIn("must be a host's name", self.refused("smtp.helo", f'"{name}"'))

    def test_the_pages_to_which_forms_lead_have_a_host_and_a_path(self) -> None:
        name = "storage.redirect_urls"
        for url in ("https://a.example/", "http://localhost:3000/b", "https://a.example/b/?c=d"):
            self.assertEqual(self.loaded(name, f'["{url}"]').storage.redirect_urls, (url,))
        for url in (
            "https://a.example",
            "/b",
            "a.example/b",
            "https:///b",
            "https://a@b.example/",
            "javascript:/b/",
        ):
            self.refused(name, f'["{url}"]')
        for url in ("https://a.example/ä", "https://ä.example/"):
            self.assertIn("must be percent-encoded", self.refused(name, f'["{url}"]'))

    def test_no_size_of_pictures_is_above_the_greatest(self) -> None:
        """Each request for it would be refused."""
        self.loaded("images.sizes", "[100, 2500]")
        self.assertEqual(
            self.refused("images.sizes", "[2501, 100]"), "has a size above images.max_size, which is 2500"
        )

    def test_sizes_may_have_a_unit_of_1000_or_of_1024(self) -> None:
        for name in ("storage.max_object_bytes", f"{MAIN}.stream_threshold_bytes"):
            for text, number in (
                ("10MB", 10_000_000), ("64KiB", 65536), ("1GiB", 1024**3), ("2kB", 2000), ("1.5 gb", 1_500_000_000),
                ("1TiB", 1024**4), ("3TB", 3 * 1000**4), ("7b", 7), ("1048576", 1048576), (" 5 MiB ", 5 * 1024**2),
            ):  # fmt: skip
                section, _, key = name.rpartition(".")
                settings = self.loaded(name, f'"{text}"')
                of = (
                    getattr(settings, section)
                    if section != MAIN
                    else settings.stages["dev"].databases["main"]
                )
                self.assertEqual(getattr(of, key), number, (name, text))
            for text in (
                "10M",
                "10 bytes",
                "MB",
                "1.0005kB1",
                "0.5B",
                "-1MB",
                "1e3MB",
                "ten",
                "",
                "9" * 30 + "MB",
            ):
                reason = self.refused(name, f'"{text}"')
                self.assertIn("such as 1048576, 10MB (of 1000 * 1000) or 1MiB (of 1024 * 1024)", reason, text)
        self.assertIn("at least 1024", self.refused("server.max_json_bytes", '"1kB"'))
        self.assertIn("from 5242880", self.refused("storage.part_bytes", '"5MB"'))
        self.assertIn("such as", self.refused("storage.part_bytes", "true"))

    def test_the_role_none_is_refused(self) -> None:
        """A reader takes "none" for nobody, but PostgreSQL for the role that logged in, often the owner of the
        tables."""
        for name in ("anon_role", "authenticated_role", "service_role"):
            self.assertIn('must not be "none"', self.refused(f"{MAIN}.{name}", '"none"'))
            for fine in ("", "None", "nobody"):
                self.loaded(f"{MAIN}.{name}", f'"{fine}"')

    def test_store_settings_that_go_into_headers_and_paths_are_checked(self) -> None:
        for name in ("store.region", "store.access_key_id"):
            for value in ("a b", "a\\n", "é"):
                self.assertEqual(self.refused(name, f'"{value}"'), "must be printable ASCII without blanks")
        self.assertTrue(self.refused("store.region", '""'))
        for value in ("", "ab", "a b", "a/b", "é" * 3, ".ab", "a" * 256):
            self.assertIn("must be the name of a bucket", self.refused("store.bucket", f'"{value}"'))
        for value in ("tenant:files", "abc", "Old_Bucket", "a.b-c", "a" * 63):
            self.assertEqual(self.loaded("store.bucket", f'"{value}"').store.bucket, value)

    def test_virtual_hosts_need_a_bucket_name_that_can_be_part_of_a_host(self) -> None:
        """A colon would begin a port, and an IP address has no subdomains."""
        for bucket, host, fine in (
            ("files", "store.test:9000", True), ("a.b_c-d", "store.test", True), ("Old", "localhost", True),
            ("tenant:files", "store.test", False), ("a..b", "store.test", False), ("abc.", "store.test", False),
            ("files", "127.0.0.1:9000", False), ("files", "[::1]:9000", False),
        ):  # fmt: skip
            for style in ("path", "virtual"):
                toml = (
                    f'[store]\nendpoint_url = "http://{host}"\nbucket = "{bucket}"\naddressing_style = "{style}"\n'
                    'access_key_id = "a"\nsecret_access_key = "b"\n'
                )
                if fine or style == "path":
                    self.assertEqual(loaded(toml).store.addressing_style, style)
                else:
                    [fault] = faults(toml)
                    self.assertTrue(fault.startswith("store.addressing_style "), (bucket, host))

    def test_files_of_authorities_must_hold_a_certificate(self) -> None:
        folder = temporary_directory(self)
        missing, empty, good = folder / "missing", folder / "empty", folder / "good"
        empty.write_text("")
        good.write_text("-----BEGIN CERTIFICATE-----\n")
        for name in ("store.ca_file", "smtp.ca_file", "tracing.ca_file"):
            self.assertEqual(
                self.refused(name, f"'{missing}'"),
                "names a file that cannot be read: No such file or directory",
            )
            self.assertIn("holds no certificate", self.refused(name, f"'{empty}'"))
            self.loaded(name, f"'{good}'")
        self.assertEqual(self.loaded("store.ca_file", f"'{good}'").store.ca_file, str(good))

    def test_shares_are_from_0_to_1(self) -> None:
        for value, expected in (("0", 0.0), ("1", 1.0), ("0.25", 0.25), ("'0.5'", 0.5)):
            self.assertEqual(self.loaded("tracing.sample_ratio", value).tracing.sample_ratio, expected)
        for value in ("-0.1", "1.1", "nan", "'x'", "true", "'nan'"):
            self.assertEqual(self.refused("tracing.sample_ratio", value), "must be a number from 0 to 1")
        self.assertIsNone(loaded().tracing.parent_sample_ratio)

    def test_a_file_of_headers_has_one_in_each_line_and_is_not_repeated(self) -> None:
        file = temporary_directory(self) / "headers"
        for fine in ("authorization: Bearer zqj", "a:b\nx-tenant: 7\n"):
            file.write_text(fine)
            read = self.loaded("tracing.headers_file", f"'{file}'").tracing.headers_file
            assert read is not None
            self.assertEqual(read.reveal(), fine.rstrip())
            self.assertNotIn("zqj", repr(read))
        for bad in ("zqj", "a b: zqj", "a: zqj\n\nb: c", "ä: zqj", "a: zqjä", ": zqj", "a:"):
            file.write_text(bad)
            reason = self.refused("tracing.headers_file", f"'{file}'")
            self.assertEqual(reason, "names a file with a line other than name: value, in printable ASCII")

    def test_smtp_sender_must_be_an_email_address(self) -> None:
        for value in ("not a url", " ", "a@", "a@b.test\\nBcc: c@d.test"):
            self.assertIn("must be an e-mail address", self.refused("smtp.sender", f'"{value}"'))
        for value in ("no-reply@a.test", "Example <no-reply@a.test>"):
            self.assertEqual(self.loaded("smtp.sender", f'"{value}"').smtp.sender, value)

    def test_smtp_sender_must_be_ascii_before_the_at_sign(self) -> None:
        """A domain has a form in ASCII, and a display name can be encoded, but the local part cannot."""
        for value in ("söder@a.test", '"Söder" <söder@a.test>'):
            self.assertEqual("must be ASCII before the @", self.refused("smtp.sender", f"'{value}'"))
        for value in ("no-reply@bücher.test", '"Söder & Co." <no-reply@bücher.test>'):
            self.assertEqual(self.loaded("smtp.sender", f"'{value}'").smtp.sender, value)
        # A display name that needs quotes is refused with advice.
        self.assertIn('in quotes "', self.refused("smtp.sender", "'Söder <a@a.test>'"))

    def test_role_claim_must_be_a_path(self) -> None:
        name = f"{MAIN}.role_claim"
        self.assertIn("is not a path to a claim", self.refused(name, '"not a path"'))
        self.assertIn("regular expression", self.refused(name, "'$.a[?search(@, \"(\")]'"))
        for value in ("", "$"):
            self.assertIn("is not a path to a claim", self.refused(name, f'"{value}"'))
        main = self.loaded(name, '".app.roles[0]"').stages["dev"].databases["main"]
        self.assertEqual(main.role_claim, ".app.roles[0]")

    def test_workers_may_be_auto(self) -> None:
        self.assertEqual(self.refused("server.workers", '"x"'), 'must be a whole number, or "auto"')
        self.assertEqual(self.refused("server.workers", "0"), 'must be from 1 to 256, or "auto"')

    def test_an_unreadable_file_is_the_only_fault(self) -> None:
        path = temporary_directory(self) / "c.toml"
        for text in (None, "[server\n"):
            if text is not None:
                path.write_text(text)
            with self.assertRaises(BadSettings) as caught:
                Source(path).read({})
            self.assertEqual([fault.name for fault in caught.exception.faults], [""])

    def test_numbers_too_long_and_tables_too_deep_for_python_are_faults(self) -> None:
        path = temporary_directory(self) / "c.toml"
        for text in (f"[server]\nworkers = {'9' * 5000}", "a = " + "[" * 5000):
            path.write_text(text)
            with self.assertRaises(BadSettings) as caught:
                Source(path).read({})
            self.assertEqual(
                str(caught.exception), f"{path}: has a number that is too long, or is nested too deeply"
            )
        with self.assertRaises(BadSettings) as caught:
            Source(data_dir=Path("/data")).read({"PROJECT_SERVICE__DATABASE__POOL_SIZE": "9" * 5000})
        self.assertEqual(str(caught.exception), "environment: database.pool_size must be from 1 to 10000")

    def test_a_byte_order_mark_is_skipped(self) -> None:
        path = temporary_directory(self) / "c.toml"
        path.write_bytes(b"\xef\xbb\xbf[server]\r\nworkers = 2\r\n")
        self.assertEqual(Source(path, data_dir=Path("/data")).read({}).server.workers, 2)

    def test_an_environment_variable_that_is_not_utf_8_is_a_fault(self) -> None:
        with self.assertRaises(BadSettings) as caught:
            Source(data_dir=Path("/data")).read(
                {"PROJECT_SERVICE__DATABASE__DSN": "postgresql://u:caf\udce9@a/x"}
            )
        self.assertEqual(str(caught.exception), "environment: database.dsn must be UTF-8")

    def test_urls_have_no_white_space(self) -> None:
        for name in ("server.public_url", "auth.recover_url", "store.endpoint_url"):
            for value in (r"http://a/\n", r"http://a\t.test", "http://a b/", "http://[::1"):
                self.assertEqual(self.refused(name, f'"{value}"'), "must be an http or https address")
        self.assertTrue(self.refused("server.cors_origins", '["http://[::1"]').startswith("must be origins"))

    def test_pages_of_links_may_have_queries_and_fragments(self) -> None:
        for name in ("auth.recover_url", "auth.verify_url"):
            for value in ("https://x.test/a/?b=c", "https://x.test/#/reset?a=b", "https://x.test/?c=token"):
                self.assertEqual(
                    getattr(self.loaded(name, f'"{value}"').auth, name.removeprefix("auth.")), value
                )
            for value in ("https://x.test/?token=", "https://x.test/#/a?b=c&token=d"):
                why = "must not have the parameter token, which e-mails add"
                self.assertEqual(self.refused(name, f'"{value}"'), why)
            for value in ("https://ada@x.test/", "https://:secret@x.test/"):
                self.assertEqual(self.refused(name, f'"{value}"'), "must not hold a user name or password")
        self.assertIn("query or fragment", self.refused("server.public_url", '"https://x.test/?a=b"'))

    def test_connection_strings_that_libpq_would_refuse_later_are_faults(self) -> None:
        for dsn, why in (
            ("postgresql://u@a.test:bad/x", "has a port that is not from 1 to 65535, or a user name"),
            ("host=a.test port=0", "has a port that is not from 1 to 65535"),
            ("host=a,b port=5432,65536", "has a port that is not from 1 to 65535"),
            ("postgresql://u@a.test/x?sslmode=on", "has an sslmode that is none of allow, disable, "),
        ):
            for name in ("database.dsn", f"{MAIN}.dsn"):
                self.assertTrue(self.refused(name, f"'{dsn}'").startswith(why), dsn)
        for dsn in ("host=a,b port=5432,", "host=a,b port=65535", "postgresql://a/x?sslmode=verify-full", ""):
            self.loaded("database.dsn", f"'{dsn}'")


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
        for name, minimum, maximum, step in (
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
            self.assertEqual(
                (self.read(name, minimum), self.read(name, str(minimum))), (minimum, minimum), name
            )
            self.assertIsNone(self.read(name, minimum - step), name)
            if maximum is None:
                self.assertEqual(self.read(name, 2**62), 2**62, name)
            else:
                self.assertEqual(
                    (self.read(name, maximum), self.read(name, str(maximum))), (maximum, maximum), name
                )
                self.assertIsNone(self.read(name, maximum + step), name)

    def test_cors_origins_have_a_scheme_and_a_host_and_nothing_else(self) -> None:
        for good in ("*", "https://a.test", "http://[::1]:80", "capacitor://localhost"):
            self.assertEqual(self.read("server.cors_origins", [good]), (good,))
        for bad in ("", "https://", "a.test", "//a.test", "https://a.test/", "https://a.test?x", "null"):
            self.assertIsNone(self.read("server.cors_origins", [bad]), bad)


class Databases(TestCase):
    def test_a_short_jwt_secret_is_refused(self) -> None:
        where = "[stages.dev.databases.main]\n"
        name = "stages.dev.databases.main.jwt_secret"
        short = "must have at least 32 characters"
        self.assertEqual(faults(f'{where}jwt_secret = "{"x" * 31}"'), [f"{name} {short}"])
        self.assertEqual(faults(f'{where}"jwt-secret" = "short"'), [f"{name} {short}"])
        database = loaded(f'{where}jwt_secret = "{"x" * 32}"').stages["dev"].databases["main"]
        assert database.jwt_secret is not None

    def test_schemas_of_postgresql_itself_cannot_be_exposed(self) -> None:
        for name in ("pg_catalog", "information_schema"):
            reported = faults(f'[stages.dev.databases.main]\nschemas = ["api", "{name}"]\n')
            self.assertEqual(
                reported,
                [
                    f"stages.dev.databases.main.schemas must not name {name}: "
                    "PostgreSQL's own schemas are never exposed"
                ],
            )

    def test_a_value_may_be_read_from_a_file(self) -> None:
        file = temporary_directory(self) / "secret"
        file.write_text("s" * 32 + "\n")
        where = "stages.dev.databases.main"
        toml = f'[{where}]\njwt_secret = "@{file}"\n"db-uri" = "@{file}.uri"\n'
        missing = "names a file by its @ that cannot be read: No such file or directory"
        self.assertEqual(faults(toml), [f"{where}.dsn {missing}"])
        Path(f"{file}.uri").write_text("postgresql:///here")
        database = loaded(toml).stages["dev"].databases["main"]
        assert database.jwt_secret is not None and database.dsn is not None
        self.assertEqual(database.jwt_secret.reveal(), "s" * 32)
        self.assertEqual(database.dsn.reveal(), "postgresql:///here")
        file.write_bytes(b"\xff" * 40)
        self.assertIn("not UTF-8", faults(toml)[0])


class Readers(TestCase):
    """Which standbys a database of the table API has."""

    OWN = "[stages.dev.databases.main]\n"

    def readers(self, toml: str, environ: dict[str, str] | None = None) -> tuple[list[str], float]:
        settings = loaded(toml, environ)
        dsns, staleness = settings.readers_of(settings.stages["dev"].databases["main"])
        return [dsn.reveal() for dsn in dsns], staleness

    def test_those_of_the_system_database_are_its_own(self) -> None:
        system = "[database]\nread_dsn = ['host=a,b']\nmax_staleness_seconds = 2\n"
        self.assertEqual(self.readers(system + self.OWN), (["host=a,b"], 2.0))
        self.assertEqual(self.readers(f"{system}{self.OWN}max_staleness_seconds = 9"), (["host=a,b"], 9.0))
        self.assertEqual(self.readers(f"{system}{self.OWN}read_dsn = []"), ([], 2.0))
        self.assertEqual(self.readers(f"{system}{self.OWN}read_dsn = 'host=c'"), (["host=c"], 2.0))

    def test_another_database_has_none_of_them(self) -> None:
        system = "[database]\nread_dsn = 'host=a'\n"
        self.assertEqual(self.readers(f"{system}{self.OWN}dsn = 'host=x'"), ([], 5.0))

    def test_the_environment_has_one_or_a_list(self) -> None:
        name = "PROJECT_SERVICE__DATABASE__READ_DSN"
        self.assertEqual(self.readers(self.OWN + "pool_size = 1", {name: "host=a"})[0], ["host=a"])
        listed = '["host=a", "postgresql://u:p@b/d"]'
        self.assertEqual(
            self.readers(self.OWN + "pool_size = 1", {name: listed})[0], ["host=a", "postgresql://u:p@b/d"]
        )

    def test_they_are_secrets_and_must_be_for_reading(self) -> None:
        text = "[database]\nread_dsn = ['postgresql://u:pa55@h/d?target_session_attrs=read-write']"
        (fault,) = faults(text)
        self.assertRegex(fault, "database.read_dsn asks for a server that accepts writes")
        self.assertNotIn("pa55", fault)
        self.assertNotIn("pa55", repr(loaded("[database]\nread_dsn = 'postgresql://u:pa55@h/d'")))


class StoreKeysFile(TestCase):
    def setUp(self) -> None:
        self.file = temporary_directory(self) / "credentials"
        self.toml = f"[store]\nendpoint_url = 'http://s3.test'\ncredentials_file = '{self.file}'\n"

    def store(self, content: str) -> Store:
        self.file.write_text(content)
        return loaded(self.toml).store

    def faults(self, content: str, environ: dict[str, str] | None = None) -> list[str]:
        self.file.write_text(content)
        reported = faults(self.toml, environ)
        for secret in ("zyx", "hidden"):
            self.assertNotIn(secret, str(reported))
        return reported

    def test_the_default_section_is_the_key_pair(self) -> None:
        store = self.store(FILE)
        assert store.secret_access_key is not None
        self.assertEqual(store.access_key_id, "AKID")
        self.assertEqual(store.secret_access_key.reveal(), "xyz%(zyx)s/+==")
        self.assertEqual(store.session_token, None)
        token = self.store(f"{FILE}aws_session_token = hidden\n").session_token
        assert token is not None
        self.assertEqual(token.reveal(), "hidden")
        for secret in ("zyx", "hidden"):
            self.assertNotIn(secret, repr(self.store(f"{FILE}aws_session_token = hidden\n")))

    def test_an_unusable_file_is_refused_without_repeating_it(self) -> None:
        cases = {
            "": "without a section [default]",
            "hidden": "is not in the form of AWS's credentials",
            f"{FILE}hidden\n": "is not in the form of AWS's credentials",
            f"{FILE}[default]\naws_session_token = hidden\n": "is not in the form of AWS's credentials",
            "[default]\naws_access_key_id = hidden\n": "aws_secret_access_key is missing or not printable",
            "[default]\naws_secret_access_key = hidden\n": "aws_access_key_id is missing or not printable",
            f"{FILE}aws_session_token = hid den\n": "aws_session_token is missing or not printable",
        }
        for content, why in cases.items():
            reported = self.faults(content)
            self.assertIn(
                f"store.credentials_file names a file{' in which' if 'aws_' in why else ''}", reported[0]
            )
            self.assertIn(why, reported[0])
        self.file.unlink()
        self.assertIn("cannot be read: No such file", faults(self.toml)[0])

    def test_keys_beside_a_credentials_file_are_refused(self) -> None:
        environ = {"PROJECT_SERVICE__STORE__SECRET_ACCESS_KEY": "hidden"}
        self.assertEqual(
            self.faults(FILE, environ),
            ["store.secret_access_key is named besides store.credentials_file, which has its own"],
        )

    def test_a_session_token_must_fit_in_a_header(self) -> None:
        (fault,) = faults("[store]\nsession_token = 'two words'\n")
        self.assertIn("session_token must be printable ASCII without blanks", fault)
