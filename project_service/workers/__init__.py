"""Several serving processes of one service, and what they tell each other."""
