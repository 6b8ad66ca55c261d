"""Authentication: accounts, sessions, tokens, limits, mail."""
