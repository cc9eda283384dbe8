"""The V2 protocol, spoken by Triton's own client."""

from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from tritonclient.utils import InferenceServerException

import vitrail
from tests.serving.conftest import make_model
from tests.serving.running import Running, picture, running

triton = pytest.importorskip("tritonclient.http")


@pytest.fixture(scope="module")
def client(server: Running):
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as one:
        yield one


@pytest.fixture(scope="module")
def pixels(classifier: vitrail.Classifier) -> np.ndarray:
    return np.stack([classifier.preprocessing.pixels(picture(i)) for i in range(3)])


@pytest.fixture(scope="module")
def logits(classifier: vitrail.Classifier) -> np.ndarray:
    return classifier.logits([picture(i) for i in range(3)]).numpy()


def tensor(name: str, values: np.ndarray, binary: bool):
    kinds = {"uint8": "UINT8", "float32": "FP32", "object": "BYTES"}
    given = triton.InferInput(name, list(values.shape), kinds[values.dtype.name])
    given.set_data_from_numpy(values, binary_data=binary)
    return given


def test_the_server_and_its_model_describe_themselves(client, classifier: vitrail.Classifier) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    assert client.is_model_ready("tiny", "1")
    assert not client.is_model_ready("other")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    about = client.get_model_metadata("tiny")
    assert about["inputs"] == [{"name": "pixels", "datatype": "UINT8", "shape": [-1, 32, 32, 3]}]
    assert {"name": "logits", "datatype": "FP32", "shape": [-1, 10]} in about["outputs"]
    assert client.get_model_config("tiny")["max_batch_size"] == 64
    assert client.get_model_repository_index() == [{"name": "tiny", "version": "1", "state": "READY"}]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_pixels_give_the_classifiers_logits(
    binary_in: bool, binary_out: bool, client, pixels: np.ndarray, logits: np.ndarray
) -> None:
    wanted = [triton.InferRequestedOutput("logits", binary_data=binary_out)]
    answer = client.infer("tiny", [tensor("pixels", pixels, binary_in)], outputs=wanted, request_id="7")
    np.testing.assert_allclose(answer.as_numpy("logits"), logits, atol=1e-5)
    assert answer.get_response()["id"] == "7"


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_values_that_are_normalised_already_are_taken_too(
    compression: str | None, client, classifier: vitrail.Classifier, pixels: np.ndarray, logits: np.ndarray
) -> None:
    values = classifier.preprocessing.normalise(pixels)
    given = [tensor("pixels", values, True)]
    answer = client.infer("tiny", given, request_compression_algorithm=compression, model_version="1")
    np.testing.assert_allclose(answer.as_numpy("logits"), logits, atol=1e-5)


def test_files_of_pictures_are_decoded_by_the_server(client, logits: np.ndarray) -> None:
    files = np.array([picture(i) for i in range(3)], dtype=object)
    answer = client.infer("tiny", [tensor("pictures", files, True)])
    np.testing.assert_allclose(answer.as_numpy("logits"), logits, atol=1e-5)


def test_probabilities_features_and_classes(client, pixels: np.ndarray, logits: np.ndarray, classifier) -> None:
    outputs = [triton.InferRequestedOutput(name) for name in ("probabilities", "features")]
    answer = client.infer("tiny", [tensor("pixels", pixels, True)], outputs=outputs)
    wanted = torch.from_numpy(logits).softmax(-1)
    np.testing.assert_allclose(answer.as_numpy("probabilities"), wanted, atol=1e-6)
    head = classifier.model.head
    with torch.inference_mode():
        np.testing.assert_allclose(head(torch.tensor(answer.as_numpy("features"))), logits, atol=1e-5)
    for binary in (True, False):
        outputs = [triton.InferRequestedOutput("probabilities", class_count=2, binary_data=binary)]
        answer = client.infer("tiny", [tensor("pixels", pixels, True)], outputs=outputs).as_numpy("probabilities")
        assert answer.shape == (3, 2)
        score, index, label = (answer[1, 0].decode() if binary else str(answer[1, 0])).split(":")
        assert (int(index), label) == (int(wanted[1].argmax()), f"class {int(wanted[1].argmax())}")
        assert float(score) == pytest.approx(float(wanted[1].max()), abs=1e-5)


def test_what_the_protocol_does_not_allow_is_told(client, pixels: np.ndarray) -> None:
    cases = [
        ("tiny", tensor("pixels", pixels[:, :16], True), "not \\(3, 16, 32, 3\\)"),
        ("tiny", tensor("other", pixels, True), "numbers go into the input pixels"),
        ("tiny", tensor("pixels", np.full((1, 3, 32, 32), np.nan, np.float32), True), "not finite"),
        ("tiny", tensor("pictures", np.array([b"no picture"], object), True), "picture 0"),
        ("nobody", tensor("pixels", pixels, True), "there is no model 'nobody'"),
    ]
    for model, given, words in cases:
        with pytest.raises(InferenceServerException, match=words):
            client.infer(model, [given])
    with pytest.raises(InferenceServerException, match="one of logits, probabilities, features"):
        client.infer("tiny", [tensor("pixels", pixels, True)], outputs=[triton.InferRequestedOutput("soul")])


def test_lengths_that_lie_are_refused(server: Running) -> None:
    head = b'{"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 32, 32, 3],'
    head += b' "parameters": {"binary_data_size": %d}}]}'
    for size, length, words in [
        (3072, 10**9, "no length within the body"),
        (4000, None, "more than the body has"),
        (100, None, "do not make uint8"),
    ]:
        text = head % size
        headers = {"Inference-Header-Content-Length": str(len(text) if length is None else length)}
        answer = server.post("/v2/models/tiny/infer", content=text + bytes(3072), headers=headers)
        assert answer.status_code == 400
        assert words in answer.json()["error"]


def test_a_model_is_loaded_again_by_the_client(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    with running(folder) as server, triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        make_model(folder, seed=1)
        client.load_model("tiny")
        files = np.array([picture(0)], dtype=object)
        answer = client.infer("tiny", [tensor("pictures", files, True)])
        np.testing.assert_allclose(answer.as_numpy("logits"), vitrail.load(folder).logits(picture(0)), atol=1e-5)
        assert answer.get_response()["model_version"] == "2"
        (folder / "config.json").write_text("{")
        with pytest.raises(InferenceServerException, match="is not loaded again"):
            client.load_model("tiny")
        assert httpx.get(f"{server.url}/v2/models/tiny").json()["versions"] == ["2"]
