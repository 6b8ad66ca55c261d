"""Settings that would only fail with each request are refused at the start, by name."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import TestCase

from project_service.settings.model import Settings
from project_service.settings.reading import BadSettings, Source
from tests.temporary import temporary_directory

MAIN = "stages.dev.databases.main"


class Values(TestCase):
    def loaded(self, name: str, value: str) -> Settings:
        section, _, key = name.rpartition(".")
        path = temporary_directory(self) / "c.toml"
        path.write_text(f"[{section}]\n{key} = {value}\n")
        return Source(path, data_dir=Path("/data")).read({})

    def refused(self, name: str, value: str) -> str:
        with self.assertRaises(BadSettings, msg=(name, value)) as caught:
            self.loaded(name, value)
        [fault] = caught.exception.faults
        self.assertEqual(fault.name, name)
        reason: str = fault.reason
        return reason

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
                path = temporary_directory(self) / "c.toml"
                path.write_text(
                    f'[store]\nendpoint_url = "http://{host}"\nbucket = "{bucket}"\naddressing_style = "{style}"\n'
                    'access_key_id = "a"\nsecret_access_key = "b"\n'
                )
                if fine or style == "path":
                    self.assertEqual(
                        Source(path, data_dir=Path("/data")).read({}).store.addressing_style, style
                    )
                    continue
                with self.assertRaises(BadSettings) as caught:
                    Source(path, data_dir=Path("/data")).read({})
                [fault] = caught.exception.faults
                self.assertEqual(fault.name, "store.addressing_style", (bucket, host))

    def test_store_ca_file_must_hold_a_certificate(self) -> None:
        folder = temporary_directory(self)
        missing, empty, good = folder / "missing", folder / "empty", folder / "good"
        empty.write_text("")
        good.write_text("-----BEGIN CERTIFICATE-----\n")
        self.assertEqual(
            self.refused("store.ca_file", f"'{missing}'"),
            "names a file that cannot be read: No such file or directory",
        )
        self.assertIn("holds no certificate", self.refused("store.ca_file", f"'{empty}'"))
        found = self.loaded("store.ca_file", f"'{good}'").store.ca_file
        self.assertEqual(Path(str(found)), good)

    def test_smtp_sender_must_be_an_email_address(self) -> None:
        for value in ("not a url", " ", "a@", "a@b.test\\nBcc: c@d.test"):
            self.assertIn("must be an email address", self.refused("smtp.sender", f'"{value}"'))
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

    def test_connection_strings_that_libpq_would_refuse_later_are_faults(self) -> None:
        for dsn, why in (
            ("postgresql://u@a.test:bad/x", "has a port that is not from 1 to 65535"),
            ("host=a.test port=0", "has a port that is not from 1 to 65535"),
            ("host=a,b port=5432,65536", "has a port that is not from 1 to 65535"),
            ("postgresql://u@a.test/x?sslmode=on", "has an sslmode that is none of allow, disable, "),
        ):
            for name in ("database.dsn", f"{MAIN}.dsn"):
                self.assertTrue(self.refused(name, f"'{dsn}'").startswith(why), dsn)
        for dsn in ("host=a,b port=5432,", "host=a,b port=65535", "postgresql://a/x?sslmode=verify-full", ""):
            self.loaded("database.dsn", f"'{dsn}'")
