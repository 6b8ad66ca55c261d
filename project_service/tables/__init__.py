"""The table API of each configured database, by the modules that a request passes.

========================  =====================================================================================
``routes``, ``incoming``  from the edge's request to ``Incoming``
``service``               asks those below in turn; ``timing`` is its clock
``access``                who acts: ``identity``, ``tokens`` of the database's own keys, ``role_claim`` with
                          ``json_path``
``planning``              ``planner``: ``parse``, then ``compile``: ``plan`` and ``sql``. What earlier requests of
                          the same ``shape`` were made into is kept (in a ``bounded_cache``, as verified tokens
                          are), and how many rows to read at once (``probe``)
``execution``             ``preamble``: what is set for the transaction; ``execute``, ``work``, ``run``: the round
                          trip; ``prepared``: whose plans may be used in it; ``large``, ``streaming``: replies too
                          large for one piece; ``cleanup``: what SQL left on the connection
``respond``               from the outcome to the reply
``root``, ``openapi``     the description of a database at its root
``model``, ``catalog``    the schema cache: its values, and how it is read, kept and found out of date
``errors``, ``failures``  all error responses: ours (those about tokens in ``access``), and PostgreSQL's
``assemble``, ``config``  the parts put together of the settings; ``described`` and ``refusals`` are for
                          ``/openapi.json``
========================  =====================================================================================
"""
