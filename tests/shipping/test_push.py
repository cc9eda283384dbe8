"""Models pushed to a stand-in for the Hub on this machine: what arrives loads as the same model, here and elsewhere."""

import base64
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import torch

import vitrail
from vitrail.shipping.push import push

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: uv run --all-extras pytest")
yaml = pytest.importorskip("yaml", reason="PyYAML comes with huggingface_hub")

TOKEN = "hf_of_the_test"
CLIENT = """
import json, sys, vitrail
found = {}
for model, repo in json.loads(sys.argv[1]):
    try:
        found[repo] = vitrail.push(model, repo, license="apache-2.0")
    except vitrail.VitrailError as error:
        found[repo] = str(error)
print(json.dumps(found))
"""


class Hub(ThreadingHTTPServer):
    """The few paths of the Hub's interface that huggingface_hub calls to upload a folder."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: list[str] = []
        super().__init__(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Hub
    timeout = 20

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send(404, {})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length")
        body = self.rfile.read(int(length)) if length else b"".join(self.chunks())
        path = urlsplit(self.path).path
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.send(401, {})
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            if asked["organization"] == "closed":
                return self.send(403, {})
            self.server.made.append(repo)
            return self.send(200, {"url": f"{self.server.url}/{repo}"})
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main", path)
        if match is None:
            return self.send(200, {}) if path == "/api/validate-yaml" else self.send(404, {})
        if match[2] == "preupload":
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self.send(200, {"files": files})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                target = self.server.root / match[1] / line["value"]["path"]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(base64.b64decode(line["value"]["content"]))
        return self.send(
            200, {"commitUrl": f"{self.server.url}/{match[1]}/commit/1", "commitOid": "1" * 40, "success": True}
        )

    def chunks(self):
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def send(self, status: int, answer: object) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def small(**changes: object) -> vitrail.Classifier:
    torch.manual_seed(0)
    model = vitrail.create("vit_ti16", img_size=32, embed_dim=32, depth=1, num_heads=2, num_classes=3, **changes)
    torch.nn.init.normal_(model.head.weight)
    return vitrail.Classifier(model.eval(), classes=["cat", "dog | wolf", "épée"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run, a model folder and one that no other library knows are pushed once."""
    root, here = tmp_path_factory.mktemp("hub"), tmp_path_factory.mktemp("here")
    classifier = small()
    classifier.save(here / "plain")
    run = here / "secret place" / "flowers-1"
    run.mkdir(parents=True)
    classifier.save(run / "best")
    facts = {"data": "/home/me/secret place/flowers", "recipe": "small", "start": None, "steps": 12, "device": "x86_64"}
    scores = {"top1": 0.8125, "top5": 1.0, "loss": 0.25}
    (run / "run.json").write_text(json.dumps({**facts, "versions": {"vitrail": "0.1.0"}, "scores": scores}))
    (run / "recipe.toml").write_text("epochs = 3\n")
    with pytest.warns(UserWarning, match="loads in vitrail alone"):
        small(positions="learned_2d").save(here / "own")
    server = Hub(root)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    asked = [(str(here / "plain"), "hf:acme/plain"), (str(run), "hf:acme/run"), (str(here / "own"), "hf:acme/own")]
    asked += [
        (str(here / "plain"), "hf:closed/plain"),
        (str(here / "plain"), "hf:nowhere"),
        (str(here / "plain"), "hf:a/b@v1"),
    ]
    try:
        found = client(asked, here, HF_ENDPOINT=server.url, HF_TOKEN=TOKEN)
        unknown = client(asked[:1], here, HF_ENDPOINT=server.url, HF_TOKEN="hf_of_nobody")
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
    away = client(asked[:1], here, HF_ENDPOINT=server.url, HF_TOKEN=TOKEN)
    return SimpleNamespace(root=root, classifier=classifier, found=found, unknown=unknown, away=away, url=server.url)


def client(asked: list[tuple[str, str]], home: Path, **settings: str) -> dict[str, str]:
    foreign = re.compile(r"(HF|HUGGINGFACE|TRANSFORMERS)_.*|.*_PROXY", re.IGNORECASE)
    kept = {key: value for key, value in os.environ.items() if not foreign.fullmatch(key)}
    env = {**kept, "HF_HOME": str(home / "hf"), "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1", **settings}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, json.dumps(asked)], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def head(card: str) -> dict:
    return yaml.safe_load(card.split("---")[1])


@pytest.mark.parametrize("name", ["plain", "run", "own"])
@torch.no_grad()
def test_what_arrives_is_the_same_model(world, name: str) -> None:
    assert world.found[f"hf:acme/{name}"] == f"{world.url}/acme/{name}"
    loaded = vitrail.load(world.root / "acme" / name)
    assert loaded.classes == world.classifier.classes
    if name != "own":
        pictures = torch.randn(2, 3, 32, 32)
        torch.testing.assert_close(loaded.model(pictures), world.classifier.model(pictures), atol=0, rtol=0)


def test_the_card_of_a_run_tells_of_data_recipe_and_results_and_of_no_folder(world) -> None:
    card = (world.root / "acme/run/README.md").read_text(encoding="utf-8")
    about = head(card)
    assert about["license"] == "apache-2.0"
    assert about["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.8125
    for words in (
        "| data | flowers |",
        "| recipe | small |",
        "epochs = 3",
        "| top1 | 81.25% |",
        "Intended use",
        "épée",
    ):
        assert words in card
    assert "secret" not in card


def test_the_card_says_how_each_library_loads_it_and_they_do(world) -> None:
    timm = pytest.importorskip("timm")
    card = (world.root / "acme/plain/README.md").read_text(encoding="utf-8")
    for words in ('vitrail.load("hf:acme/plain")', '"hf-hub:acme/plain"', 'model="acme/plain"'):
        assert words in card
    pictures = torch.randn(2, 3, 32, 32)
    peer = timm.create_model(f"local-dir:{world.root / 'acme/plain'}", pretrained=True).eval()
    with torch.no_grad():
        torch.testing.assert_close(peer(pictures), world.classifier.model(pictures), atol=1e-5, rtol=1e-5)


def test_a_card_promises_no_library_that_cannot_load_it(world) -> None:
    card = (world.root / "acme/own/README.md").read_text(encoding="utf-8")
    assert head(card)["library_name"] == "vitrail"
    assert "timm" not in card


def test_what_the_hub_refuses_is_said_in_one_line(world) -> None:
    assert "you may not write to closed/plain" in world.found["hf:closed/plain"]
    assert "does not know you: log in" in world.unknown["hf:acme/plain"]
    assert "is no name on the Hub" in world.found["hf:nowhere"]
    assert "is no name on the Hub" in world.found["hf:a/b@v1"]
    assert "try again" in world.away["hf:acme/plain"]
    assert not any("\n" in words for words in (*world.found.values(), *world.unknown.values(), *world.away.values()))


def test_an_encoder_without_a_head_is_not_pushed() -> None:
    model = vitrail.create("vit_ti16", img_size=32, embed_dim=32, depth=1, num_heads=2, num_classes=0)
    with pytest.raises(vitrail.VitrailError, match="encoder without a head"):
        push(vitrail.Classifier(model), "hf:acme/encoder")
