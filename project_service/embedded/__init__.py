"""Runs PostgreSQL and SeaweedFS as supervised children, with their state below one data directory.

The entry point is ``assemble.Embedded``. The service starts both itself as direct children, so that their output is
in its log and it notices their end; the wheels only supply the programs.
"""
