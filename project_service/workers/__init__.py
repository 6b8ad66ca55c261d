"""Several serving processes of one service, and the messages between them."""
