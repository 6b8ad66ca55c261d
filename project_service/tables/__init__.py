"""The table API of each configured database, by the modules that a request passes.

==================================  ===========================================================================
``routes``, ``incoming``            from the edge's request to ``Incoming``
``service``                         asks those below in turn; ``timing`` is its clock
``identity``                        who acts: ``tokens`` of the database's own keys, ``role_claim`` with ``json_path``
``planner``                         ``parse``, then ``compile``: ``plan`` and ``sql``. What earlier requests of the
                                    same ``shape`` were made into is kept (``recent``)
``preamble``                        what is set for the transaction before its statement runs
``execute``, ``run``                the round trip; ``probe``: how many rows at once; ``failures``: PostgreSQL's
                                    errors as responses; ``leftovers``: what SQL left on the connection
``respond``                         from the outcome to the reply
``large``, ``streaming``            replies that are too large for one piece
``root``, ``openapi``               the description of a database at its root
``catalog``                         the schema cache: how it is read, kept and found out of date
``assemble``, ``config``            the parts put together of the settings; ``described`` is for ``/openapi.json``
==================================  ===========================================================================
"""
