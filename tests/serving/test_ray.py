"""The server as replicas on a local Ray."""

import importlib.util
import os
import socket
from pathlib import Path

import httpx
import numpy as np
import pytest

import vitrail
from tests.serving.running import picture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]


def test_two_replicas_on_ray_give_the_classifiers_answers(tiny: Path, classifier: vitrail.Classifier) -> None:
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    import ray
    from ray import serve

    from vitrail.serving.over_ray import ray_application

    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(ray_application(tiny, replicas=2, device="cpu", cpus=1), route_prefix="/")
        wanted = classifier.logits([picture(i) for i in range(8)]).numpy()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            for i in range(8):
                answer = client.post("/v1/predict?logits=true", content=picture(i))
                np.testing.assert_allclose(answer.json()["predictions"][0]["logits"], wanted[i], atol=1e-5)
            assert client.get("/v1/model").json()["name"] == "tiny"
            assert client.post("/v1/predict", content=bytes(40 * 2**20)).status_code == 413
            assert client.post("/v1/predict", content=b"no picture").status_code == 400
    finally:
        serve.shutdown()
        ray.shutdown()
