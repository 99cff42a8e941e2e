"""The read-only tools.

Knows: templates only; see `tool` for their form. Does not know: any world.

Scheduled operations that fell due are carried out before anything is read, as systems with lazy settlement do.
"""

from envsched_gnn.pool.toolworld.tool import Method, Parameter

OWNER_ID = Parameter(name="$oid", kind="str", text="Identifier of the $O.")
RESOURCE_ID = Parameter(name="$rid", kind="str", text="Identifier of the $R.")
PLACE_ID = Parameter(name="$pid", kind="str", text="Identifier of the $P.")
BOOKING_ID = Parameter(name="$bid", kind="str", text="Identifier of the $B.")

QUERIES: tuple[Method, ...] = (
    Method(
        key="find_owner",
        query=True,
        verbs=("find", "search", "lookup"),
        stem="${o}_by_name",
        text="Find every $O with exactly this name.",
        parameters=(Parameter(name="name", kind="str", text="Full name of the $O."),),
        body="""
carry_out_due(self)
matches = [record for record in self.$os.values() if record["name"] == name]
if not matches:
    return {"success": False, "error": "No $O has this name"}
return {"success": True, "data": matches}
""",
    ),
    Method(
        key="get_owner",
        query=True,
        verbs=("get", "fetch", "retrieve"),
        stem="$o",
        text="Get one $O with $w_tier, counters and $ostate.",
        parameters=(OWNER_ID,),
        body="""
carry_out_due(self)
if $oid not in self.$os:
    return {"success": False, "error": "Unknown $O"}
return {"success": True, "data": self.$os[$oid]}
""",
    ),
    Method(
        key="find_resource",
        query=True,
        verbs=("find", "search", "lookup"),
        stem="${r}_by_title",
        text="Find every $R with exactly this $title.",
        parameters=(Parameter(name="$title", kind="str", text="Name of the $R."),),
        body="""
carry_out_due(self)
matches = [record for record in self.$rs.values() if record["$title"] == $title]
if not matches:
    return {"success": False, "error": "No $R has this name"}
return {"success": True, "data": matches}
""",
    ),
    Method(
        key="get_resource",
        query=True,
        verbs=("get", "fetch", "retrieve"),
        stem="$r",
        text="Get one $R with its $w_rate, $w_capacity and $w_used.",
        parameters=(RESOURCE_ID,),
        body="""
carry_out_due(self)
if $rid not in self.$rs:
    return {"success": False, "error": "Unknown $R"}
return {"success": True, "data": self.$rs[$rid]}
""",
    ),
    Method(
        key="list_category",
        query=True,
        verbs=("list",),
        stem="${rs}_by_$category",
        text="List the $RS of one $w_category.",
        parameters=(Parameter(name="$category", kind="str", text="The $w_category."),),
        body="""
carry_out_due(self)
matches = [record for record in self.$rs.values() if record["$category"] == $category]
return {"success": True, "data": matches}
""",
    ),
    Method(
        key="list_place",
        query=True,
        verbs=("list",),
        stem="${rs}_in_$p",
        text="List the $RS that belong to a $P.",
        parameters=(PLACE_ID,),
        body="""
carry_out_due(self)
if $pid not in self.$ps:
    return {"success": False, "error": "Unknown $P"}
matches = [record for record in self.$rs.values() if record["$pid"] == $pid]
return {"success": True, "data": matches}
""",
    ),
    Method(
        key="find_place",
        query=True,
        verbs=("find", "search", "lookup"),
        stem="${p}_by_name",
        text="Find every $P with exactly this name.",
        parameters=(Parameter(name="name", kind="str", text="Name of the $P."),),
        body="""
carry_out_due(self)
matches = [record for record in self.$ps.values() if record["name"] == name]
if not matches:
    return {"success": False, "error": "No $P has this name"}
return {"success": True, "data": matches}
""",
    ),
    Method(
        key="list_bookings",
        query=True,
        verbs=("list",),
        stem="${bs}_of_$o",
        text="List all $BS of one $O, past ones included.",
        parameters=(OWNER_ID,),
        body="""
carry_out_due(self)
if $oid not in self.$os:
    return {"success": False, "error": "Unknown $O"}
matches = [record for record in self.$bs.values() if record["$oid"] == $oid]
return {"success": True, "data": matches}
""",
    ),
    Method(
        key="get_booking",
        query=True,
        verbs=("get", "fetch", "retrieve"),
        stem="$b",
        text="Get one $B with its $bstate.",
        parameters=(BOOKING_ID,),
        body="""
carry_out_due(self)
if $bid not in self.$bs:
    return {"success": False, "error": "Unknown $B"}
return {"success": True, "data": self.$bs[$bid]}
""",
    ),
    Method(
        key="list_staff",
        query=True,
        verbs=("list",),
        stem="${ss}_by_$rolefield",
        text="List the $SS of one $rolefield, with whether each is available ($duty).",
        parameters=(Parameter(name="$rolefield", kind="str", text="The $rolefield, for example $approver."),),
        body="""
carry_out_due(self)
matches = [record for record in self.$ss.values() if record["$rolefield"] == $rolefield]
if not matches:
    return {"success": False, "error": "Nobody has this $rolefield"}
return {"success": True, "data": matches}
""",
    ),
)
