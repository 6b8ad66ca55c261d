"""A client for any S3-compatible object store, streaming in both directions.

A request passes these modules from the first to the last, and its response comes back through them:

===========================  ======================================================================================
``client``, ``bucket``       the operations that the service needs. ``listing`` has the documents that the store sends
                             and is sent, ``digests`` the checksums
``retrying``                 one request and its response, with timeouts; sent again where that may help
``sender``, ``sign``         the head of a request, signed over exactly what is sent
``treq_client``              treq's client, which is kept from changing anything
``pool``, ``connection``     connections that are kept open, and one of them
``response_parser``          where head and body end
``response``                 a response whose body is still arriving
``opened``, ``body``         an object that waits to be read; bodies in both directions, with back-pressure
===========================  ======================================================================================

``errors`` says in our terms what can go wrong. ``connect`` and ``endpoint`` make a client of the settings.

Connections and parsers are our own, because those of twisted.web's client took about half of the time of a request
(``docs/performance.rst``).
"""
