"""Settings that would only fail with each request are refused at the start, by name."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import TestCase

from project_service.settings.configure import BadSettings, load
from project_service.settings.model import Settings
from tests.places import temporary_directory

MAIN = "stages.dev.databases.main"


class Values(TestCase):
    def loaded(self, name: str, value: str) -> Settings:
        section, _, key = name.rpartition(".")
        path = temporary_directory(self) / "c.toml"
        path.write_text(f"[{section}]\n{key} = {value}\n")
        return load(path, {}, {}, True)

    def refused(self, name: str, value: str) -> str:
        with self.assertRaises(BadSettings, msg=(name, value)) as caught:
            self.loaded(name, value)
        [fault] = caught.exception.faults
        self.assertEqual(fault.name, name)
        reason: str = fault.reason
        return reason

    def test_times_and_counts_end_where_dates_and_postgresql_do(self) -> None:
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

    def test_no_role_is_that_of_the_connection(self) -> None:
        """Who writes "none" means nobody; PostgreSQL means the role that logged in, often the tables' owner."""
        for name in ("anon_role", "authenticated_role", "service_role"):
            self.assertIn('must not be "none"', self.refused(f"{MAIN}.{name}", '"none"'))
            for fine in ("", "None", "nobody"):
                self.loaded(f"{MAIN}.{name}", f'"{fine}"')

    def test_what_goes_into_headers_and_paths_of_the_store(self) -> None:
        for name in ("store.region", "store.access_key_id"):
            for value in ("a b", "a\\n", "é"):
                self.assertEqual(self.refused(name, f'"{value}"'), "must be printable ASCII without blanks")
        self.assertTrue(self.refused("store.region", '""'))
        for value in ("", "ab", "a b", "a/b", "é" * 3, ".ab", "a" * 256):
            self.assertIn("must be the name of a bucket", self.refused("store.bucket", f'"{value}"'))
        for value in ("tenant:files", "abc", "Old_Bucket", "a.b-c", "a" * 63):
            self.assertEqual(self.loaded("store.bucket", f'"{value}"').store.bucket, value)

    def test_a_bucket_before_a_host_makes_the_name_of_one(self) -> None:
        """A colon is a port, and an address has no names before it: nothing could be reached, or started."""
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
                    self.assertEqual(load(path, {}, {}, True).store.addressing_style, style)
                    continue
                with self.assertRaises(BadSettings) as caught:
                    load(path, {}, {}, True)
                [fault] = caught.exception.faults
                self.assertEqual(fault.name, "store.addressing_style", (bucket, host))

    def test_the_authority_of_the_store_is_a_file_with_a_certificate(self) -> None:
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

    def test_the_sender_of_letters_is_an_address(self) -> None:
        for value in ("not a url", " ", "a@", "a@b.test\\nBcc: c@d.test"):
            self.assertIn("must be an email address", self.refused("smtp.sender", f'"{value}"'))
        for value in ("no-reply@a.test", "Example <no-reply@a.test>"):
            self.assertEqual(self.loaded("smtp.sender", f'"{value}"').smtp.sender, value)

    def test_the_sender_is_one_that_letters_can_come_from(self) -> None:
        """A domain has a form in ASCII, and a name in the header one of its own; what is before the @ has none."""
        for value in ("söder@a.test", '"Söder" <söder@a.test>'):
            self.assertEqual("must be ASCII before the @", self.refused("smtp.sender", f"'{value}'"))
        for value in ("no-reply@bücher.test", '"Söder & Co." <no-reply@bücher.test>'):
            self.assertEqual(self.loaded("smtp.sender", f"'{value}'").smtp.sender, value)
        # The name has to be quoted, and who has not done so is told how.
        self.assertIn('in quotes "', self.refused("smtp.sender", "'Söder <a@a.test>'"))

    def test_the_path_to_the_role(self) -> None:
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

    def test_nothing_is_missing_in_a_file_that_was_not_read(self) -> None:
        path = temporary_directory(self) / "c.toml"
        for text in (None, "[server\n"):
            if text is not None:
                path.write_text(text)
            with self.assertRaises(BadSettings) as caught:
                load(path, {}, {}, False)
            self.assertEqual([fault.name for fault in caught.exception.faults], [""])

    def test_what_python_would_not_read(self) -> None:
        path = temporary_directory(self) / "c.toml"
        for text in (f"[server]\nworkers = {'9' * 5000}", "a = " + "[" * 5000):
            path.write_text(text)
            with self.assertRaises(BadSettings) as caught:
                load(path, {}, {}, False)
            self.assertEqual(
                str(caught.exception), f"{path}: has a number that is too long, or is nested too deeply"
            )
        with self.assertRaises(BadSettings) as caught:
            load(None, {"PROJECT_SERVICE__DATABASE__POOL_SIZE": "9" * 5000}, {}, True)
        self.assertEqual(str(caught.exception), "environment: database.pool_size must be a whole number")

    def test_what_some_editors_put_before_the_text(self) -> None:
        path = temporary_directory(self) / "c.toml"
        path.write_bytes(b"\xef\xbb\xbf[server]\r\nworkers = 2\r\n")
        self.assertEqual(load(path, {}, {}, True).server.workers, 2)

    def test_an_environment_in_another_encoding(self) -> None:
        with self.assertRaises(BadSettings) as caught:
            load(None, {"PROJECT_SERVICE__DATABASE__DSN": "postgresql://u:caf\udce9@a/x"}, {}, True)
        self.assertEqual(str(caught.exception), "environment: database.dsn must be UTF-8")

    def test_an_address_is_one_word(self) -> None:
        for name in ("server.public_url", "auth.recover_url", "store.endpoint_url"):
            for value in (r"http://a/\n", r"http://a\t.test", "http://a b/", "http://[::1"):
                self.assertEqual(self.refused(name, f'"{value}"'), "must be an http or https address")
        self.assertTrue(self.refused("server.cors_origins", '["http://[::1"]').startswith("must be origins"))

    def test_what_libpq_would_only_refuse_when_it_connects(self) -> None:
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
