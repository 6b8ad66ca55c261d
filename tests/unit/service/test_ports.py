"""The URL of a port, as it is shown to people."""

from __future__ import annotations

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.trial.unittest import SynchronousTestCase

from project_service.network import url_of


class Urls(SynchronousTestCase):
    def test_the_url_of_a_port(self) -> None:
        for address, expected in (
            (IPv4Address("TCP", "192.0.2.1", 80), "http://192.0.2.1:80"),
            (IPv4Address("TCP", "0.0.0.0", 80), "http://127.0.0.1:80"),  # shown, not bound
            (IPv6Address("TCP", "::", 80), "http://[::1]:80"),
            (IPv6Address("TCP", "2001:db8::1", 80), "http://[2001:db8::1]:80"),
            (UNIXAddress(b"/run/x"), None),
        ):
            self.assertEqual(url_of(address), expected)
        self.assertEqual(url_of(IPv4Address("TCP", "127.0.0.1", 443), secure=True), "https://127.0.0.1:443")
