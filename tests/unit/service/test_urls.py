"""The URL of an endpoint, for commands that run beside the service."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from project_service.network import url_configured


class Configured(TestCase):
    def test_the_url_of_an_endpoint_with_a_port(self) -> None:
        for endpoint, url in {
            "tcp:8080:interface=127.0.0.1": "http://127.0.0.1:8080",
            "tcp:8080": "http://127.0.0.1:8080",
            "tcp:8080:interface=0.0.0.0": "http://127.0.0.1:8080",
            r"tcp6:80:interface=\:\:1": "http://[::1]:80",
            "ssl:443:privateKey=k:certKey=c:interface=10.0.0.1": "https://10.0.0.1:443",
            "haproxy:tcp:81:interface=127.0.0.1": "http://127.0.0.1:81",
            "tcp:port=82": "http://127.0.0.1:82",
            "tcp:0": None,
            "unix:/run/s": None,
            "systemd:domain=INET:index=0": None,
        }.items():
            self.assertEqual(url_configured(endpoint), url, endpoint)
