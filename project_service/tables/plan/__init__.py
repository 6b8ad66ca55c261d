"""Looking up what a request names in the schema cache, and deciding what is to be done. Pure."""
