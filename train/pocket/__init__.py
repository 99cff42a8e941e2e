"""The pocket policy: a tiny model, trained and run on a CPU in seconds a step, that acts in the pool's real environments."""
