"""Configuration: one default each, errors that name the key and the cure."""

from pathlib import Path

import pytest

from envsched_gnn.config import Config, flatten, load_config, to_table, to_toml
from envsched_gnn.errors import ConfigError

KEYS = """
evaluate.every evaluate.samples evaluate.tasks
graph.cross_neighbors graph.embedding graph.embedding_batch graph.similarity graph.within_neighbors
model.chat_template model.dtype model.hidden_size model.kind model.layers model.lora_rank model.own_tools model.path
model.warm_start_batches model.warm_start_reward
pool.bfcl_graded pool.environment_rule pool.path pool.taught_share
pool.toolworld.cluster_environment pool.toolworld.cluster_pattern pool.toolworld.depth pool.toolworld.environments
pool.toolworld.held_out_environments pool.toolworld.held_out_tasks pool.toolworld.impossible pool.toolworld.max_operations
pool.toolworld.min_operations pool.toolworld.reward pool.toolworld.seed pool.toolworld.tasks pool.toolworld.trivial
predict.decline predict.half_life_long predict.half_life_short predict.learn_every predict.predictor predict.preset
predict.reconstruction predict.target predict.v_floor predict.weights
rollout.memory_mb rollout.num_rollouts rollout.seed rollout.skill_gain rollout.skill_start rollout.workers
run.device run.folder run.name run.policy run.seed run.steps
select.acquisition select.acquisition_bonus select.batch_size select.consecutive select.coverage_share
select.penalty select.quarantine_after
simulate.checks simulate.cluster_environment simulate.cluster_pattern simulate.drift simulate.environment_share
simulate.environment_skills simulate.environments simulate.gain_environment simulate.gain_own simulate.gain_pattern
simulate.held_out_environments simulate.held_out_tasks simulate.impossible simulate.operations simulate.pattern_share
simulate.patterns simulate.reward simulate.seed simulate.similarity_noise simulate.spread simulate.structure
simulate.success_start simulate.tasks simulate.together simulate.tokens simulate.tokens_a_second simulate.trivial
train.algorithm train.checkpoint_every train.gradient_checkpointing train.kl train.learning_rate train.loss_type
train.max_completion_tokens train.max_prompt_tokens train.max_turns train.micro_batch train.num_iterations train.scale_rewards
train.schedule train.shard train.temperature train.tool_error_budget train.top_p train.warmup_steps
vllm.max_model_length vllm.memory_share vllm.mode vllm.sleep vllm.tensor_parallel
"""
"""Every key that has a value by default. None have `select.exposure_scale`, `.penalty_threshold`, `.per_round` and `.rolling`."""


def test_the_keys_are_frozen() -> None:
    assert sorted(key for key, _ in flatten(to_table(Config()))) == KEYS.split()


def test_the_papers_defaults() -> None:
    config = Config()
    assert (config.select.batch_size, config.select.coverage_share, config.rollout.num_rollouts) == (64, 0.5, 8)
    assert (config.graph.within_neighbors, config.graph.cross_neighbors) == (6, 12)
    assert (config.predict.half_life_long, config.predict.half_life_short) == (8.0, 2.0)


def test_a_file_then_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[select]\nbatch_size = 8\npenalty = 1\n[run]\nname = "a"\n')
    config = load_config(path, ["select.batch_size=16", "run.name=b", "select.rolling=9", "pool.bfcl_graded=true"])
    assert (config.select.batch_size, config.run.name, config.select.rolling, config.pool.bfcl_graded) == (16, "b", 9, True)
    assert config.select.penalty == 1.0


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["select.batch_sise=3"], r"unknown key select\.batch_sise\. Did you mean select\.batch_size\?"),
        (["nothing=3"], "unknown key nothing"),
        (["select=3"], "select = 3: expected a table"),
        (["run.policy=mops"], r"policy 'mops': no such policy; expected one of uniform, .* dapo\. Did you mean 'mopps'\?"),
        (["select.batch_size=0"], "select.batch_size = 0: expected at least 1"),
        (["select.batch_size=many"], "select.batch_size = 'many': expected int"),
        (["select.batch_size=true"], "select.batch_size = True: expected int"),
        (["select.coverage_share=2"], "a share from 0 to 1"),
        (["select.batch_size"], "expected key=value"),
        (["simulate.enviroments=3"], r"unknown key simulate\.enviroments\. Did you mean simulate\.environments\?"),
        (["simulate.structure=1.5"], r"simulate\.structure = 1\.5: expected a share from 0 to 1"),
        (["simulate.impossible=0.8", "simulate.trivial=0.3"], r"simulate\.impossible \+ trivial = 1\.1: expected at most 1"),
        (["simulate.success_start=0"], r"simulate\.success_start = 0\.0: expected a probability between 0 and 1"),
        (["simulate.drift=-1"], r"simulate\.drift = -1\.0: expected a number from 0"),
        (["rollout.num_rollouts=1"], "one rollout has no variance"),
        (['run.name=""'], "run.name = '': expected the name of one folder"),
        (["run.name=.."], "expected the name of one folder"),
        (["run.name=a/b"], "run.name = 'a/b': expected the name of one folder; its parent is run.folder"),
        (['run.name="a\\nb"'], "expected the name of one folder"),
        (["select.exposure_scale=0"], r"select\.exposure_scale = 0\.0: expected a positive number of selections"),
        (["select.penalty=inf"], r"select\.penalty = inf: expected a weight from 0 to 1000"),
        (["select.penalty_threshold=nan"], "a similarity from 0 to 1"),
        (["rollout.skill_gain=inf"], "skill_gain = inf: expected a number from 0"),
    ],
)
def test_a_bad_setting_names_the_key_and_the_cure(overrides: list[str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        load_config(None, overrides)


def test_a_bad_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: no such file"):
        load_config(tmp_path / "none.toml")
    for content in (b"a = [", b"\xff\xfe\x00"):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=r"bad\.toml: not a TOML file"):
            load_config(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match=r"cannot be read.*Give the path of a TOML file"):
        load_config(tmp_path)


def test_toml_round_trip(tmp_path: Path) -> None:
    config = load_config(None, ['run.name="a \\"quoted\\" \\u00e9 \\U0001F600 name"', "select.per_round=3", "predict.v_floor=1e-5"])
    path = tmp_path / "c.toml"
    path.write_text(to_toml(to_table(config)), encoding="utf-8")
    assert load_config(path) == config
