"""Authentication: accounts, sessions, tokens, limits, e-mail. docs/architecture.rst lists the modules."""
