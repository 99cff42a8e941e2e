"""Extraction by a language model, against a real HTTP server that speaks the protocol."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from envsched_gnn.errors import ConfigError
from envsched_gnn.features.abstract import AbstractRecord
from envsched_gnn.features.build import build_features
from envsched_gnn.features.llm import Endpoint, Extraction, extract_records, to_record
from tests.features.shop import POOL

GOOD = {"ops": ["lookup", "update"], "gates": ["temporal"], "deps": [[0, 1]]}


class Model:
    """Answers request number n with `answer(n)`: a chat message, or (status, body)."""

    def __init__(self, answer: Callable[[int], object]) -> None:
        self.answer = answer
        self.requests: list[dict] = []
        self.keys: list[str | None] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                model.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                model.keys.append(self.headers["Authorization"])
                answer = model.answer(len(model.requests) - 1)
                status, body = answer if isinstance(answer, tuple) else (200, json.dumps({"choices": [{"message": {"content": answer}}]}))
                self.send_response(status if self.path == "/v1/chat/completions" else 404)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def extract(self, cache: Path, attempts: int = 2) -> Extraction:
        port = self.server.server_address[1]
        endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model="m", key_variable="TEST_KEY", attempts=attempts, timeout=10)
        return extract_records(POOL, endpoint, cache)


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[int], object]], Model]]:
    models: list[Model] = []

    def start(answer: Callable[[int], object]) -> Model:
        models.append(Model(answer))
        return models[-1]

    yield start
    for model in models:
        model.server.shutdown()
        model.server.server_close()
        model.thread.join()


def test_records_are_cached_and_used(serve: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "secret")
    model = serve(lambda n: f"```json\n{json.dumps(GOOD)}\n```")
    extraction = model.extract(tmp_path)
    assert extraction.failed == {}
    record = extraction.records["shop/ship"]
    assert (record.ops, record.gates, record.deps) == (("lookup", "update"), ("temporal",), (("lookup", "update"),))
    assert "checks>=1" in record.reward
    assert (len(model.requests), set(model.keys)) == (5, {"Bearer secret"})
    assert model.extract(tmp_path) == extraction
    assert len(model.requests) == 5
    assert build_features(POOL, records=extraction.records).records[0] == record


def test_damaged_cache_is_asked_again(serve: Callable, tmp_path: Path) -> None:
    model = serve(lambda n: json.dumps(GOOD))
    model.extract(tmp_path)
    next(tmp_path.iterdir()).write_text("{half")
    assert model.extract(tmp_path).failed == {}
    assert len(model.requests) == 6
    assert model.keys[0] is None


def test_retries_then_leaves_the_task_to_the_static_record(serve: Callable, tmp_path: Path) -> None:
    bad = json.dumps({**GOOD, "ops": ["dance", "update"]})
    model = serve(lambda n: bad if n in (0, 2, 3) else json.dumps(GOOD))
    extraction = model.extract(tmp_path)
    assert list(extraction.failed) == ["library/return"]
    assert "2 attempts" in extraction.failed["library/return"]
    assert "'dance'" in extraction.failed["library/return"]
    assert len(extraction.records) == 4
    assert build_features(POOL, records=extraction.records).record_index.shape == (5,)


@pytest.mark.parametrize("answer", [(500, "down"), (200, "{}"), (200, "no json"), "prose", "[" * 100_000])
def test_endpoint_that_never_answers_well(serve: Callable, tmp_path: Path, answer: object) -> None:
    extraction = serve(lambda n: answer).extract(tmp_path, attempts=1)
    assert extraction.records == {}
    assert len(extraction.failed) == 5
    assert list(tmp_path.iterdir()) == []


def test_no_server(tmp_path: Path) -> None:
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", model="m", attempts=1, timeout=2)
    assert "127.0.0.1:9" in extract_records(POOL, endpoint, tmp_path).failed["shop/ship"]


def test_gold_is_never_sent(serve: Callable, tmp_path: Path) -> None:
    model = serve(lambda n: json.dumps(GOOD))
    model.extract(tmp_path)
    question = json.loads(model.requests[0]["messages"][1]["content"])
    assert set(question) == {"tools", "rules", "instruction", "checks"}


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {"ops": [], "gates": []},
        {**GOOD, "more": 1},
        {**GOOD, "ops": "lookup"},
        {**GOOD, "ops": [["lookup"], "update"]},
        {**GOOD, "gates": ["moat"]},
        {**GOOD, "deps": [[1, 0]]},
        {**GOOD, "deps": [[0, 2]]},
        {**GOOD, "deps": [[0, True]]},
        {**GOOD, "deps": {}},
        {**GOOD, "ops": ["lookup"] * 201},
    ],
)
def test_strict_validation(answer: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        to_record(answer, AbstractRecord())


def test_endpoint_needs_an_address() -> None:
    with pytest.raises(ConfigError, match="base_url"):
        Endpoint(base_url="localhost:8000", model="m")
    with pytest.raises(ConfigError, match="attempts"):
        Endpoint(base_url="http://localhost", model="m", attempts=0)
