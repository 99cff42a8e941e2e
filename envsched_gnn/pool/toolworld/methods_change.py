"""The state-changing tools.

Knows: templates only; see `tool` for their form. Does not know: any world, which tools an environment has.

Each refuses to do twice what it did once, so that repeating a successful call changes nothing. What no tool ever lifts: a closed owner, a
retired resource, a shut place, a finished or cancelled booking, staff off duty, and the fixed limits of a record.
"""

from envsched_gnn.pool.toolworld.methods_query import BOOKING_ID, OWNER_ID, PLACE_ID, RESOURCE_ID
from envsched_gnn.pool.toolworld.tool import Method, Parameter

STAFF_ID = Parameter(name="$sid", kind="str", text="Identifier of the approving $S.")
DUE = Parameter(name="$due", kind="int", text="The $w_due, a day number.")

KNOWN_OWNER = """if $oid not in self.$os:
    return {"success": False, "error": "Unknown $O"}
"""
KNOWN_RESOURCE = """if $rid not in self.$rs:
    return {"success": False, "error": "Unknown $R"}
"""
KNOWN_PLACE = """if $pid not in self.$ps:
    return {"success": False, "error": "Unknown $P"}
if self.$ps[$pid]["$pstate"] != "$p0":
    return {"success": False, "error": "The $P is not $w_p0"}
"""
LIVE_BOOKING = """if $bid not in self.$bs:
    return {"success": False, "error": "Unknown $B"}
if self.$bs[$bid]["$bstate"] not in ("$b0", "$b1"):
    return {"success": False, "error": "The $B is over"}
"""
APPROVAL = """if $sid not in self.$ss:
    return {"success": False, "error": "Unknown $S"}
if self.$ss[$sid]["$rolefield"] != "$approver":
    return {"success": False, "error": "Not authorized: only a $APPROVER may approve this"}
if not self.$ss[$sid]["$duty"]:
    return {"success": False, "error": "Not authorized: this $S does not work today"}
"""
RETIRED = """if self.$rs[$rid]["$rstate"] == "$r2":
    return {"success": False, "error": "The $R is $w_r2 for good"}
"""


def only(feature: str, text: str) -> str:
    """Every line of the text under a feature."""
    return "".join(line[: len(line) - len(line.lstrip())] + f"?{feature} " + line.lstrip() + "\n" for line in text.splitlines())


CHANGES: tuple[Method, ...] = (
    Method(
        key="rate",
        query=False,
        verbs=("update", "set", "change"),
        stem="${r}_$rate",
        text="Set the $w_rate of a $R.",
        parameters=(RESOURCE_ID, Parameter(name="$rate", kind="int", text="The new $w_rate.")),
        rules=("The $w_rate of a $R is positive and at most its $cap.", "A $R that is $w_r2 never changes again."),
        body=KNOWN_RESOURCE
        + RETIRED
        + """if $rate <= 0 or $rate > self.$rs[$rid]["$cap"]:
    return {"success": False, "error": "The $w_rate is out of range"}
self.$rs[$rid]["$rate"] = $rate
self.$rs[$rid]["$changed"] = self.today
return {"success": True, "data": self.$rs[$rid]}
""",
    ),
    Method(
        key="pause",
        query=False,
        verbs=("update", "set", "change"),
        stem="${r}_availability",
        text="Set the $rstate of a $R to $r0 or $r1.",
        parameters=(RESOURCE_ID, Parameter(name="$rstate", kind="str", text="The new $rstate.", values=("$r0", "$r1"))),
        rules=("A $R with $w_used cannot become $w_r1.",),
        body=KNOWN_RESOURCE
        + RETIRED
        + """if $rstate not in ("$r0", "$r1"):
    return {"success": False, "error": "No such $rstate"}
if self.$rs[$rid]["$rstate"] == $rstate:
    return {"success": False, "error": "The $R has this $rstate already"}
if $rstate == "$r1" and self.$rs[$rid]["$used"] > 0:
    return {"success": False, "error": "The $R is in use"}
self.$rs[$rid]["$rstate"] = $rstate
self.$rs[$rid]["$changed"] = self.today
return {"success": True, "data": self.$rs[$rid]}
""",
    ),
    Method(
        key="create",
        query=False,
        verbs=("create", "add", "register", "open"),
        stem="$b",
        text="Create a $B of a $R for a $O.",
        parameters=(
            OWNER_ID,
            RESOURCE_ID,
            Parameter(name="$units", kind="int", text="Number of $w_units."),
            Parameter(name="$due", kind="int", text="The $w_due, a day number.", feature="due"),
        ),
        rules=(
            "Only a $O who is $w_o0 may get a $B, and only of a $R that is $w_r0.",
            "The $w_used of a $R never exceed its $w_capacity.",
            "A $O has at most one current $B of the same $R.",
            "?limit A $O has no more current $BS than its $limit.",
            "?due A $w_due lies in the future.",
        ),
        body=KNOWN_OWNER
        + KNOWN_RESOURCE
        + """if self.$os[$oid]["$ostate"] != "$o0":
    return {"success": False, "error": "The $O is not eligible, as not $w_o0"}
if self.$rs[$rid]["$rstate"] != "$r0":
    return {"success": False, "error": "The $R is not $w_r0"}
?limit if self.$os[$oid]["$count"] >= self.$os[$oid]["$limit"]:
    ?limit return {"success": False, "error": "The $O has reached its limit"}
if $units <= 0 or self.$rs[$rid]["$used"] + $units > self.$rs[$rid]["$capacity"]:
    return {"success": False, "error": "Not enough $w_units left"}
?due if $due <= self.today:
    ?due return {"success": False, "error": "The $w_due is not in the future"}
for record in self.$bs.values():
    if record["$oid"] == $oid and record["$rid"] == $rid and record["$bstate"] in ("$b0", "$b1"):
        return {"success": False, "error": "The $O already has a current $B of this $R"}
self.sequence = self.sequence + 1
new_id = "$bcode-" + str(self.sequence)
self.$bs[new_id] = {
    "$bid": new_id,
    "$oid": $oid,
    "$rid": $rid,
    "$units": $units,
    "$amount": $units * self.$rs[$rid]["$rate"],
    ?due "$due": $due,
    ?due "$latest": $due + 30,
    ?due "$extensions": 0,
    ?confirm "$bstate": "$b0",
    !confirm "$bstate": "$b1",
    "$approved": "",
}
self.$rs[$rid]["$used"] = self.$rs[$rid]["$used"] + $units
self.$os[$oid]["$count"] = self.$os[$oid]["$count"] + 1
return {"success": True, "data": self.$bs[new_id]}
""",
    ),
    Method(
        key="confirm",
        query=False,
        verbs=("approve", "authorize", "confirm"),
        stem="$b",
        feature="confirm",
        text="Turn a $B from $b0 to $b1, with the approval of a $APPROVER.",
        parameters=(BOOKING_ID, STAFF_ID),
        rules=("A $B becomes $w_b1 only with the approval of an available $APPROVER.",),
        body=LIVE_BOOKING
        + """if self.$bs[$bid]["$bstate"] != "$b0":
    return {"success": False, "error": "The $B is not $w_b0"}
"""
        + APPROVAL
        + """self.$bs[$bid]["$bstate"] = "$b1"
self.$bs[$bid]["$approved"] = $sid
return {"success": True, "data": self.$bs[$bid]}
""",
    ),
    Method(
        key="cancel",
        query=False,
        verbs=("cancel", "terminate", "revoke"),
        stem="$b",
        text="End a current $B and give its $w_units back.",
        parameters=(BOOKING_ID, Parameter(name="$sid", kind="str", text="Identifier of the approving $S.", feature="approved_cancel")),
        rules=("?approved_cancel Only an available $APPROVER may let a $B end early.", "A $B that is over cannot be changed."),
        body=LIVE_BOOKING
        + only("approved_cancel", APPROVAL)
        + """if self.$bs[$bid]["$rid"] not in self.$rs:
    return {"success": False, "error": "The $R of this $B does not exist"}
self.$bs[$bid]["$bstate"] = "$b3"
?approved_cancel self.$bs[$bid]["$approved"] = $sid
$rid = self.$bs[$bid]["$rid"]
$oid = self.$bs[$bid]["$oid"]
self.$rs[$rid]["$used"] = self.$rs[$rid]["$used"] - self.$bs[$bid]["$units"]
self.$os[$oid]["$count"] = self.$os[$oid]["$count"] - 1
return {"success": True, "data": self.$bs[$bid]}
""",
    ),
    Method(
        key="extend",
        query=False,
        verbs=("extend", "update"),
        stem="${b}_$due",
        feature="due",
        text="Move the $w_due of a current $B to a later day.",
        parameters=(BOOKING_ID, DUE),
        rules=("A new $w_due is later than the old one and no later than the $latest of the $B.",),
        body=LIVE_BOOKING
        + """if $due <= self.$bs[$bid]["$due"]:
    return {"success": False, "error": "The $w_due is no later than before"}
if $due > self.$bs[$bid]["$latest"]:
    return {"success": False, "error": "The $w_due is too late for this $B"}
self.$bs[$bid]["$due"] = $due
self.$bs[$bid]["$extensions"] = self.$bs[$bid]["$extensions"] + 1
return {"success": True, "data": self.$bs[$bid]}
""",
    ),
    Method(
        key="transfer",
        query=False,
        verbs=("transfer", "reassign"),
        stem="$b",
        text="Hand a current $B over to another $O.",
        parameters=(BOOKING_ID, Parameter(name="$oid", kind="str", text="Identifier of the new $O.")),
        rules=("A $B passes only to a $O who is $w_o0.",),
        body=LIVE_BOOKING
        + KNOWN_OWNER
        + """if self.$os[$oid]["$ostate"] != "$o0":
    return {"success": False, "error": "The $O is not eligible, as not $w_o0"}
if self.$bs[$bid]["$oid"] == $oid:
    return {"success": False, "error": "The $B belongs to this $O already"}
?limit if self.$os[$oid]["$count"] >= self.$os[$oid]["$limit"]:
    ?limit return {"success": False, "error": "The $O has reached its limit"}
old_id = self.$bs[$bid]["$oid"]
self.$os[old_id]["$count"] = self.$os[old_id]["$count"] - 1
self.$os[$oid]["$count"] = self.$os[$oid]["$count"] + 1
self.$bs[$bid]["$oid"] = $oid
return {"success": True, "data": self.$bs[$bid]}
""",
    ),
    Method(
        key="move",
        query=False,
        verbs=("move", "assign", "relocate"),
        stem="${r}_to_$p",
        text="Move a $R to another $P.",
        parameters=(RESOURCE_ID, PLACE_ID),
        rules=("A $P that is $w_p1 takes nothing in, and no $P holds more $RS than its $pcapacity.",),
        body=KNOWN_RESOURCE
        + RETIRED
        + KNOWN_PLACE
        + """if self.$rs[$rid]["$pid"] == $pid:
    return {"success": False, "error": "The $R is there already"}
if self.$ps[$pid]["$pcount"] >= self.$ps[$pid]["$pcapacity"]:
    return {"success": False, "error": "The $P is full"}
old_id = self.$rs[$rid]["$pid"]
self.$ps[old_id]["$pcount"] = self.$ps[old_id]["$pcount"] - 1
self.$ps[$pid]["$pcount"] = self.$ps[$pid]["$pcount"] + 1
self.$rs[$rid]["$pid"] = $pid
return {"success": True, "data": self.$rs[$rid]}
""",
    ),
)
