"""The headline experiment: does a scheduled agent learn faster, and how much of what an oracle could gain."""
