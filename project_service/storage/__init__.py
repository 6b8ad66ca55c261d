"""Buckets and objects: rows in PostgreSQL, bytes in an S3-compatible store, streamed both ways.

===========================  ======================================================================================
``routes``, ``admin``        the endpoints. ``requests``, ``conditions``, ``ranges`` and ``page_token`` read what they
                             are sent; ``failures`` turns failures of the store into responses
``buckets``, ``access``      buckets and their rules; who may do what
``objects``                  changes of objects, in the order of steps that makes every crash harmless
``announcing``               versions announced before their first byte, in a burst several at a time
``attempt``                  a new version, from its announcement until it is an object's or has been given up
``intake``, ``form``         the body of an upload, as it arrives
``upload``                   the parts of an upload on their way to the store, never more than two in memory
``download``                 the bytes of an object on their way to the client. ``disposition``: what a browser is
                             told of them; ``small_objects``: those kept in memory
``links``                    download links
``removal``, ``sweeper``     bytes that are no object's any more
``ports``                    what is needed of the database and of the store; ``sql`` and ``s3`` implement it
``model``, ``keys``,         values and their rules. ``errors``: the errors that only storage raises
``content_types``
``reading``                  what the service itself reads from the store
``assemble``                 the parts put together; ``described`` and ``described_admin`` are for ``/openapi.json``
===========================  ======================================================================================
"""
