"""What is read of a connection string, and how a server is called in the log."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.dsn import read_dsn


class Addresses(TestCase):
    def test_a_server_is_named_without_its_password(self) -> None:
        for dsn, addresses in {
            "postgresql://u:hush@h:6543/d": ["u@h:6543/d"],
            "postgresql://u:hush@h/": ["u@h:5432/u"],
            "host=/run/postgresql user=u dbname=d password=hush": ["u@/run/postgresql:5432/d"],
            "host=a,b port=1,2 user=u dbname=d": ["u@a:1/d", "u@b:2/d"],
            "hostaddr=10.0.0.1 dbname=d": ["10.0.0.1:5432/d"],
            "dbname=d": ["(local socket):5432/d"],
        }.items():
            self.assertEqual([one.address for one in read_dsn(dsn).candidates], addresses)

    def test_a_password_that_is_not_percent_encoded_is_refused_and_not_shown(self) -> None:
        """libpq takes its rest for the host or the database, which the log names."""
        for password in ("p@ss", "p@ss/wo#rd", "pa/ss", "p:a/s@s", "100%"):
            dsn = f"postgresql://u:{password}@h:6543/d"
            refused = self.assertRaises(ValueError, read_dsn, dsn)
            self.assertIn("percent-encoded", str(refused), password)
            self.assertNotIn("ss", str(refused).replace("password", ""))
            self.assertEqual(
                read_dsn(f"postgresql://u:{quote(password, safe='')}@h/d").candidates[0].host, "h"
            )
        for dsn in ("postgresql://u@h/d@e", "host=@abstract dbname=a@b/c", "postgresql://%40abstract/d"):
            read_dsn(dsn)


class Dsns(TestCase):
    """Connection strings of PostgreSQL."""

    def test_several_hosts_are_tried_in_order(self) -> None:
        target = read_dsn("postgresql://u:p@a:1,b:2/db?target_session_attrs=read-write")
        self.assertEqual(
            [(c.params["host"], c.params["port"]) for c in target.candidates], [("a", "1"), ("b", "2")]
        )
        self.assertTrue(target.writable)
        self.assertTrue(all(c.params["password"] == "p" for c in target.candidates))

    def test_unix_sockets_and_addresses_are_not_resolved(self) -> None:
        self.assertFalse(read_dsn("host=/run/pg dbname=d").candidates[0].needs_resolving)
        self.assertFalse(read_dsn("dbname=d").candidates[0].needs_resolving)
        self.assertFalse(read_dsn("host=a hostaddr=10.0.0.1").candidates[0].needs_resolving)
        self.assertTrue(read_dsn("host=a").candidates[0].needs_resolving)

    def test_the_numbers_of_hosts_and_ports_must_match(self) -> None:
        for text in ("host=a,b,c port=1,2", "host=a,b hostaddr=10.0.0.1,10.0.0.2,10.0.0.3"):
            with self.assertRaisesRegex(ValueError, "different number"):
                read_dsn(text)
        addresses = read_dsn("hostaddr=10.0.0.1,10.0.0.2 port=1").candidates
        self.assertEqual(
            [(each.host, each.params["hostaddr"]) for each in addresses],
            [(None, "10.0.0.1"), (None, "10.0.0.2")],
        )
        one_port = read_dsn("host=a,b port=1").candidates
        self.assertEqual([each.params["port"] for each in one_port], ["1", "1"])

    @given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
    def test_any_other_text_is_refused_without_repeating_it(self, text: str) -> None:
        try:
            read_dsn(text)
        except ValueError as fault:
            self.assertRegex(
                str(fault),
                "^(is not a PostgreSQL connection string; in a URI|names a different number of hosts and ports)",
            )

    def test_standbys_may_be_asked_for_where_nothing_is_written(self) -> None:
        for wanted in ("standby", "prefer-standby", "read-only", "any"):
            self.assertFalse(read_dsn(f"host=a target_session_attrs={wanted}", standbys=True).writable)
        for wanted in ("read-write", "primary"):
            with self.assertRaisesRegex(ValueError, "accepts writes"):
                read_dsn(f"host=a target_session_attrs={wanted}", standbys=True)
