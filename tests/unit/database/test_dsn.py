"""What is read of a connection string, and how a server is called in the log."""

from __future__ import annotations

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
