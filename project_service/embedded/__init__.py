"""PostgreSQL and SeaweedFS as supervised children of the service, with their state below one data directory.

The entry point is ``assemble.Embedded``. The wheels only supply the programs: as direct children they write to the
service's log, and it notices their end.
"""
