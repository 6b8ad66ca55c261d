"""PostgreSQL: ``connecting`` makes a ``connection``; ``pool`` lends many, ``listener`` keeps one.

``pipeline`` sends quick reads of many callers on one connection, and has the queries that are asked often.
``migrate`` gives the database its form, and ``errors`` lists the failures that are answered with 503.
"""
