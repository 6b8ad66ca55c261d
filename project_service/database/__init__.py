"""PostgreSQL: ``dsn``, ``resolve`` and ``connect`` make a ``session``; ``pool`` lends many, ``listener`` keeps one.

``guard`` gives up a server that does not answer, ``statements`` and ``prepared`` serve queries that are asked often,
``migrate`` and ``expose`` for the form of the database, ``alone`` for work of one process at a time, ``sqlstate`` for
what means "not now".
"""
