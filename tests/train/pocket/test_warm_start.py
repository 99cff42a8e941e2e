"""The policy before RL: what teaches it, when lessons end, that it is kept, and what is told where nothing can be taught."""

from dataclasses import replace

import pytest
import torch

from envsched_gnn.config import PoolConfig
from envsched_gnn.config_training import ModelConfig
from envsched_gnn.errors import EnvSchedError, PoolError
from envsched_gnn.pool.load import load_pool
from envsched_gnn.pool.taught import with_taught
from envsched_gnn.train.pocket.language import Language
from envsched_gnn.train.pocket.model import completion_logprobs
from envsched_gnn.train.pocket.warm_start import lessons_of, untaught_model, warm_model
from envsched_gnn.train.workers import WorkerPool
from tests.train.pocket.pools import breaking, shop, tool, toolworld

SMALL = ModelConfig(hidden_size=32, layers=1, warm_start_batches=60, warm_start_reward=0.5)
SAMPLING = (1.0, 16)


@pytest.fixture
def workers():
    with WorkerPool(1) as pool:
        yield pool


def closed() -> WorkerPool:
    workers = WorkerPool(1)
    workers.close()
    return workers


def same(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def never(model) -> float:
    return 0.0


def test_lessons_are_the_gold_plans_of_the_taught_tasks(workers):
    pool = toolworld()
    language = Language(pool)
    lessons = lessons_of(pool, language, workers)
    assert (sum(task.taught for task in pool.tasks), len(lessons)) == (18, 12)
    taught = [language.read(pool.environment_of[task.env_id], task).ids for task in pool.tasks if task.taught]
    places = [taught.index(prompt) for prompt, _ in lessons]
    assert places == sorted(places)
    assert all(plan[-1] == language.end and language.end not in plan[:-1] for _, plan in lessons)


def test_the_lessons_make_the_gold_plans_likely(workers, tmp_path):
    pool = toolworld()
    language = Language(pool)
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    model = warm_model(pool, language, SMALL, workers, never, tmp_path, SAMPLING)
    assert torch.equal(torch.random.get_rng_state(), state)
    prompts, plans = zip(*lessons_of(pool, language, workers), strict=True)
    means = []
    for policy in (untaught_model(language, SMALL), model):
        logprobs, mask = completion_logprobs(policy, prompts, plans)
        means.append(float(logprobs.detach().sum() / mask.sum()))
    assert means[0] < -4
    assert means[1] > -1.5


def test_lessons_end_when_enough_is_solved_and_the_policy_is_kept(workers, tmp_path):
    pool = toolworld()
    language, looks = Language(pool), []

    def solved(model) -> float:
        looks.append(1)
        return 0.5 * (len(looks) == 2)

    model = warm_model(pool, language, SMALL, workers, solved, tmp_path, SAMPLING)
    assert len(looks) == 2
    assert same(model, warm_model(pool, language, SMALL, closed(), solved, tmp_path, SAMPLING))
    assert len(looks) == 2
    for other in ({"config": replace(SMALL, warm_start_reward=0.4)}, {"sampling": (0.9, 16)}, {"pool": toolworld(seed=1)}):
        asked = {"pool": pool, "config": SMALL, "sampling": SAMPLING} | other
        with pytest.raises(EnvSchedError, match="the worker pool is closed"):
            warm_model(asked["pool"], language, asked["config"], closed(), solved, tmp_path, asked["sampling"])


def test_a_damaged_cache_is_made_again_and_none_at_all_does_no_harm(workers, tmp_path):
    pool = toolworld(environments=2)
    language = Language(pool)
    short = replace(SMALL, warm_start_batches=2)
    model = warm_model(pool, language, short, workers, never, tmp_path / "cache", SAMPLING)
    (file,) = (tmp_path / "cache").glob("*/step-000000.pt")
    whole = file.read_bytes()
    file.write_bytes(whole[:500])
    assert same(model, warm_model(pool, language, short, workers, never, tmp_path / "cache", SAMPLING))
    assert file.read_bytes() == whole
    (tmp_path / "file").write_text("no folder")
    assert same(model, warm_model(pool, language, short, workers, never, tmp_path / "file", SAMPLING))


def test_tools_with_like_names_begin_alike():
    names = ("find_item", "find_zone", "delete_item", "close")
    language = Language(shop(["Sell it."], tools=tuple(tool(name) for name in names)))
    wide = replace(SMALL, hidden_size=256)
    table = untaught_model(language, wide).get_input_embeddings().weight.detach()
    rows = [table[language.row(f"{name}()")] for name in names]
    alike = torch.nn.functional.cosine_similarity(torch.stack(rows)[:, None], torch.stack(rows)[None], dim=-1)
    assert alike[0, 1] > 0.3
    assert alike[0, 2] > 0.3
    assert alike[1, 2].abs() < 0.2
    assert alike[0, 3].abs() < 0.2
    assert same(untaught_model(language, SMALL), untaught_model(language, SMALL))


@pytest.mark.parametrize(
    "pool",
    [
        toolworld(tasks=1),
        shop(["Sell it."] * 4),
        with_taught(shop(["Sell it."] * 4), 0.5),  # no gold
        replace(with_taught(shop(["Sell it."]), 0.9), source="odd"),
        breaking(toolworld(environments=1), "__init__"),
    ],
    ids=["none taught", "none set aside", "no gold", "one task", "broken"],
)
def test_a_pool_that_teaches_nothing_is_refused(pool, workers, tmp_path):
    text = r"no task that is set aside to teach the pocket model has a gold trajectory .* Raise pool\.taught_share"
    with pytest.raises(PoolError, match=text):
        warm_model(pool, Language(pool), SMALL, workers, never, tmp_path, SAMPLING)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "gold", ["text", {"name": "open_door"}, [], [[]], ["open_door"], [{"name": "open_door"}], 3, [{"name": "gone", "arguments": {}}]]
)
def test_gold_of_an_odd_form_teaches_nothing(gold, workers):
    pool = with_taught(shop(["Open it."] * 2), 0.5)
    odd = replace(pool, tasks=tuple(replace(task, ground_truth=gold) for task in pool.tasks))
    with pytest.raises(PoolError, match="no task that is set aside"):
        lessons_of(odd, Language(odd), workers)


def test_one_lesson_is_enough(workers):
    pool = with_taught(shop(["Open it."] * 2), 0.5)
    gold = [{"name": "open_door", "arguments": {}}]
    pool = replace(pool, tasks=tuple(replace(task, ground_truth=gold) for task in pool.tasks))
    language = Language(pool)
    assert [language.decode(plan) for _, plan in lessons_of(pool, language, workers)] == [["open_door()", "<end>"]]


@pytest.mark.data
def test_real_environments_have_no_gold(data_dir, workers):
    pool = load_pool(PoolConfig(path=str(data_dir / "envscaler"), taught_share=0.5))
    with pytest.raises(PoolError, match="no task that is set aside"):
        lessons_of(pool, Language(pool), workers)


@pytest.mark.bfcl
def test_gold_of_several_turns_teaches_nothing(workers):
    pytest.importorskip("bfcl_eval")
    pool = load_pool(PoolConfig(path="bfcl", taught_share=0.5))
    with pytest.raises(PoolError, match="no task that is set aside"):
        lessons_of(pool, Language(pool), workers)
