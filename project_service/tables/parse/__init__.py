"""Reading a request: from bytes and text to the values of ``syntax``. Raises nothing but ``TableError``."""
