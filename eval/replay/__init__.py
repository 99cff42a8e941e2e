"""Replay: predictors judged on the ledgers of real runs. See `judge` for what is predicted when, `score` for what the figures mean."""
