"""Ports, their sockets and certificates, and the PROXY protocol."""
