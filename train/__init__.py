"""Reinforcement learning: environments in worker processes, policies, rollout engines, the run."""
