"""The optional state-changing tools, about owners, places and records.

Knows: templates only; see `tool` and `methods_change`. Does not know: any world, which tools an environment has.
"""

from envsched_gnn.pool.toolworld.methods_change import APPROVAL, KNOWN_OWNER, KNOWN_PLACE, STAFF_ID
from envsched_gnn.pool.toolworld.methods_query import OWNER_ID, PLACE_ID
from envsched_gnn.pool.toolworld.tool import Method, Parameter

TIER_POINTS = (0, 200, 400)
"""Points that an owner needs for each tier."""

CLOSED = """if self.$os[$oid]["$ostate"] == "$o2":
    return {"success": False, "error": "The $O is $w_o2 for good"}
"""

OPTIONAL: tuple[Method, ...] = (
    Method(
        key="reactivate",
        query=False,
        verbs=("authorize", "approve", "restore"),
        stem="${o}_return",
        feature="reactivate",
        text="Make a $O who is $o1 $o0 again, with the approval of a $APPROVER.",
        parameters=(OWNER_ID, STAFF_ID),
        rules=("A $O who is $w_o1 returns only with the approval of an available $APPROVER; one who is $w_o2 never does.",),
        body=KNOWN_OWNER
        + """if self.$os[$oid]["$ostate"] != "$o1":
    return {"success": False, "error": "The $O is not $w_o1"}
"""
        + APPROVAL
        + """self.$os[$oid]["$ostate"] = "$o0"
self.$os[$oid]["$changed"] = self.today
return {"success": True, "data": self.$os[$oid]}
""",
    ),
    Method(
        key="tier",
        query=False,
        verbs=("update", "set", "change"),
        stem="${o}_$tier",
        feature="tier",
        text="Set the $w_tier of a $O who has the $points for it.",
        parameters=(OWNER_ID, Parameter(name="$tier", kind="str", text="The new $w_tier.", values=("$tier0", "$tier1", "$tier2"))),
        rules=(f"$tier1 needs at least {TIER_POINTS[1]} $points, $tier2 at least {TIER_POINTS[2]}.",),
        body=KNOWN_OWNER
        + CLOSED
        + f"""needed = {{"$tier0": {TIER_POINTS[0]}, "$tier1": {TIER_POINTS[1]}, "$tier2": {TIER_POINTS[2]}}}
if $tier not in needed:
    return {{"success": False, "error": "No such $w_tier"}}
if self.$os[$oid]["$points"] < needed[$tier]:
    return {{"success": False, "error": "The $O does not qualify: too few $points"}}
self.$os[$oid]["$tier"] = $tier
self.$os[$oid]["$changed"] = self.today
return {{"success": True, "data": self.$os[$oid]}}
""",
    ),
    Method(
        key="link",
        query=False,
        verbs=("link", "add", "assign"),
        stem="${o}_to_$access",
        feature="access",
        text="Put a $O on the $w_access of a $P.",
        parameters=(PLACE_ID, OWNER_ID),
        rules=("Only a $O who is $w_o0 may be put on a $w_access.", "The $w_access of a $P that is $w_p1 never changes."),
        body=KNOWN_PLACE
        + KNOWN_OWNER
        + """if self.$os[$oid]["$ostate"] != "$o0":
    return {"success": False, "error": "The $O is not eligible, as not $w_o0"}
if $oid in self.$ps[$pid]["$access"]:
    return {"success": False, "error": "The $O is already in the $w_access"}
self.$ps[$pid]["$access"] = self.$ps[$pid]["$access"] + [$oid]
self.$ps[$pid]["$listed"] = self.$ps[$pid]["$listed"] + 1
return {"success": True, "data": self.$ps[$pid]}
""",
    ),
    Method(
        key="unlink",
        query=False,
        verbs=("unlink", "remove"),
        stem="${o}_from_$access",
        feature="access",
        text="Take a $O off the $w_access of a $P.",
        parameters=(PLACE_ID, OWNER_ID),
        body=KNOWN_PLACE
        + """if $oid not in self.$ps[$pid]["$access"]:
    return {"success": False, "error": "The $O is not on the $w_access"}
self.$ps[$pid]["$access"] = [other for other in self.$ps[$pid]["$access"] if other != $oid]
self.$ps[$pid]["$listed"] = self.$ps[$pid]["$listed"] - 1
return {"success": True, "data": self.$ps[$pid]}
""",
    ),
    Method(
        key="notice",
        query=False,
        verbs=("send",),
        stem="$notice",
        feature="notice",
        text="Send a $O a $w_notice about a topic.",
        parameters=(
            OWNER_ID,
            Parameter(name="topic", kind="str", text="What the $w_notice is about.", values=("$topic0", "$topic1", "$topic2", "$topic3")),
        ),
        rules=("A $O gets at most one $w_notice a topic, and none once $w_o2.",),
        body=KNOWN_OWNER
        + CLOSED
        + """for record in self.$notices.values():
    if record["$oid"] == $oid and record["topic"] == topic:
        return {"success": False, "error": "The $O already has this $w_notice"}
self.sequence = self.sequence + 1
new_id = "MSG-" + str(self.sequence)
self.$notices[new_id] = {"$oid": $oid, "topic": topic, "day": self.today}
self.$os[$oid]["$notified"] = self.$os[$oid]["$notified"] + 1
return {"success": True, "data": self.$notices[new_id]}
""",
    ),
    Method(
        key="report",
        query=False,
        verbs=("record", "log", "create"),
        stem="$report",
        feature="report",
        text="Record the sum of $w_capacity over all $RS of a $P in a $w_report.",
        parameters=(PLACE_ID, Parameter(name="$total", kind="int", text="Sum of the $w_capacity of the $RS of the $P.")),
        rules=("A $P has at most one $w_report a day.",),
        body=KNOWN_PLACE
        + """for record in self.$reports.values():
    if record["$pid"] == $pid and record["day"] == self.today:
        return {"success": False, "error": "The $P already has a $w_report of today"}
if $total < 0:
    return {"success": False, "error": "The sum is negative"}
self.sequence = self.sequence + 1
new_id = "REP-" + str(self.sequence)
self.$reports[new_id] = {"$pid": $pid, "$total": $total, "day": self.today}
self.$ps[$pid]["last_$total"] = $total
return {"success": True, "data": self.$reports[new_id]}
""",
    ),
    Method(
        key="remove",
        query=False,
        verbs=("delete", "remove"),
        stem="$o",
        feature="remove",
        text="Delete a $O together with all $BS of theirs; the $w_units of current ones are given back.",
        parameters=(OWNER_ID,),
        rules=("A $O who is $w_o2 is kept for the records and cannot be deleted.",),
        body=KNOWN_OWNER
        + CLOSED
        + """for $bid in list(self.$bs):
    if self.$bs[$bid]["$oid"] == $oid:
        $rid = self.$bs[$bid]["$rid"]
        if self.$bs[$bid]["$bstate"] in ("$b0", "$b1"):
            self.$rs[$rid]["$used"] = self.$rs[$rid]["$used"] - self.$bs[$bid]["$units"]
        del self.$bs[$bid]
del self.$os[$oid]
return {"success": True, "data": $oid}
""",
    ),
)
