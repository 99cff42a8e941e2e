"""The abstract patterns that recur across domains. A unit is one pattern applied to records of its own.

Knows: which operations on which slots. Does not know: domains, records, labels.

The pattern decides operations, gates, dependencies and kinds of checks, and with them how hard a task is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A sequence of operations on shared slots."""

    name: str
    operations: tuple[str, ...]
    slots: tuple[str, ...]
    """owner, other (owners), resource, place, origin (places), booking (with its owner and resource), batch (resources of one category)."""
    features: tuple[str, ...] = ()
    """It exists only where all of these are on."""
    variant: str = ""
    """What its owner (`suspended`) or booking (`pending`) is at reset, if not in good standing or active."""

    @property
    def batch(self) -> bool:
        """Whether it repeats its one operation over the resources of a category."""
        return "batch" in self.slots


PATTERNS: tuple[Pattern, ...] = (
    Pattern(name="find_then_update", operations=("rate",), slots=("resource",)),
    Pattern(name="take_out_of_service", operations=("pause",), slots=("resource",)),
    Pattern(name="batch_update", operations=("rate",), slots=("batch",)),
    Pattern(name="batch_out_of_service", operations=("pause",), slots=("batch",)),
    Pattern(name="create_with_capacity_check", operations=("create",), slots=("owner", "resource")),
    Pattern(name="create_then_notify", operations=("create", "notice"), slots=("owner", "resource"), features=("notice",)),
    Pattern(name="create_then_authorize", operations=("create", "confirm_new"), slots=("owner", "resource"), features=("confirm",)),
    Pattern(name="authorize_pending", operations=("confirm",), slots=("booking",), features=("confirm",), variant="pending"),
    Pattern(name="authorize_then_terminate", operations=("cancel",), slots=("booking",)),
    Pattern(name="terminate_then_notify", operations=("cancel", "notice"), slots=("booking",), features=("notice",)),
    Pattern(name="terminate_then_withdraw", operations=("cancel", "pause"), slots=("booking",)),
    Pattern(name="transfer_between_owners", operations=("transfer",), slots=("booking", "other")),
    Pattern(name="transfer_then_extend", operations=("transfer", "extend"), slots=("booking", "other"), features=("due",)),
    Pattern(name="extend_limit", operations=("extend",), slots=("booking",), features=("due",)),
    Pattern(name="replace_relation", operations=("move",), slots=("resource", "place")),
    Pattern(name="replace_relation_then_update", operations=("move", "rate"), slots=("resource", "place")),
    Pattern(name="link_then_unlink", operations=("link", "unlink"), slots=("owner", "place", "origin"), features=("access",)),
    Pattern(name="promote_then_link", operations=("tier", "link"), slots=("owner", "place"), features=("tier", "access")),
    Pattern(name="check_eligibility_then_update", operations=("tier",), slots=("owner",), features=("tier",)),
    Pattern(
        name="lift_block_then_create",
        operations=("reactivate", "create"),
        slots=("owner", "resource"),
        features=("reactivate",),
        variant="suspended",
    ),
    Pattern(
        name="full_service",
        operations=("reactivate", "create", "confirm_new", "notice"),
        slots=("owner", "resource"),
        features=("reactivate", "confirm", "notice"),
        variant="suspended",
    ),
    Pattern(name="cascade_delete", operations=("remove",), slots=("booking",), features=("remove",)),
    Pattern(name="aggregate_then_record", operations=("report",), slots=("place",), features=("report",)),
    Pattern(
        name="create_relocate_notify", operations=("create", "move", "notice"), slots=("owner", "resource", "place"), features=("notice",)
    ),
)

MAX_BATCH = 4
"""Records that one batch unit updates at most (ours)."""
