"""The endpoints, a module for each kind."""
