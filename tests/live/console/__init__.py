"""The console in a browser, on a whole service."""
