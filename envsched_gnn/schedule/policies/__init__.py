"""Peers of EnvSched behind its own verbs: what else a user might pick.

Knows: a host (`Peer`) that keeps the books, a rule for each peer, the table of facts, a round of any policy.
Does not know: engines, training, comparisons.
"""

from envsched_gnn.policy_facts import FACTS, NAMES, Facts
from envsched_gnn.schedule.policies.make import AnyPolicy, policy_of
from envsched_gnn.schedule.policies.peer import Peer
from envsched_gnn.schedule.policies.rounds import Round, lesson, play_round

__all__ = ["FACTS", "NAMES", "AnyPolicy", "Facts", "Peer", "Round", "lesson", "play_round", "policy_of"]
