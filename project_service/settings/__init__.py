"""The configuration: ``configure`` reads file, environment and options into the frozen values of ``model``."""
