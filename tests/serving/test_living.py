"""A server over its life: under load, stopped, wounded, loaded again."""

import concurrent.futures
import re
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import vitrail
from tests.serving.conftest import make_model
from tests.serving.running import Running, picture, raw_connection, running, started
from tests.serving.test_batching import kill
from vitrail.cli import main
from vitrail.serving.computing import Loaded


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that takes 0.2 s for each batch."""
    compute = Loaded.__call__

    def slowly(self: Loaded, task: Any, contents: Sequence[Any]) -> Any:
        time.sleep(0.2)
        return compute(self, task, contents)

    monkeypatch.setattr(Loaded, "__call__", slowly)


def ask(server: Running, number: int, **options: Any) -> httpx.Response:
    return server.post("/v1/predict" + options.pop("query", ""), content=picture(number), **options)


def test_beyond_the_queue_clients_are_told_when_to_come_back(tiny: Path, slow: None) -> None:
    with (
        running(tiny, batch_size=2, queue=6, max_pictures=4) as server,
        concurrent.futures.ThreadPoolExecutor(30) as pool,
    ):
        answers = list(pool.map(lambda i: ask(server, i), range(30)))
        statuses = {answer.status_code for answer in answers}
        assert statuses == {200, 429}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert "the queue is full" in refused.json()["error"]
        assert ask(server, 0).status_code == 200  # and it goes on
        assert server.get("/metrics").text.count('vitrail_rejects_total{reason="queue"}') == 1


def test_a_request_beyond_its_deadline_gets_504(tiny: Path, slow: None) -> None:
    with running(tiny, deadline=10) as server:
        began = time.monotonic()
        answer = ask(server, 0, query="?timeout=0.05")
        assert answer.status_code == 504
        assert time.monotonic() - began < 5
        assert ask(server, 0).status_code == 200


def test_pictures_of_many_requests_go_through_the_model_together(tiny: Path, slow: None) -> None:
    with running(tiny, batch_size=8) as server, concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda i: ask(server, i), range(16)))
        assert {answer.status_code for answer in answers} == {200}
        count = re.search(r"vitrail_batch_pictures_count\S* (\d+)", server.get("/metrics").text)
        assert count is not None
        assert int(count[1]) <= 8


def test_every_client_gets_its_own_answer(server: Running, classifier: vitrail.Classifier) -> None:
    wanted = classifier.logits([picture(i) for i in range(40)]).softmax(-1).max(-1).values.tolist()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        scores = list(pool.map(lambda i: ask(server, i).json()["predictions"][0]["score"], range(40)))
    np.testing.assert_allclose(scores, wanted, atol=1e-5)


def test_a_client_that_leaves_does_not_keep_its_place(tiny: Path, slow: None) -> None:
    with running(tiny, batch_size=1) as server:
        data = picture()
        request = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data
        leaving = [raw_connection(server.port) for _ in range(8)]
        for connection in leaving:
            connection.sendall(request)
        time.sleep(0.1)
        for connection in leaving:
            connection.close()
        assert ask(server, 1).status_code == 200
        computed = re.search(r"vitrail_pictures_total\S* (\d+)", server.get("/metrics").text)
        assert computed is not None
        assert int(computed[1]) <= 5  # of nine


def test_a_model_that_never_answers_does_not_keep_the_server_from_ending(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    computing, enough = threading.Event(), threading.Event()
    compute = Loaded.__call__

    def stuck(self: Loaded, task: Any, contents: Sequence[Any]) -> Any:
        computing.set()
        enough.wait(60)
        return compute(self, task, contents)

    monkeypatch.setattr(Loaded, "__call__", stuck)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool, running(tiny, stop_seconds=1) as server:
            in_flight = pool.submit(ask, server, 0)
            assert computing.wait(30)
            began = time.monotonic()
        assert time.monotonic() - began < 10
        with pytest.raises(httpx.HTTPError):
            in_flight.result().raise_for_status()
    finally:
        enough.set()
    assert "a model still computes after 1 s: it is left" in capfd.readouterr().err


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_killed_model_thread_gives_503_and_comes_back(tiny: Path, slow: None) -> None:
    with running(tiny) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        batcher = server.app.models.find("tiny").current.batcher
        in_flight = pool.submit(ask, server, 0)
        time.sleep(0.15)
        kill(batcher.thread)
        lost = in_flight.result()
        assert lost.status_code == 503
        assert lost.headers["retry-after"] == "1"
        began = time.monotonic()
        while ask(server, 1).status_code != 200:
            assert time.monotonic() - began < 10
        assert server.get("/readyz").status_code == 200
        assert 'vitrail_model_deaths_total{model="tiny"} 1.0' in server.get("/metrics").text


def test_a_model_is_loaded_again_without_dropping_a_request(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", seed=0)
    scores = [vitrail.load(folder).predict(picture(0))[0].score]
    found: list[tuple[int, int, float]] = []
    stop = threading.Event()

    def client() -> None:
        while not stop.is_set():
            answer = ask(server, 0)
            content = answer.json()
            found.append((answer.status_code, content["version"], content["predictions"][0]["score"]))

    with running(folder, watch=True) as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client) for _ in range(4)]
        for seed in (1, 2):
            make_model(folder, seed=seed)
            scores.append(vitrail.load(folder).predict(picture(0))[0].score)
            began = time.monotonic()
            while server.get("/v1/model").json()["version"] != seed + 1:
                assert time.monotonic() - began < 20
                time.sleep(0.1)
        time.sleep(0.2)
        stop.set()
        for one in clients:
            one.result()
    assert {status for status, _, _ in found} == {200}
    assert {version for _, version, _ in found} == {1, 2, 3}
    for _, version, score in found:
        assert score == pytest.approx(scores[version - 1], abs=1e-5)


def test_sigterm_with_50_requests_in_flight_gives_50_answers_and_exit_0(tiny: Path) -> None:
    with started(tiny, "--batch-size", 1) as server, concurrent.futures.ThreadPoolExecutor(50) as pool:
        large = picture(0, (1500, 1000))  # its decoding takes a while

        def one(_: int) -> int:
            return httpx.post(f"{server.url}/v1/predict", content=large, timeout=60, verify=False).status_code

        waiting = [pool.submit(one, i) for i in range(50)]
        while _metric(server.url, "vitrail_connections") + sum(one.done() for one in waiting) < 50:
            time.sleep(0.01)
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        assert [answer.result() for answer in waiting] == [200] * 50
        assert server.process.wait(30) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/healthz")


def _metric(url: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)", httpx.get(f"{url}/metrics", verify=False).text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_the_command_says_where_it_serves_and_reloads_on_sighup(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "my model")
    with started(folder) as server:
        assert "this machine alone can reach it" in server.lines[-1]
        assert "model my_model: 10 classes" in server.lines[0]
        make_model(folder, seed=1)
        server.process.send_signal(signal.SIGHUP)
        began = time.monotonic()
        while httpx.get(f"{server.url}/v1/model").json()["version"] != 2:
            assert time.monotonic() - began < 20
            time.sleep(0.1)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 0


def test_a_token_is_wanted_of_everything_but_the_page_and_health(tiny: Path) -> None:
    token = "a-token-of-some-length"
    with running(tiny, token=token) as server:
        for path in ("/v1/model", "/metrics", "/v1/examples", "/v2/models/tiny", "/nothing"):
            assert server.get(path).status_code == 401
            assert server.get(path).headers["www-authenticate"] == "Bearer"
            assert server.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
            assert server.get(path, headers={"authorization": f"Bearer {token}"}).status_code in (200, 404)
        assert ask(server, 0).status_code == 401
        assert ask(server, 0, headers={"authorization": f"bearer {token}"}).status_code == 200
        for path in ("/", "/healthz", "/readyz", "/docs", "/openapi.json"):
            assert server.get(path).status_code == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{tiny}", "--port", "99999"], "port=99999 is not a port"),
        (["{tiny}", "--host", "no.such.host.invalid"], "the address no.such.host.invalid cannot be used"),
        (["{tiny}", "--token-file", "{tmp}/absent"], "the token cannot be read"),
        (["{tiny}", "--token-file", "{tmp}/short"], "at least 16 characters"),
        (["{tiny}", "--batch-size", "0"], "batch_size=0 must be above 0"),
        (["{tiny}", "--engine", "steam"], "there is no engine steam"),
        (["{tiny}", "--examples", "{tmp}/absent"], "there is no folder"),
        (["{tmp}/absent"], "give a model folder or a checkpoint file"),
        (["a/b={tiny}", "c={tiny}"], "a model cannot be called 'a/b'"),
        (["{tiny}", "{tiny}"], "two models are called tiny"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(
    arguments: list[str], words: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short").write_text("abc")
    filled = [argument.format(tiny=tiny, tmp=tmp_path) for argument in arguments]
    extra = [] if "--port" in filled else ["--port", "0"]
    assert main(["serve", *filled, *extra]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_a_port_that_is_taken_is_told(server: Running, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tiny), "--port", str(server.port)]) == 1
    assert "choose another with --port" in capsys.readouterr().err


def test_bodies_on_their_way_count_for_a_moment_and_slow_ones_no_longer(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.serving.hosting._MOMENT", 1.0)
    with running(tiny, queue=4, max_pictures=4) as server:
        head = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
        held = [raw_connection(server.port) for _ in range(4)]
        for connection in held:
            connection.sendall(head)
        time.sleep(0.2)
        assert ask(server, 0).status_code == 429
        time.sleep(1.2)
        assert ask(server, 0).status_code == 200
        for connection in held:
            connection.close()
