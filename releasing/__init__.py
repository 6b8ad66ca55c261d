"""A release in one command: ``make release VERSION=0.2.0``. ``__main__`` has its steps."""
