"""The sending of the console."""
