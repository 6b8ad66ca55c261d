"""A client for any S3-compatible object store, streaming in both directions.

A request passes these modules from the first to the last, and its response comes back through them:

================  =================================================================================================
``client``        the operations that the service needs. ``xml``: the documents sent and received. ``errors``
``requests``      one request and its response, through treq, with timeouts; sent again where that may help
``signing``       the head of a request, signed over exactly what is sent, and checksums
``connection``    connections that are kept open, their parser, and bodies in both directions, with back-pressure
================  =================================================================================================

Over these, ``parts`` sends the bytes of one version, in one request or in parts, and ``reading`` reads whole objects,
lists everything, and keeps small objects that were read lately.
"""
