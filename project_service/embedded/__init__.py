"""PostgreSQL and SeaweedFS as supervised children, with their state below one data directory.

``assemble.Embedded`` is the way in. The service starts them itself as direct children, so that their output is in
its log and their end is noticed; the wheels only supply the programs.
"""
