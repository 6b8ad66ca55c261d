"""What is read of a connection string, and how a server is called in the log."""

from __future__ import annotations

from urllib.parse import quote

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
