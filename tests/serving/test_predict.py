"""What a client gets: the answers of the classifier itself, however the picture is sent."""

import base64
import gzip
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from tests.serving.conftest import SMALL, make_model
from tests.serving.running import Running, picture, running
from vitrail.cli import main
from vitrail.figures import attribution, rollout


def logits_of(row: dict) -> np.ndarray:
    return np.array(row["logits"], np.float32)


def ways_to_send(data: bytes) -> dict[str, dict]:
    coded = base64.b64encode(data).decode()
    return {
        "form": {"files": [("pictures", ("a.png", data))]},
        "form of one": {"files": {"file": ("a.png", data)}, "data": {"top": "2"}},
        "raw": {"content": data, "headers": {"content-type": "image/png"}},
        "octets": {"content": data, "headers": {"content-type": "application/octet-stream"}},
        "bare": {"content": data},
        "json": {"json": {"pictures": [coded], "top": 3}},
        "json with name": {"json": {"pictures": [{"data": f"data:image/png;base64,{coded}", "name": "a.png"}]}},
        "json of one": {"json": {"picture": coded}},
        "gzip": {"content": gzip.compress(data), "headers": {"content-encoding": "gzip"}},
        "deflate": {"content": zlib.compress(data), "headers": {"content-encoding": "deflate"}},
        "chunked": {"content": iter([data[:100], data[100:]])},
    }


@pytest.mark.parametrize("way", ways_to_send(b""))
def test_the_answer_is_the_classifiers_however_the_picture_is_sent(
    way: str, server: Running, classifier: vitrail.Classifier
) -> None:
    data = picture(1)
    answer = server.post("/v1/predict?logits=true", **ways_to_send(data)[way])
    assert answer.status_code == 200, answer.text
    (row,) = answer.json()["predictions"]
    np.testing.assert_allclose(logits_of(row), classifier.logits(data)[0].numpy(), atol=1e-5)
    wanted = classifier.predict(data, top=10)[0]
    assert (row["label"], row["index"]) == (wanted.label, wanted.index)
    assert row["score"] == pytest.approx(wanted.score, abs=1e-5)
    assert [one["label"] for one in row["top"]] == [label for label, _ in wanted.top[: len(row["top"])]]
    assert (row["width"], row["height"]) == (60, 40)


def test_many_pictures_come_back_in_order_and_a_broken_one_costs_its_own_place(
    server: Running, classifier: vitrail.Classifier
) -> None:
    files = [picture(i, kind=kind) for i, kind in enumerate(["PNG", "JPEG", "WEBP", "PNG", "GIF"])]
    files.insert(2, files[0][:80])
    answer = server.post(files=[("pictures", (f"{i}.img", data)) for i, data in enumerate(files)]).json()
    rows = answer["predictions"]
    assert [row["name"] for row in rows] == [f"{i}.img" for i in range(6)]
    assert "2.img" in rows[2]["error"]
    for row, data in zip(rows, files, strict=True):
        if "error" not in row:
            assert row["label"] == classifier.predict(data)[0].label
    assert set(answer["milliseconds"]) == {"decode", "queue", "model", "total"}


def test_the_command_line_the_server_and_all_its_exact_engines_give_the_same_logits(
    tiny: Path, server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = picture(7, (900, 700), "JPEG")
    (tmp_path / "photo.jpg").write_bytes(data)
    assert main(["predict", str(tiny), str(tmp_path / "photo.jpg"), "--top", "10", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["predictions"][0]["top"]
    (row,) = server.post("/v1/predict?logits=true&top=10", content=data).json()["predictions"]
    np.testing.assert_allclose([one["score"] for one in row["top"]], [one["score"] for one in said], atol=2e-6)
    with running(tiny, engine="onnx") as other:
        (same,) = other.post("/v1/predict?logits=true", content=data).json()["predictions"]
        facts = other.get("/v1/model").json()
        assert (facts["engine"], facts["kind"], facts["can"]["attention"]) == ("onnx", "vit", True)
        exported = other.app.models.find("tiny").current.loaded.engine.path
    np.testing.assert_allclose(logits_of(same), logits_of(row), atol=1e-4)
    with running(tiny, engine="exact") as other:  # what users have
        (same,) = other.post("/v1/predict?logits=true", content=data).json()["predictions"]
        assert other.get("/v1/model").json()["engine"] == "openvino"
    np.testing.assert_allclose(logits_of(same), logits_of(row), atol=1e-4)
    with running(exported) as alone:  # the file, without the model it was made from
        (same,) = alone.post("/v1/predict?logits=true", content=data).json()["predictions"]
        np.testing.assert_allclose(logits_of(same), logits_of(row), atol=1e-4)
        facts = alone.get("/v1/model").json()
        assert (facts["kind"], facts["grid"], facts["can"]["embed"]) == ("exported", None, True)
        for query in ("attention=true", "drop=1"):
            answer = alone.post(f"/v1/predict?{query}", content=data)
            assert (answer.status_code, "exported file" in answer.json()["error"]) == (400, True)


def test_the_pixels_that_are_shown_are_those_the_model_sees(server: Running, classifier: vitrail.Classifier) -> None:
    data = picture(3, (500, 300), "JPEG")
    (row,) = server.post("/v1/predict?seen=true", content=data).json()["predictions"]
    shown = base64.b64decode(row["seen"].removeprefix("data:image/png;base64,"))
    import io

    from PIL import Image

    pixels = np.array(Image.open(io.BytesIO(shown)))
    np.testing.assert_array_equal(pixels, classifier.preprocessing.pixels(data))


def test_an_embedding_is_what_the_head_reads(server: Running, classifier: vitrail.Classifier) -> None:
    data = picture(4)
    (row,) = server.post("/v1/embed", content=data).json()["embeddings"]
    model = classifier.model
    with torch.inference_mode():
        values = torch.from_numpy(classifier.preprocessing(data))[None]
        features = model.pool(model.forward_features(values))
        np.testing.assert_allclose(row["embedding"], features[0], atol=1e-5)


def test_panes_can_be_blanked_and_removed(server: Running, classifier: vitrail.Classifier) -> None:
    data, panes = picture(5), [0, 5, 6]
    pixels = classifier.preprocessing.pixels(data).copy()
    (removed,) = server.post("/v1/predict?logits=true&drop=0,5,6&dropping=remove", content=data).json()["predictions"]
    mask = torch.ones(1, 16, dtype=torch.bool)
    mask[0, panes] = False
    with torch.inference_mode():
        wanted = classifier.model(torch.from_numpy(classifier.preprocessing.normalise(pixels))[None], mask=mask)
    np.testing.assert_allclose(logits_of(removed), wanted[0], atol=1e-5)

    pixels[0:8, 0:8] = pixels[8:16, 8:16] = pixels[8:16, 16:24] = 128
    asked = {"pictures": [base64.b64encode(data).decode()], "drop": panes, "logits": True}
    (blank,) = server.post(json=asked).json()["predictions"]
    np.testing.assert_allclose(
        logits_of(blank),
        classifier._run([torch.from_numpy(classifier.preprocessing.normalise(pixels))[None]])[0],
        atol=1e-5,
    )


def decoded(attention: dict) -> np.ndarray:
    weights = attention["weights"]
    whole = np.frombuffer(base64.b64decode(weights["data"]), np.uint8).reshape(weights["shape"])
    scale = np.frombuffer(base64.b64decode(weights["scale"]), "<f4").reshape(weights["shape"][:-1])
    return whole / 255 * scale[..., None]


def test_attention_is_the_models_to_half_a_step_of_a_byte(server: Running, classifier: vitrail.Classifier) -> None:
    data, model = picture(6), classifier.model
    (row,) = server.post("/v1/predict?attention=true&class=class 3", content=data).json()["predictions"]
    values = torch.from_numpy(classifier.preprocessing(data))[None]
    with torch.inference_mode():
        seen = model.forward_intermediates(values, attention="all")
    wanted = torch.stack([seen.attention[i][0] for i in range(2)]).numpy()
    assert row["attention"]["weights"]["layers"] == [0, 1]
    step = wanted.max(-1, keepdims=True) / 255
    assert (np.abs(decoded(row["attention"]) - wanted) <= 0.51 * step + 1e-6).all()
    np.testing.assert_allclose(row["attention"]["rollout"], rollout(model, values)[0], rtol=1e-3)
    said = row["attention"]["attribution"]
    assert (said["index"], said["label"]) == (3, "class 3")
    np.testing.assert_allclose(said["values"], attribution(model, values, 3)[0], rtol=1e-3, atol=1e-7)


def test_parts_and_layers_of_attention_can_be_chosen(server: Running) -> None:
    address = "/v1/predict?attention=true&parts=weights&layers=1"
    (row,) = server.post(address, content=picture(6)).json()["predictions"]
    assert list(row["attention"]) == ["weights"]
    assert row["attention"]["weights"]["shape"] == [1, 2, 17, 17]
    (row,) = server.post("/v1/predict?attention=true&parts=attribution", content=picture(6)).json()["predictions"]
    assert row["attention"]["attribution"]["index"] == row["index"]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/v1/predict?top=0", "top=0 must be at least 1"),
        ("/v1/predict?top=many", "top=many is not a whole number"),
        ("/v1/predict?topp=3", "'topp' is not known here"),
        ("/v1/predict?attention=perhaps", "neither true nor false"),
        ("/v1/predict?drop=16", "there are panes 0 to 15"),
        ("/v1/predict?drop=1&dropping=melt", "neither blank nor remove"),
        ("/v1/predict?drop=1&dropping=remove&attention=true", "use dropping=blank"),
        ("/v1/predict?attention=true&layers=2", "there are layers 0 to 1"),
        ("/v1/predict?attention=true&class=dog", "there is no class 'dog'"),
        ("/v1/predict?attention=true&class=10", "there is no class 10"),
        ("/v1/predict?attention=true&parts=soul", "must be of weights, rollout, attribution"),
        ("/v1/predict?timeout=-1", "must be seconds"),
        ("/v1/embed?top=3", "'top' is not known here: known are model, timeout"),
    ],
)
def test_a_wrong_option_is_told_in_one_line(address: str, words: str, server: Running) -> None:
    answer = server.post(address, content=picture())
    assert answer.status_code == 400
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("status", "words", "options"),
    [
        (400, "there is no picture", {"content": b""}),
        (400, "holds text, not a picture", {"content": b"hello there"}),
        (400, "JSON cannot be read", {"content": b"{", "headers": {"content-type": "application/json"}}),
        (400, "JSON cannot be read", {"content": b"[" * 50_000, "headers": {"content-type": "application/json"}}),
        (400, "not an object", {"json": [1]}),
        (400, 'no list "pictures"', {"json": {"pictures": "abc"}}),
        (400, "is not base64", {"json": {"pictures": ["***"]}}),
        (400, "neither a base64 text nor", {"json": {"pictures": [3]}}),
        (400, "top=True is not a whole number", {"json": {"pictures": ["aaaa"], "top": True}}),
        (400, "no boundary", {"content": b"x", "headers": {"content-type": "multipart/form-data"}}),
        (
            400,
            "the form cannot be read",
            {"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=a"}},
        ),
        (415, "Content-Type", {"content": b"x", "headers": {"content-type": "text/html"}}),
        (415, "Content-Encoding", {"content": b"x", "headers": {"content-encoding": "br"}}),
        (400, "not gzip", {"content": b"x" * 30, "headers": {"content-encoding": "gzip"}}),
        (400, "truncated", {"content": gzip.compress(picture())[:-9], "headers": {"content-encoding": "gzip"}}),
        (413, "more than 64 pictures", {"files": [("p", ("a.png", b"x"))] * 65}),
        (413, "more than 64 pictures", {"json": {"pictures": ["aaaa"] * 65}}),
    ],
)
def test_a_wrong_body_is_told_in_one_line(status: int, words: str, options: dict, server: Running) -> None:
    answer = server.post(**options)
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_facts_say_what_a_client_must_know(server: Running, classifier: vitrail.Classifier) -> None:
    facts = server.get("/v1/model").json()
    assert facts["classes"] == classifier.classes
    assert (facts["grid"], facts["layers"], facts["heads"], facts["prefix"]) == ([4, 4], 2, 2, 1)
    assert facts["parameters"] == sum(p.numel() for p in classifier.model.parameters())
    assert all(facts["can"].values())
    (example,) = facts["examples"]
    assert example["title"] == "a small cat"
    assert server.get(example["url"]).content == picture(5)
    assert server.get("/v1/examples").json()["examples"] == facts["examples"]


def test_metrics_count_pictures_batches_and_refusals(tiny: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    with running(tiny) as server:
        server.post(files=[("pictures", (f"{i}", picture(i))) for i in range(3)])
        server.post(json={"pictures": ["aaaa"] * 65})
        families = text_string_to_metric_families(server.get("/metrics").text)
        found = {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}
    assert found["vitrail_pictures_total", "plain", "tiny"] == 3
    assert found["vitrail_batch_pictures_sum", "tiny"] == 3
    assert found["vitrail_rejects_total", "pictures"] == 1
    assert found["vitrail_requests_total", "/v1/predict", "200"] == 1
    assert found["vitrail_requests_total", "/v1/predict", "413"] == 1
    assert found["vitrail_queue_pictures", "tiny"] == 0
    assert found["vitrail_queue_room_pictures", "tiny"] == 256


def test_several_models_answer_under_their_names(tiny: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", seed=1, num_classes=3)
    with running({"a": tiny, "b": other}) as server:
        data = picture(2)
        assert [one["name"] for one in server.get("/v1/models").json()["models"]] == ["a", "b"]
        for name, folder in (("a", tiny), ("b", other)):
            answer = server.post(f"/v1/predict?model={name}", content=data).json()
            assert answer["model"] == name
            assert answer["predictions"][0]["score"] == pytest.approx(
                vitrail.load(folder).predict(data)[0].score, abs=1e-5
            )
        assert server.post("/v1/predict", content=data).json()["model"] == "a"
        answer = server.post("/v1/predict?model=c", content=data)
        assert (answer.status_code, answer.json()["error"]) == (404, "there is no model 'c': known are a, b")


@pytest.mark.parametrize(
    "changes",
    [
        {"class_token": False, "pool": "mean", "rope": True, "positions": "none", "norm": "rms", "qk_norm": True},
        {"registers": 2, "distilled": True},
        {"img_size": (16, 48)},
        {"class_token": False, "pool": "map"},
    ],
    ids=["mean, rope", "registers, distilled", "not square", "map"],
)
def test_models_of_all_kinds_are_served_and_seen(changes: dict, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", **changes)
    classifier = vitrail.load(folder)
    with running(folder) as server:
        answer = server.post("/v1/predict?attention=true&logits=true&drop=1", content=picture(9)).json()
        (row,) = answer["predictions"]
        facts = server.get("/v1/model").json()
        rows, columns = facts["grid"]
        assert np.shape(row["attention"]["rollout"]) == (rows, columns)
        assert np.shape(row["attention"]["attribution"]["values"]) == (rows, columns)
        assert decoded(row["attention"]).shape == (2, 2, *2 * (facts["prefix"] + rows * columns,))
        removed = server.post("/v1/predict?drop=1&dropping=remove&logits=true", content=picture(9)).json()
        mask = torch.ones(1, rows * columns, dtype=torch.bool)
        mask[0, 1] = False
        with torch.inference_mode():
            wanted = classifier.model(torch.from_numpy(classifier.preprocessing(picture(9)))[None], mask=mask)
        np.testing.assert_allclose(logits_of(removed["predictions"][0]), wanted[0], atol=1e-5)


def test_a_resnet_has_panes_and_attribution_and_no_attention() -> None:
    torch.manual_seed(0)
    config = vitrail.ResNetConfig(img_size=32, layers=(1, 1), width=32, small_stem=True, num_classes=4, zero_head=False)
    with running(vitrail.Classifier(vitrail.ResNet(config))) as server:
        facts = server.get("/v1/model").json()
        assert (facts["kind"], facts["can"]["attention"], facts["can"]["remove"]) == ("resnet", False, False)
        (row,) = server.post("/v1/predict?attention=true&drop=2", content=picture()).json()["predictions"]
        assert np.shape(row["attention"]["attribution"]["values"]) == tuple(facts["grid"])
        assert server.post("/v1/predict?drop=2&dropping=remove", content=picture()).status_code == 400


def test_a_model_without_a_head_gives_embeddings_alone() -> None:
    torch.manual_seed(0)
    classifier = vitrail.Classifier(vitrail.create("vit_ti16", **{**SMALL, "num_classes": 0}))
    with running(classifier) as server:
        (row,) = server.post("/v1/embed", content=picture()).json()["embeddings"]
        np.testing.assert_allclose(row["embedding"], classifier.logits(picture())[0], atol=1e-5)
        answer = server.post("/v1/predict", content=picture())
        assert (answer.status_code, "ask for /v1/embed" in answer.json()["error"]) == (400, True)


def test_real_weights_see_real_photographs_as_the_classifier_does(deit_tiny: Path, imagenet_sample: Path) -> None:
    classifier = vitrail.load(deit_tiny)
    files = sorted(imagenet_sample.rglob("*.JPEG"))[::300]
    wanted = classifier.logits(files).numpy()
    with running(deit_tiny, batch_size=4) as server:
        sent = [("pictures", (path.name, path.read_bytes())) for path in files]
        answer = server.post("/v1/predict?logits=true&attention=true&parts=rollout,attribution", files=sent).json()
        assert server.get("/v1/model").json()["layers_at_once"] == 12
    for row, logits in zip(answer["predictions"], wanted, strict=True):
        np.testing.assert_allclose(logits_of(row), logits, atol=1e-4)
        assert np.shape(row["attention"]["rollout"]) == (14, 14)
        assert row["attention"]["attribution"]["index"] == int(logits.argmax())
