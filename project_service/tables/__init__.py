"""The table API of each configured database, by the modules that a request passes.

================  =================================================================================================
``api``           the routes, and the way of a request: it asks those below in turn
``access``        who acts: project key, the service's own tokens, tokens of the database's own keys
``planner``       ``request``, ``plan``, ``sql``: from a request to a statement. What earlier requests of the same
                  shape were made into is kept (in a ``bounded_cache``, as verified tokens are)
``execution``     the round trip; ``settings``: what is set for the transaction
``stream``        replies too large for one piece
``response``      from the outcome to the reply
``openapi``       the description of a database at its root
``schema_cache``  how the schema cache is read (from ``catalog``), kept and found out of date; ``values``: its values
``errors``        our error responses; ``failures``: PostgreSQL's
``assemble``      puts it together
================  =================================================================================================
"""
