"""A small hand-made pool: a shop and a library whose tasks demand known operations."""

from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Check, Environment, Task, Verifier

SHOP = '''
class Shop:
    def __init__(self, init_config):
        self.orders = {}
        self.customers = {}
        self.today = 1

    def find_customer_by_name(self, name):
        """Find a customer by name."""
        return {"success": True, "data": [c for c in self.customers.values() if c["name"] == name]}

    def list_orders_of_customer(self, customer_id):
        if customer_id not in self.customers:
            return {"success": False, "error": "Unknown customer"}
        return {"success": True, "data": [o for o in self.orders.values() if o["customer_id"] == customer_id]}

    def get_order(self, order_id):
        return self.orders.get(order_id)

    def _order(self, order_id):
        order = self.orders.get(order_id)
        if order is None:
            raise KeyError("no such order")
        return order

    def update_order_status(self, order_id, status):
        """Set the status of an order."""
        order = self._order(order_id)
        if order["status"] == "cancelled":
            return {"success": False, "error": "The order is cancelled"}
        if status not in ("open", "shipped"):
            return {"success": False, "error": "No such status"}
        order["status"] = status
        return {"success": True}

    def create_order(self, order_id, customer_id, quantity):
        """Place an order."""
        if order_id in self.orders:
            return {"success": False, "error": "The order already exists"}
        if customer_id not in self.customers:
            return {"success": False, "error": "Unknown customer"}
        if quantity > self.customers[customer_id]["limit"]:
            return {"success": False, "error": "Too much"}
        self.orders[order_id] = {"customer_id": customer_id, "quantity": quantity, "status": "open"}
        return {"success": True}

    def delete_order(self, order_id):
        self._order(order_id)
        del self.orders[order_id]
        return {"success": True}

    def advance_day(self):
        self.today += 1
        return {"success": True}
'''

LIBRARY = """
class Library:
    def __init__(self, init_config):
        self.loans = {}
        self.members = {}

    def find_member_by_name(self, name):
        return {"success": True, "data": [m for m in self.members.values() if m["name"] == name]}

    def list_loans_of_member(self, member_id):
        if member_id not in self.members:
            return {"success": False, "error": "Unknown member"}
        return {"success": True, "data": [o for o in self.loans.values() if o["member_id"] == member_id]}

    def _loan(self, loan_id):
        loan = self.loans.get(loan_id)
        if loan is None:
            raise KeyError("no such loan")
        return loan

    def update_loan_state(self, loan_id, state):
        loan = self._loan(loan_id)
        if loan["state"] == "lost":
            return {"success": False, "error": "The loan is lost"}
        if state not in ("out", "back"):
            return {"success": False, "error": "No such state"}
        loan["state"] = state
        return {"success": True}
"""


def tool(name: str, description: str = "", **properties: dict) -> dict:
    """An OpenAI function schema."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {"properties": properties}}}


def check(body: str, description: str = "") -> Check:
    """A check function that returns an expression over `final_state`."""
    return Check(description=description, code=f"def check_func(final_state):\n    return {body}")


SHOP_ENVIRONMENT = Environment(
    env_id="shop",
    name="Shop",
    source=SHOP,
    tools=tuple(
        tool(name)
        for name in (
            "find_customer_by_name",
            "list_orders_of_customer",
            "get_order",
            "update_order_status",
            "create_order",
            "delete_order",
            "advance_day",
        )
    ),
)
LIBRARY_ENVIRONMENT = Environment(
    env_id="library",
    name="Library",
    source=LIBRARY,
    tools=tuple(tool(name) for name in ("find_member_by_name", "list_loans_of_member", "update_loan_state")),
)
SHOP_STATE = {"orders": {"O1": {"customer_id": "C1", "status": "open"}}, "customers": {"C1": {"name": "Ann", "limit": 3}}, "today": 1}
LIBRARY_STATE = {"loans": {"L1": {"member_id": "M1", "state": "out"}}, "members": {"M1": {"name": "Bob"}}}


def task(env_id: str, task_id: str, prompt: str, *checks: Check, state: object = None, gold: object = None) -> Task:
    """A task of the shop or the library."""
    initial = state if state is not None else SHOP_STATE if env_id == "shop" else LIBRARY_STATE
    return Task(env_id=env_id, task_id=task_id, prompt=prompt, initial_state=initial, verifier=Verifier(checks=checks), ground_truth=gold)


SHIP = task("shop", "ship", "Set Ann's order status to shipped.", check('final_state["orders"]["O1"]["status"] == "shipped"'))
PLACE = task("shop", "place", "Place order O2 for Ann.", check('"O2" in final_state["orders"]'))
DROP = task("shop", "drop", "Delete order O1.", check('"O1" not in final_state["orders"]'))
RETURN = task("library", "return", "Set Bob's loan state to back.", check('final_state["loans"]["L1"]["state"] == "back"'))
KEEP = task("library", "keep", "Do not lose the loan.", check('final_state["loans"]["L1"]["state"] != "lost"'))

POOL = Pool(environments=(SHOP_ENVIRONMENT, LIBRARY_ENVIRONMENT), tasks=(SHIP, RETURN, PLACE, KEEP, DROP), source="tests")
