"""Plans played by a Player get what each would get alone; what is remembered and what fails."""

import json

import pytest

from envsched_gnn.train.environments import play
from envsched_gnn.train.pocket import play as module
from envsched_gnn.train.pocket.play import Player
from envsched_gnn.train.workers import Job, WorkerPool
from tests.train.pocket.pools import breaking, shop

FIND = {"name": "find_item", "arguments": {"title": "Desk Lamp"}}
SELL = {"name": "sell_item", "arguments": {"item_id": {"$result": 0}}}
OPEN = {"name": "open_door", "arguments": {}}
BREAK = {"name": "break_door", "arguments": {}}
SOLVED, SOLD_NOTHING, FAILED = [FIND, SELL], [SELL], [FIND, BREAK, SELL]
PLANS = [[SOLVED, [], SOLVED, SOLD_NOTHING], [FAILED, SOLVED, FAILED, [FIND, SELL, SELL]], [[OPEN], [OPEN], [OPEN], [OPEN]], []]


class Counting(WorkerPool):
    """Counts episodes that are executed, and messages."""

    played = messages = 0

    def run(self, jobs):
        self.played += sum(len(request["episodes"]) for job in jobs for request in job.requests)
        self.messages += sum(len(job.requests) for job in jobs)
        return super().run(jobs)


@pytest.fixture
def workers():
    with Counting(1) as pool:
        yield pool


def rewards(outcomes):
    return [outcome.reply.get("reward") for outcome in outcomes]


def test_each_plan_gets_what_it_would_get_alone(workers):
    pool = shop(["Sell it."] * 4)
    got = dict(Player(pool, workers).play([0, 1, 2, 3], PLANS))
    assert {position: rewards(outcomes) for position, outcomes in got.items()} == {
        0: [1.0, 0.0, 1.0, 0.0],
        1: [None, 1.0, None, 0.0],
        2: [0.0] * 4,
        3: [],
    }
    assert workers.played == 3 + (3 + 3) + 1, "of the task where one fails, each is played once more, apart"
    assert workers.messages == 3 + 3
    for position, plans in enumerate(PLANS):
        for plan, outcome in zip(plans, got[position], strict=True):
            with WorkerPool(1) as fresh:
                job = Job(environment=pool.environments[0], task=pool.tasks[position], requests=[play([plan], 40)[0]])
                ((_, _, alone),) = fresh.run([job])
            assert (alone.status, alone.reply.get("reward")) == (outcome.status, outcome.reply.get("reward"))


def test_what_was_played_is_remembered_and_what_failed_is_not(workers):
    player = Player(shop(["Sell it."] * 4), workers)
    first = dict(player.play([0, 1, 2, 3], PLANS))
    again = dict(player.play([3, 2, 1, 0], PLANS[::-1]))
    assert workers.played == 10 + 1
    for position in range(4):
        assert rewards(again[3 - position]) == rewards(first[position])
    assert {outcome.status for outcome in again[2]} == {"ok", "crashed"}
    assert again[2][0].detail == first[1][0].detail != ""


def test_tasks_share_no_verdicts(workers):
    """The same plan in two tasks is two plans; a task that stands twice has its plans once more."""
    player = Player(shop(["Sell it.", "Leave it."]), workers)
    assert [rewards(outcomes) for _, outcomes in sorted(player.play([0, 1, 0], [[SOLVED]] * 3))] == [[1.0]] * 3
    assert workers.played == 3
    dict(player.play([0, 1, 0], [[SOLVED]] * 3))
    assert workers.played == 3


def test_plans_that_differ_in_an_argument_are_different(workers):
    player = Player(shop(["Sell it."]), workers)
    other = [FIND, {"name": "sell_item", "arguments": {"item_id": "I-2"}}]
    assert rewards(next(player.play([0], [[SOLVED, other]]))[1]) == [1.0, 0.0]


def test_a_plan_beyond_the_limit_is_cut_and_truncated(workers):
    player = Player(shop(["Sell it."], max_turns=2), workers)
    plans = [[*SOLVED, SELL], SOLVED, [FIND, OPEN, SELL]]
    for _ in range(2):
        ((_, outcomes),) = player.play([0], [plans])
        assert [(outcome.status, outcome.reply["reward"]) for outcome in outcomes] == [("truncated", 1.0), ("ok", 1.0), ("truncated", 0.0)]
    assert workers.played == 3


def test_the_oldest_verdicts_are_forgotten_first(workers, monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 3)
    player = Player(shop(["Sell it."] * 3), workers)
    for row in range(3):
        dict(player.play([row], [[SOLVED, []]]))
    assert workers.played == 6
    assert [row for row, _ in player._verdicts] == [1, 2, 2]
    assert json.loads(next(key for _, key in player._verdicts)) == []
    assert rewards(dict(player.play([0], [[SOLVED, []]]))[0]) == [1.0, 0.0]
    assert workers.played == 8


def test_an_environment_that_never_starts_fails_every_rollout(workers):
    pool = breaking(shop(["Sell it."]), "__init__")
    ((_, outcomes),) = Player(pool, workers).play([0], [[SOLVED, []]])
    assert [outcome.status for outcome in outcomes] == ["crashed", "crashed"]
    assert all("SystemExit" in outcome.detail for outcome in outcomes)


def test_tasks_without_news_come_first_and_an_unfinished_play_is_forgotten(workers):
    player = Player(shop(["Sell it."] * 2), workers)
    dict(player.play([1], [[SOLVED]]))
    playing = player.play([0, 1], [[SOLVED], [SOLVED]])
    assert next(playing)[0] == 1
    playing.close()
    assert len(player._verdicts) == 1
    assert rewards(dict(player.play([0], [[SOLVED]]))[0]) == [1.0]
