"""The table API of each configured database, by the modules that a request passes.

========================  =====================================================================================
``routes``, ``incoming``  from the edge's request to ``Incoming``
``service``               asks those below in turn; ``timing`` is its clock
``access``                who acts: ``identity``, ``tokens`` of the database's own keys, ``role_claim`` with
                          ``json_path``
``planning``              ``planner``: ``parse``, then ``compile``: ``plan`` and ``sql``. What earlier requests of
                          the same ``shape`` were made into is kept (``cache``)
``execution``             ``preamble``: what is set for the transaction; ``execute``, ``work``, ``run``: the round
                          trip; ``prepared``: whose plans may be used in it; ``probe``: how many rows at once;
                          ``large``, ``streaming``: replies too large for one piece; ``failures``: PostgreSQL's
                          errors as responses; ``cleanup``: what SQL left on the connection
``respond``               from the outcome to the reply
``root``, ``openapi``     the description of a database at its root
``catalog``               the schema cache: how it is read, kept and found out of date
``assemble``, ``config``  the parts put together of the settings; ``described`` is for ``/openapi.json``
========================  =====================================================================================
"""
