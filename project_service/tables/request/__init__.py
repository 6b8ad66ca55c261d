"""From a request's URL, headers and body to the values of ``syntax``."""
