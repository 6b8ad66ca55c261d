"""Authentication: accounts, sessions, tokens, limits, e-mail.

================  =================================================================================================
``routes``        the endpoints of end users and of operators, with what ``/openapi.json`` says of them
``accounts``      what users do: sign up, log in, change or delete their account, set a password or confirm an
                  address by e-mail
``sessions``      refreshing, listing and ending sessions; the ended ones whose access tokens have not expired
``admin``         what operators do with users
``limits``        limits on login attempts, sign-ups and e-mails
``context``       what these share: settings, clock, randomness, and how a session is issued
``tokens``        access tokens, the keys that sign them, and their file; opaque tokens
``passwords``     the rules for passwords, and bcrypt in its threads
``mail``          e-mails on their way: the outbox, the mail server and the folder in its place
``repository``    what is needed of the database; ``postgres`` implements it
``values``        values and their rules. ``errors``: the errors that only authentication raises
``assemble``      puts authentication together
================  =================================================================================================
"""
