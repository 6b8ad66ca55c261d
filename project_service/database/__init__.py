"""PostgreSQL: ``connecting`` makes a ``connection``; ``pool`` lends many, ``listener`` keeps one.

``pipeline`` sends quick reads of many callers on one connection, and has the queries that are asked often.
``migrate`` gives the database its form, and ``errors`` says which failures mean "not now".
"""
