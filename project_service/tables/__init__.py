"""The table API of each configured database, by the modules that a request passes.

========================  =========================================================================================
``api``                   from the route of a request to its reply, by those below in turn
``endpoints``             what ``/openapi.json`` says of it
``access``                authentication: the role that a request acts in
``planner``               ``request``, ``plan``, ``sql``: from a request to a statement, cached by the request's shape
``execution``             the round trip; ``transaction_settings``: what is set for the transaction
``stream``                replies too large for one piece
``response``              from the outcome to the reply
``openapi``               the description of a database at its root
``schema_cache``          how the schema cache is read and kept current; ``values``: its values
``errors``                error responses: our own and PostgreSQL's
``assemble``              puts it together
========================  =========================================================================================
"""
