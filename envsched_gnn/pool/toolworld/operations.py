"""The operations that tasks are made of: how each is asked for, called, checked, and blocked for good.

Knows: templates only. Does not know: any world, any record.

`$name` is a name of the world or a value of the unit. `$final_X` and `$initial_X` are expressions for the record in slot X at the end and
at reset. Every check of a unit demands the anchor of the unit's first operation too: a blocked first operation makes all of them
unreachable, and no side path earns them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One state-changing call on the records in a unit's slots."""

    key: str
    tool: str
    """Key of the method."""
    clauses: tuple[str, ...]
    """Ways to ask for it."""
    arguments: tuple[tuple[str, str], ...]
    """(parameter, value's name); one that starts with `?feature ` stands only where the feature is on."""
    lookups: tuple[str, ...]
    """Slots whose identifiers it needs."""
    anchor: tuple[str, str]
    """(description, expression) of the essential change."""
    details: tuple[tuple[str, str], ...]
    """(description, expression) of what goes with it; `?feature ` as above."""
    blockers: tuple[tuple[str, str, str | None], ...]
    """(slot, trait, feature): what in the initial state makes it impossible; no tool lifts a trait."""
    batch_clause: str = ""
    """How to ask for it on all resources of a category."""
    staff: str | None = None
    """It needs an approver: always (`""`) or only where this feature is on."""


BY = "with the approval of a $APPROVER"

RESOURCE_CHANGED = ('Does "$resource" carry today as its $changed?', '$final_resource.get("$changed") == final_state["today"]')
OWNER_CHANGED = ("Does $owner carry today as $changed?", '$final_owner.get("$changed") == final_state["today"]')

OPERATIONS: dict[str, Operation] = {
    op.key: op
    for op in (
        Operation(
            key="rate",
            tool="rate",
            clauses=('Set the $w_rate of "$resource" to $rate_value.', '"$resource" shall have a $w_rate of $rate_value from now on.'),
            arguments=(("$rid", "resource_id"), ("$rate", "rate_value")),
            lookups=("resource",),
            anchor=('Is the $w_rate of "$resource" $rate_value?', '$final_resource.get("$rate") == $rate_value'),
            details=(RESOURCE_CHANGED,),
            blockers=(("resource", "absent", None), ("resource", "frozen", None), ("resource", "tight", None)),
            batch_clause='Set the $w_rate of every $R whose $w_category is "$category_value" to $rate_value.',
        ),
        Operation(
            key="pause",
            tool="pause",
            clauses=('Set "$resource" to $r1.', 'Take "$resource" out of service: its $rstate becomes $r1.'),
            arguments=(("$rid", "resource_id"), ("$rstate", "paused")),
            lookups=("resource",),
            anchor=('Is "$resource" $w_r1?', '$final_resource.get("$rstate") == "$r1"'),
            details=(RESOURCE_CHANGED,),
            blockers=(("resource", "absent", None), ("resource", "frozen", None)),
            batch_clause='Set every $R whose $w_category is "$category_value" to $r1.',
        ),
        Operation(
            key="create",
            tool="create",
            clauses=(
                'Create a $B of $units_value $w_units of "$resource" for $owner$until.',
                '$owner needs a $B of "$resource": $units_value $w_units$until.',
            ),
            arguments=(("$oid", "owner_id"), ("$rid", "resource_id"), ("$units", "units_value"), ("?due $due", "due_value")),
            lookups=("owner", "resource"),
            anchor=(
                'Has $owner a current $B of $units_value $w_units of "$resource"$until?',
                'any(entry["$oid"] == "$owner_id" and entry["$rid"] == "$resource_id" and entry["$units"] == $units_value$due_test '
                'and entry["$bstate"] in ("$b0", "$b1") for entry in final_state["$bs"].values())',
            ),
            details=(
                (
                    'Did the $w_used of "$resource" grow by $units_value?',
                    '$final_resource.get("$used", 0) == $initial_resource.get("$used", 0) + $units_value',
                ),
                ("Has $owner one more current $B?", '$final_owner.get("$count", 0) == $initial_owner.get("$count", 0) + 1'),
                (
                    "Does the $w_amount of the new $B follow from the $w_rate?",
                    'any(entry["$amount"] == $units_value * $initial_resource.get("$rate", 0) for entry in final_state["$bs"].values() '
                    'if entry["$oid"] == "$owner_id" and entry["$rid"] == "$resource_id")',
                ),
            ),
            blockers=(
                ("owner", "absent", None),
                ("owner", "frozen", None),
                ("owner", "tight", "limit"),
                ("resource", "absent", None),
                ("resource", "frozen", None),
                ("resource", "tight", None),
            ),
        ),
        Operation(
            key="confirm_new",
            tool="confirm",
            clauses=(f"Have this $B turned to $b1 {BY}.", f"Then make that $B $w_b1, {BY}."),
            arguments=(("$bid", "new_id"), ("$sid", "staff_id")),
            lookups=(),
            anchor=(
                'Is the new $B of "$resource" for $owner $w_b1?',
                'any(entry["$oid"] == "$owner_id" and entry["$rid"] == "$resource_id" and entry["$bstate"] == "$b1" '
                'for entry in final_state["$bs"].values())',
            ),
            details=(
                (
                    "Was the new $B approved by the $APPROVER?",
                    'any(entry["$approved"] == "$staff_id" for entry in final_state["$bs"].values() '
                    'if entry["$oid"] == "$owner_id" and entry["$rid"] == "$resource_id")',
                ),
            ),
            blockers=(),
            staff="",
        ),
        Operation(
            key="confirm",
            tool="confirm",
            clauses=(
                f'Turn the $B of "$resource" held by $owner to $b1 {BY}.',
                f'The $B that $owner has of "$resource" becomes $b1, {BY}.',
            ),
            arguments=(("$bid", "booking_id"), ("$sid", "staff_id")),
            lookups=("booking",),
            anchor=('Is the $B of "$resource" held by $owner $w_b1?', '$final_booking.get("$bstate") == "$b1"'),
            details=(("Was this $B approved by the $APPROVER?", '$final_booking.get("$approved") == "$staff_id"'),),
            blockers=(("booking", "absent", None), ("booking", "frozen", None)),
            staff="",
        ),
        Operation(
            key="cancel",
            tool="cancel",
            clauses=('Let the $B of "$resource" held by $owner end early$by.', '$owner gives up the $B of "$resource"; end it$by.'),
            arguments=(("$bid", "booking_id"), ("?approved_cancel $sid", "staff_id")),
            lookups=("booking",),
            anchor=('Is the $B of "$resource" held by $owner $w_b3?', '$final_booking.get("$bstate") == "$b3"'),
            details=(
                (
                    'Were the $w_units of this $B given back to "$resource"?',
                    '$final_resource.get("$used", 0) == $initial_resource.get("$used", 0) - $initial_booking.get("$units", 0)',
                ),
                ("Has $owner one current $B less?", '$final_owner.get("$count", 0) == $initial_owner.get("$count", 0) - 1'),
                ("?approved_cancel Was the end approved by the $APPROVER?", '$final_booking.get("$approved") == "$staff_id"'),
            ),
            blockers=(("booking", "absent", None), ("booking", "frozen", None)),
            staff="approved_cancel",
        ),
        Operation(
            key="extend",
            tool="extend",
            clauses=(
                'Move the $w_due of the $B of "$resource" held by $owner to day $due_value.',
                'The $B that $owner has of "$resource" gets day $due_value as its $w_due.',
            ),
            arguments=(("$bid", "booking_id"), ("$due", "due_value")),
            lookups=("booking",),
            anchor=('Is day $due_value the $w_due of the $B of "$resource" held by $owner?', '$final_booking.get("$due") == $due_value'),
            details=(
                (
                    "Was this $B extended exactly once?",
                    '$final_booking.get("$extensions", 0) == $initial_booking.get("$extensions", 0) + 1',
                ),
            ),
            blockers=(("booking", "absent", None), ("booking", "frozen", None), ("booking", "tight", None)),
        ),
        Operation(
            key="transfer",
            tool="transfer",
            clauses=(
                'Hand the $B of "$resource" held by $owner over to $other.',
                '$other takes over the $B of "$resource" from $owner.',
            ),
            arguments=(("$bid", "booking_id"), ("$oid", "other_id")),
            lookups=("booking", "other"),
            anchor=('Does the $B of "$resource" that $owner held belong to $other?', '$final_booking.get("$oid") == "$other_id"'),
            details=(
                ("Has $other one more current $B?", '$final_other.get("$count", 0) == $initial_other.get("$count", 0) + 1'),
                ("Has $owner one current $B less?", '$final_owner.get("$count", 0) == $initial_owner.get("$count", 0) - 1'),
            ),
            blockers=(
                ("booking", "absent", None),
                ("booking", "frozen", None),
                ("other", "absent", None),
                ("other", "frozen", None),
                ("other", "tight", "limit"),
            ),
        ),
        Operation(
            key="move",
            tool="move",
            clauses=('Move "$resource" to $place.', '"$resource" now belongs to $place; move it there.'),
            arguments=(("$rid", "resource_id"), ("$pid", "place_id")),
            lookups=("resource", "place"),
            anchor=('Does "$resource" belong to $place?', '$final_resource.get("$pid") == "$place_id"'),
            details=(("Does $place hold one $R more?", '$final_place.get("$pcount", 0) == $initial_place.get("$pcount", 0) + 1'),),
            blockers=(
                ("resource", "absent", None),
                ("resource", "frozen", None),
                ("place", "absent", None),
                ("place", "frozen", None),
            ),
        ),
        Operation(
            key="tier",
            tool="tier",
            clauses=("Raise $owner to the $w_tier $tier_value.", "$owner shall have the $w_tier $tier_value."),
            arguments=(("$oid", "owner_id"), ("$tier", "tier_value")),
            lookups=("owner",),
            anchor=("Has $owner the $w_tier $tier_value?", '$final_owner.get("$tier") == "$tier_value"'),
            details=(OWNER_CHANGED,),
            blockers=(("owner", "absent", None), ("owner", "frozen", None), ("owner", "tight", None)),
        ),
        Operation(
            key="reactivate",
            tool="reactivate",
            clauses=(f"Make $owner $o0 again, {BY}.", f"$owner, who is $o1, returns to $o0 {BY}."),
            arguments=(("$oid", "owner_id"), ("$sid", "staff_id")),
            lookups=("owner",),
            anchor=("Is $owner $w_o0?", '$final_owner.get("$ostate") == "$o0"'),
            details=(OWNER_CHANGED,),
            blockers=(("owner", "absent", None), ("owner", "frozen", None)),
            staff="",
        ),
        Operation(
            key="link",
            tool="link",
            clauses=("Put $owner on the $w_access of $place.", "$place shall have $owner on its $w_access."),
            arguments=(("$pid", "place_id"), ("$oid", "owner_id")),
            lookups=("place", "owner"),
            anchor=("Is $owner on the $w_access of $place?", '"$owner_id" in $final_place.get("$access", [])'),
            details=(
                ("Did the $w_access of $place grow by one?", '$final_place.get("$listed", 0) == $initial_place.get("$listed", 0) + 1'),
            ),
            blockers=(("owner", "absent", None), ("owner", "frozen", None), ("place", "absent", None), ("place", "frozen", None)),
        ),
        Operation(
            key="unlink",
            tool="unlink",
            clauses=("Take $owner off the $w_access of $origin.", "$owner leaves the $w_access of $origin."),
            arguments=(("$pid", "origin_id"), ("$oid", "owner_id")),
            lookups=("origin", "owner"),
            anchor=("Is $owner off the $w_access of $origin?", '"$owner_id" not in $final_origin.get("$access", [])'),
            details=(
                ("Did the $w_access of $origin shrink by one?", '$final_origin.get("$listed", 0) == $initial_origin.get("$listed", 0) - 1'),
            ),
            blockers=(),
        ),
        Operation(
            key="notice",
            tool="notice",
            clauses=("Send $owner a $w_notice about $topic_value.", "$owner gets a $w_notice about $topic_value."),
            arguments=(("$oid", "owner_id"), ("topic", "topic_value")),
            lookups=("owner",),
            anchor=(
                "Did $owner get a $w_notice about $topic_value?",
                'any(entry["$oid"] == "$owner_id" and entry["topic"] == "$topic_value" for entry in final_state["$notices"].values())',
            ),
            details=(
                ("Does $owner count one $w_notice more?", '$final_owner.get("$notified", 0) == $initial_owner.get("$notified", 0) + 1'),
            ),
            blockers=(("owner", "absent", None), ("owner", "frozen", None)),
        ),
        Operation(
            key="report",
            tool="report",
            clauses=(
                "Add up the $w_capacity of all $RS of $place and record it in a $w_report.",
                "Record a $w_report of $place with the sum of $w_capacity over its $RS.",
            ),
            arguments=(("$pid", "place_id"), ("$total", "total_value")),
            lookups=("place", "place_contents"),
            anchor=(
                "Does a $w_report of $place hold the right sum?",
                'any(entry["$pid"] == "$place_id" and entry["$total"] == $total_value for entry in final_state["$reports"].values())',
            ),
            details=(("Does $place show the sum?", '$final_place.get("last_$total") == $total_value'),),
            blockers=(("place", "absent", None), ("place", "frozen", None)),
        ),
        Operation(
            key="remove",
            tool="remove",
            clauses=("Delete $owner with everything that belongs to them.", "$owner leaves for good: delete them and their $BS."),
            arguments=(("$oid", "owner_id"),),
            lookups=("owner",),
            anchor=("Is $owner gone?", '"$owner_id" not in final_state["$os"]'),
            details=(
                ("Are all $BS of $owner gone?", 'all(entry["$oid"] != "$owner_id" for entry in final_state["$bs"].values())'),
                (
                    'Were the $w_units of their $B given back to "$resource"?',
                    '$final_resource.get("$used", 0) == $initial_resource.get("$used", 0) - $initial_booking.get("$units", 0)',
                ),
            ),
            blockers=(("owner", "frozen", None),),
        ),
    )
}
