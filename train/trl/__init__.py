"""Training language models with TRL: scheduling, environments, rollout engine and checkpoints of its trainers."""
