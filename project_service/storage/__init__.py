"""Buckets and objects: rows in PostgreSQL, bytes in an S3-compatible store, streamed both ways.

================  =================================================================================================
``routes``        the endpoints for objects, each with its description and body; ``link_routes``: for links;
                  ``admin``: for buckets
``access``        who may do what to the objects of a bucket
``requests``      parameters, headers and form fields; ``conditions``: conditional requests and ranges; ``form``: the
                  upload form, chunk by chunk
``buckets``       buckets and their rules
``objects``       changes of objects, in the order of steps that makes every crash harmless
``receiving``     an upload request, from its checks to the object; and dry runs
``upload``        a new version, until it is an object's or has been given up. ``reservations`` begins one;
                  ``parts`` sends its bytes
``resumable``     uploads that take several requests; ``tus``: their protocol; ``resumable_routes``: their endpoints
``download``      the bytes of an object on their way to the client, or kept in memory
``renditions``    pictures in other sizes and formats, made once. ``images``: what a request asks for; ``image_pool``
                  and ``image_process``: the processes that make them
``links``         links, each for downloads or for one upload
``sweeper``       bytes that are no object's any more. ``durations``: how long things last
``repository``    what is needed of the database and of the store; ``postgres``,
                  ``postgres_resumable`` and ``s3`` implement it
``values``        values; ``keys``: names and content types. ``errors``: the errors that only storage raises
``assemble``      puts storage together
================  =================================================================================================
"""
