"""Trainer, data set and scheduler that do not fit together are refused before anything starts, with what is missing."""

import pytest
from datasets import IterableDataset
from trl import GRPOConfig, GRPOTrainer

from envsched_gnn.errors import ConfigError
from envsched_gnn.schedule import EnvSched, Uniform
from envsched_gnn.train.trl.mixin import attach
from tests.schedule.small import graph_of
from tests.train.trl import helpers as tiny


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_device_train_batch_size": 52}, r"the pool has 12 tasks .* fewer than the 13 tasks of a round .* smaller"),
        ({"train_dataset": tiny.rows().remove_columns("task_id")}, r"columns \['prompt'\]; expected one named task_id"),
        ({"train_dataset": tiny.rows().select(range(7))}, r"no row for 'e1/t7', 'e1/t8', 'e2/t9' and 2 more"),
        ({"train_dataset": tiny.rows().select([*range(12), 3])}, r"rows 3 and 12 are both of task 'e0/t3'"),
        ({"max_steps": -1, "num_train_epochs": 1}, r"max_steps = -1: expected the number of updates"),
        (
            {"train_dataset": IterableDataset.from_generator(lambda: iter(tiny.rows()))},
            r"type IterableDataset; expected a datasets.Dataset",
        ),
        ({"shadow": True, "scheduler": Uniform(None, graph_of(tiny.ENVIRONMENTS))}, r"shadow = 'Uniform': expected a scheduler with"),
        ({"shadow": True, "per_device_train_batch_size": 52}, r"12 rows, fewer than the 13 tasks of a round"),
    ],
)
def test_parts_that_do_not_fit_are_named_at_construction(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        tiny.trainer(tmp_path, **changes)


def test_held_out_tasks_do_not_count(tmp_path):
    graph = graph_of([0, 0, 0, 1, 1], held_out=[True, False, False, False, True])
    scheduler = EnvSched(None, graph, batch_size=4)
    with pytest.raises(ConfigError, match="the pool has 3 tasks that may be trained on, fewer than the 4 tasks of a round"):
        tiny.trainer(tmp_path, scheduler=scheduler, train_dataset=tiny.rows(graph))


def test_a_batch_that_does_not_divide_by_the_group_size(tmp_path):
    with pytest.raises(ValueError, match=r"generation_batch_size \(14\) must be divisible by num_generations \(4\)"):
        tiny.config(tmp_path, GRPOConfig, per_device_train_batch_size=14)
    plain = tiny.trainer(tmp_path, GRPOTrainer)
    plain.num_generations = 3
    with pytest.raises(ConfigError, match="generation_batch_size = 16: expected a multiple of num_generations = 3"):
        attach(plain, tiny.scheduler())
