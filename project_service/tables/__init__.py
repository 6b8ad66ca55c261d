"""The table API of each configured database. docs/architecture.rst lists the modules in the order in which a request
passes them."""
