"""What the pocket policy reads and writes: literal examples, every gold plan of a pool, arbitrary tokens, hostile pools."""

import json
import time
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Check, Verifier
from envsched_gnn.train.environments import play
from envsched_gnn.train.pocket.gold import gold_plans, referring
from envsched_gnn.train.pocket.language import Language, Reading
from envsched_gnn.train.workers import Job, WorkerPool
from tests.train.pocket.pools import SHOP_TOOLS, shop, tool, toolworld

LAMP = 'Sell 3 pieces of "Desk Lamp" to Ann Lee. Open the door 3 times, then 12 more.'


def read(pool: Pool, row: int = 0) -> tuple[Language, Reading]:
    language, task = Language(pool), pool.tasks[row]
    return language, language.read(pool.environment_of[task.env_id], task)


def plan_of(text: str, pool: Pool | None = None) -> list[dict]:
    language, reading = read(pool or shop([LAMP]))
    return language.plan(reading, language.encode(text.split(" ")))


def call(name: str, **arguments) -> dict:
    return {"name": name, "arguments": arguments}


def test_a_task_reads_its_tools_then_its_words_with_names_and_numbers_apart():
    language, reading = read(shop([LAMP]))
    assert " ".join(language.decode(reading.ids)) == (
        "find_item() sell_item() open_door() break_door() <task> sell k1 pieces of n1 to n2 open the door k1 times then k2 more <plan>"
    )
    assert reading.names == ["Desk Lamp", "Ann Lee"]
    assert reading.numbers == [3, 12]
    assert language.longest == (len(reading.ids), 0) == (21, 0)


def test_a_common_word_begins_no_name():
    """`Open` is a tool's; `Raise` only ever begins sentences, `Ann` stands within them too."""
    prompts = ["Open Ann Lee.", "Raise Ann Lee. Raise Bo Lee.", "- Raise Cy Lee\n- for Ann Lee", "Ann Lee, Ann Moe, Ann Roe."]
    pool = shop(prompts)
    assert [read(pool, row)[1].names for row in range(4)] == [
        ["Ann Lee"],
        ["Ann Lee", "Bo Lee"],
        ["Cy Lee", "Ann Lee"],
        ["Ann Lee", "Ann Moe", "Ann Roe"],
    ]


def test_what_can_be_written_without_being_read():
    language = Language(shop([LAMP]))
    references = [f"r{number}" for number in range(1, 41)]
    assert language.decode(language.free) == ["<end>", "|", "_", *references, "in", "parts", "whole"]


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        (
            "find_item() n1 sell_item() r1 k1 <end>",
            [call("find_item", title="Desk Lamp"), call("sell_item", item_id={"$result": 0}, amount=3)],
        ),
        ("sell_item() n2 k2 in _ parts", [call("sell_item", item_id="Ann Lee", amount=12, mode="in_parts")]),
        ("find_item() the door | times <end> open_door()", [call("find_item", title="the door", argument_0="times")]),
        ("the door n1 open_door()", [call("open_door")]),
        ("find_item() k2", [call("find_item", title="12")]),
        ("find_item() n3 r40", [call("find_item", title="n3", argument_0={"$result": 39})]),
        ("find_item() | | <pad>", [call("find_item", title="<pad>")]),
        ("<end> open_door()", []),
        ("", []),
    ],
)
def test_a_plan_is_read(text, plan):
    assert plan_of(text) == plan


def test_a_plan_is_written_as_it_is_read():
    language, reading = read(shop([LAMP]))
    plan = [call("find_item", title="Desk Lamp"), call("sell_item", item_id={"$result": 0}, amount=3, mode="in_parts"), call("open_door")]
    ids = language.write(reading, plan)
    assert " ".join(language.decode(ids)) == "find_item() n1 sell_item() r1 k1 in _ parts open_door() <end>"
    assert language.plan(reading, ids) == plan


@pytest.mark.parametrize(
    "wrong",
    [
        call("find_item", title="Oak Chair"),  # not in the instruction
        call("find_item", title=""),
        call("find_item", title="n1"),  # would be read as a name
        call("find_item", title=["Desk Lamp"]),
        call("sell_item", item_id={"$result": 40}),
        call("sell_item", item_id={"$result": 0}, amount=4),
        call("sell_item", item_id={"$result": 0}, amount=3.0),
        call("sell_item", item_id={"$result": 0}, amount=True),
        call("sell_item", item_id={"$result": 0}, mode="whole"),  # would be read as the amount
        call("sell_item", item_id={"$result": 0}, other="whole"),
        call("no_such_tool"),
    ],
)
def test_what_the_policy_cannot_write_is_no_lesson(wrong):
    language, reading = read(shop([LAMP]))
    assert language.write(reading, [wrong]) is None


def test_every_gold_plan_that_can_be_written_solves_its_task():
    pool = toolworld(environments=6, tasks=15, max_operations=3)
    language = Language(pool)
    with WorkerPool(1) as workers:
        plans = dict(gold_plans(pool, range(len(pool.tasks)), workers))
        written = {}
        for row, plan in plans.items():
            reading = language.read(pool.environment_of[pool.tasks[row].env_id], pool.tasks[row])
            ids = language.write(reading, plan)
            if ids is not None:
                assert language.plan(reading, ids) == plan
                written[row] = plan
        assert (len(pool.tasks), len(plans), len(written)) == (90, 90, 60)
        tasks = [pool.tasks[row] for row in written]
        requests = [[play([plan], 40)[0]] for plan in written.values()]
        jobs = [Job(environment=pool.environment_of[t.env_id], task=t, requests=r) for t, r in zip(tasks, requests, strict=True)]
        assert {outcome.reply["reward"] for *_, outcome in workers.run(jobs)} == {1.0}


def test_references_point_to_the_latest_call_that_found_the_value():
    calls = [call("a"), call("b", x="I-1"), call("c", x="I-1", y="", z=["I-1"])]
    assert referring(calls, ["I-1", "I-1", ""]) == [
        call("a"),
        call("b", x={"$result": 0}),
        call("c", x={"$result": 1}, y="", z=["I-1"]),
    ]


@cache
def example() -> tuple[Language, Reading]:
    return read(toolworld())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, example()[0].size - 1), max_size=60))
def test_any_tokens_are_some_plan(ids):
    language, reading = example()
    plan = language.plan(reading, ids)
    json.dumps(plan)
    assert len(plan) == sum(
        token.endswith("()") for token in language.decode(ids[: ids.index(language.end)] if language.end in ids else ids)
    )


@settings(max_examples=100, deadline=None)
@given(st.text(), st.lists(st.text(), unique=True, max_size=4), st.lists(st.integers(0, 90), max_size=30))
def test_any_prompt_and_any_tool_names_are_read(prompt, names, ids):
    language, reading = read(shop([prompt], tools=tuple(tool(name, x={"type": "string"}) for name in names)))
    plan = language.plan(reading, [row % language.size for row in ids])
    assert {step["name"] for step in plan} <= set(names)
    assert all(language.row(token) is not None for token in language.decode(reading.ids))


HOSTILE_TOOLS = (
    {"type": "function", "function": {"name": "bare"}},
    {"type": "function", "function": {"name": "none", "description": None, "parameters": None}},
    {"type": "function", "function": {"name": "listed", "parameters": {"properties": ["x"]}}},
    {
        "type": "function",
        "function": {"name": "any", "parameters": {"properties": {"x": True, "y": {"enum": 3, "type": ["string", "null"]}}}},
    },
    tool("two words", x={}),
    tool("odd()", x={}),
    tool(""),
    tool("<end>"),
    tool("n1"),
    tool("日本", x={"enum": ["ä ö", None, 3]}),
)


def test_odd_tools_are_tools_like_others():
    language, reading = read(shop(["Do it 2 times."], tools=HOSTILE_TOOLS))
    names = [entry["function"]["name"] for entry in HOSTILE_TOOLS]
    ids = [row for name in names for row in language.encode([f"{name}()", "k1"])]
    plan = language.plan(reading, ids)
    assert [step["name"] for step in plan] == names
    assert [step["arguments"] for step in plan[3:6]] == [{"x": 2}, {"x": 2}, {"x": 2}]
    assert plan[0]["arguments"] == {"argument_0": 2}
    assert language.write(reading, plan[3:6]) == [*ids[6:12], language.end]
    assert language.row("<unk>") not in reading.ids


def test_odd_prompts_are_read():
    names = " and ".join(f'"Name {number}"' for number in range(100))
    prompts = [
        "",
        "\n\t ",
        "Öffne die Tür für Zoë Müller, 部屋 и дверь ٣ ²",
        names,
        "9" * 5000,
        "k1 n2 r3 n" + "9" * 5000,
        "\ud800 \x00 <end> ()",
    ]
    pool = shop(prompts)
    language = Language(pool)
    texts = [" ".join(language.decode(read(pool, row)[1].ids[4:])) for row in range(len(prompts))]
    assert texts[0] == texts[1] == "<task> <plan>"
    assert texts[2] == "<task> öffne die tür für n1 部屋 и дверь k1 ² <plan>"
    assert texts[3] == "<task> " + " and ".join([*(f"n{number}" for number in range(1, 25)), *["<unk>"] * 76]) + " <plan>"
    assert texts[4] == f"<task> {'9' * 5000} <plan>"
    assert texts[6] == "<task> \ud800 end <plan>" or texts[6] == "<task> end <plan>"
    reading = read(pool, 3)[1]
    assert language.write(reading, [call("find_item", title="Name 23")]) is not None
    assert language.write(reading, [call("find_item", title="Name 24")]) is None
    assert language.plan(read(pool, 5)[1], language.encode(["find_item()", "n" + "9" * 5000, "r3"])) == [
        call("find_item", title="n" + "9" * 5000, argument_0={"$result": 2})
    ]


@pytest.mark.parametrize("text", ["9" * 20_000 + ".a", "A" * 20_000, "A a " * 5_000, 'A"' * 10_000, "A " * 10_000 + "a", "a-" * 10_000])
def test_long_prompts_take_no_longer_than_they_must(text):
    begin = time.process_time()
    language, reading = read(shop([text]))
    assert time.process_time() - begin < 2
    assert language.longest[0] == len(reading.ids)


def test_nothing_that_the_policy_may_not_see_is_in_its_words():
    pool = toolworld()
    secret = "zyzzyva 987654321"
    check = Check(description=secret, code=f"def check_func(s):\n    return s == '{secret}'")
    tasks = tuple(
        replace(
            t, verifier=Verifier(checks=(check,)), ground_truth=[call(secret, x=secret)], initial_state={secret: secret}, info={"x": secret}
        )
        for t in pool.tasks
    )
    environments = tuple(replace(e, source=f"# {secret}", state_schema=secret, licence=secret) for e in pool.environments)
    hidden, open_ = Language(replace(pool, tasks=tasks, environments=environments)), Language(pool)
    assert hidden.decode(range(hidden.size)) == open_.decode(range(open_.size))
    for task, bare in zip(tasks, pool.tasks, strict=True):
        environment = pool.environment_of[task.env_id]
        assert hidden.read(environment, task) == open_.read(environment, bare)


def test_tools_that_are_shown_later_are_not_read_yet():
    pool = shop(["Sell it."])
    later = replace(pool, tasks=(replace(pool.tasks[0], info={"withheld_tools": ["open_door"], "turns": [["Sell", "it."], ["More."]]}),))
    language, reading = read(later)
    assert " ".join(language.decode(reading.ids)) == "find_item() sell_item() break_door() <task> sell it <plan>"
    assert len(SHOP_TOOLS) == 4


@pytest.mark.data
def test_real_environments_are_read(data_dir):
    pool = Pool.load(data_dir / "envscaler")
    language = Language(pool)
    assert (len(pool.tasks), language.size, language.longest[0]) == (87, 2855, 340)
    lengths = [len(language.read(pool.environment_of[task.env_id], task).ids) for task in pool.tasks]
    assert (max(lengths), lengths.index(max(lengths))) == language.longest


@pytest.mark.bfcl
def test_tasks_of_several_turns_are_read():
    pytest.importorskip("bfcl_eval")
    pool = Pool.load("bfcl")
    language = Language(pool)
    assert len(pool.tasks) == 800
    assert language.longest[0] < 1024
