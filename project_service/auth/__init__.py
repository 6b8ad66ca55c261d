"""Authentication: accounts, sessions, tokens, limits, mail.

===========================  ======================================================================================
``routes``,                  the endpoints of end users, and of operators
``admin_routes``
``accounts``, ``profile``,   what users do: sign up and log in; change or delete their account; set a password or
``recovery``, ``sessions``   confirm an address by mail; refresh, list and end sessions
``admin``                    what operators do with users
``context``                  what these share: settings, clock, randomness, and how a session is issued
``tokens``, ``keyset``,      access tokens; the keys that sign them, and their file
``keyfile``
``revocations``              the ended sessions whose access tokens have not expired
``secrets``                  refresh tokens and the tokens in letters
``passwords``, ``hashing``   the rules for passwords, and bcrypt; the threads in which it runs
``throttle``                 limits on attempts
``mail``, ``smtp``           letters, and the mail server
``ports``                    what is needed of the database; ``sql`` implements it
``model``, ``metadata``      values and their rules. ``errors``: the errors that only authentication raises
``assemble``                 the parts put together; ``described`` is for ``/openapi.json``
===========================  ======================================================================================
"""
