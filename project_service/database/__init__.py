"""PostgreSQL: ``dsn``, ``resolve`` and ``connect`` make a ``session``; ``pool`` lends many, ``listener`` keeps one.

``answer_timeout`` gives up a server that does not answer, ``wait_queue`` holds who waits for a connection,
``statements`` and ``prepared`` serve queries that are asked often, ``migrate`` and ``expose`` are for the form of the
database, ``advisory_lock`` for work of one process at a time, ``sqlstate`` for what means "not now".
"""
