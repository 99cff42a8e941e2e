"""The form of a worker's replies, by request.

Knows: what `worker_main` answers.
Does not know: processes, clocks, what a reward may be.
"""

from __future__ import annotations

from typing import Any


def sound(op: str, reply: dict[str, Any], episodes: int = 0) -> bool:
    """Whether a reply has the form that `worker_main` gives it. Its content is only as good as the environment.

    Args:
        episodes: how many were asked for, of op `play_each`.
    """
    match op:
        case "reset":
            return True
        case "call":
            return isinstance(reply.get("text"), str) and isinstance(reply.get("error"), bool)
        case "next_turn":
            return isinstance(reply.get("text"), str | None) and isinstance(reply.get("withheld"), list)
        case "score" | "play":
            seconds, checks = reply.get("seconds"), reply.get("checks", [])
            timed = isinstance(seconds, dict) and all(isinstance(seconds.get(stage), float) for stage in ("setup", "step", "score"))
            listed = isinstance(checks, list) and all(isinstance(check, dict) for check in checks)
            return timed and listed and isinstance(reply.get("reward"), float) and (op == "score" or isinstance(reply.get("calls"), int))
        case "play_each":
            plays = reply.get("plays")
            if not isinstance(plays, list) or len(plays) != episodes:
                return False
            return all(isinstance(play, dict) and sound("play", play) for play in plays)
        case _:
            return False
