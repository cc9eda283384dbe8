"""Models from the Hub, served by a stand-in for it on this machine: what is asked for, what is kept, what is said."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import torch

from vitrail.errors import VitrailError, WeightsError
from vitrail.weights import hub, read_checkpoint

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: uv run --all-extras pytest")
timm = pytest.importorskip("timm", reason="timm is not installed: uv run --all-extras pytest")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: uv run --all-extras pytest")
transformers.logging.disable_progress_bar()

TOKEN = "hf_of_the_test"
# the library reads its environment when it is imported, so each client is a process of its own
CLIENT = """
import json, sys
from vitrail.errors import VitrailError
from vitrail.weights.hub import fetch
found = {}
for source in json.loads(sys.argv[1]):
    try:
        found[source] = {"folder": str(fetch(source))}
    except VitrailError as error:
        found[source] = {"error": str(error), "kind": type(error).__name__}
print(json.dumps(found))
"""


class Hub(ThreadingHTTPServer):
    """The few paths of the Hub's interface that huggingface_hub calls to download a model."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        self.root, self.asked, self.tokens = root, [], set()
        super().__init__(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def files(self, repo: str) -> list[str]:
        return [str(path.relative_to(self.root / repo)) for path in (self.root / repo).rglob("*") if path.is_file()]

    def downloads(self, repo: str) -> set[str]:
        found = (re.fullmatch(rf"/{repo}/resolve/\w+/(.+)", path) for method, path in self.asked if method == "GET")
        return {match[1] for match in found if match}


class Answer(BaseHTTPRequestHandler):
    server: Hub
    timeout = 20

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append((self.command, path))
        self.server.tokens.add(self.headers.get("Authorization"))
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if (match := api or file) is None:
            return self.send(404)
        repo, revision = match[1], match[3] if api else match[2]
        commit = hashlib.sha1(repo.encode()).hexdigest()
        if repo == "acme/gated" and file:  # anyone may list it, not everyone may have it
            return self.send(403, {"X-Error-Code": "GatedRepo"})
        if repo in ("acme/closed", "acme/down"):
            return self.send(403 if repo == "acme/closed" else 503)
        if not (self.server.root / repo).is_dir():
            return self.send(401, {"X-Error-Message": "Invalid username or password."})
        if revision not in ("main", "v1", commit):
            return self.send(404, {"X-Error-Code": "RevisionNotFound"})
        names = self.server.files(repo)
        if file:
            if match[3] not in names:
                return self.send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            content = (self.server.root / repo / match[3]).read_bytes()
            return self.send(200, {"ETag": hashlib.sha256(content).hexdigest(), "X-Repo-Commit": commit}, content)
        if match[2] == "revision":
            answer = {"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in names]}
        else:
            sizes = {name: (self.server.root / repo / name).stat().st_size for name in names}
            answer = [{"type": "file", "path": name, "size": size, "oid": commit} for name, size in sizes.items()]
        return self.send(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())

    do_HEAD = do_GET  # noqa: N815

    def send(self, status: int, headers: dict[str, str] | None = None, content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def clutter(folder: Path, *names: str) -> None:
    for name in ("README.md", ".gitattributes", "tf_model.h5", "flax_model.msgpack", "runs/events.bin", *names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"not needed")


def make_peers(root: Path) -> dict[str, torch.nn.Module]:
    """Repositories written by the peers' own savers, and other people's leavings beside them."""
    torch.manual_seed(0)
    args = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 1, "num_classes": 3}
    peers = {name: timm.create_model("vit_base_patch16_224", **args).eval() for name in ("acme/timm", "acme/old")}
    timm.models.save_for_hf(peers["acme/timm"], root / "acme/timm", model_args=args, safe_serialization="both")
    timm.models.save_for_hf(peers["acme/old"], root / "acme/old", model_args=args, safe_serialization=False)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=3)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    for name, limit in (("acme/transformers", "1GB"), ("acme/sharded", "100KB")):
        peers[name] = transformers.ViTForImageClassification(config).eval()
        peers[name].save_pretrained(root / name, max_shard_size=limit)
        processor.save_pretrained(root / name)
    for name in peers:
        clutter(root / name, "training_args.bin", *(["pytorch_model.bin"] if "old" not in name else []))
    return peers


def run(sources: list[str], home: Path, **settings: str) -> tuple[dict[str, dict[str, str]], str]:
    """Fetches in another process: what each source gave, and what the process wrote to its error stream."""
    foreign = re.compile(r"(HF|HUGGINGFACE|TRANSFORMERS)_.*|.*_PROXY", re.IGNORECASE)
    kept = {key: value for key, value in os.environ.items() if not foreign.fullmatch(key)}
    env = {**kept, "HF_HOME": str(home), "HF_TOKEN": TOKEN, "NO_PROXY": "127.0.0.1", **settings}
    command = [sys.executable, "-c", CLIENT, json.dumps(sources)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


PEERS = ["acme/timm", "acme/transformers", "acme/old", "acme/sharded"]
FETCHED = [f"hf:{name}" for name in (*PEERS, "acme/single", "acme/timm@v1")]
ERRORS = {  # source: the words that its refusal holds, {url} being the Hub
    "hf:acme/absent": "there is no acme/absent on {url}, or it is private: check the name, or log in with",
    "hf:acme/timm@v9": "acme/timm has no revision v9: give a branch, a tag or a whole commit",
    "hf:acme/gated": "open only to those who asked: ask at {url}/acme/gated, then log in with",
    "hf:acme/closed": "{url} refuses access to acme/closed: log in with",
    "hf:acme/down": "{url} answers with status 503 for acme/down: try again later, or give a local folder",
    "hf:acme/weightless": "no weights that can be read here (it holds flax_model.msgpack, tf_model.h5): expected",
    "hf:acme/several": "holds several checkpoints (B_16.npz, L_16.npz): get one with `hf download acme/several FILE`",
    "hf:acme/torn": "lacks parts of its weights (model-00002-of-",
    "hf:ac--me/name": "is no name on the Hub",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The Hub is asked for everything once, and then goes away; the cache stays."""
    root, home = tmp_path_factory.mktemp("hub"), tmp_path_factory.mktemp("home")
    peers = make_peers(root)
    for name, file in (("weightless", "config.json"), ("gated", "model.safetensors"), ("torn", "config.json")):
        clutter(root / "acme" / name, file)
    (root / "acme/torn/model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00002-of-00002"}}')
    for name in ("acme/single/B_[16].npz", "acme/several/B_16.npz", "acme/several/L_16.npz"):
        clutter((root / name).parent)
        np.savez(root / name, kernel=np.zeros(3, np.float32))
    server, sources = Hub(root), [*FETCHED, *ERRORS]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        found, noise = run(sources, home, HF_ENDPOINT=server.url)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
    offline, _ = run(sources, home, HF_ENDPOINT=server.url, HF_HUB_OFFLINE="1")
    cut_off, _ = run(sources, home, HF_ENDPOINT=server.url)
    return SimpleNamespace(**{key: value for key, value in locals().items() if key != "tmp_path_factory"})


@pytest.mark.parametrize("name", PEERS)
@torch.no_grad()
def test_a_repository_of_a_peer_gives_the_logits_of_the_peer(world, name: str) -> None:
    pictures = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    wanted = world.peers[name](pictures)
    checkpoint = read_checkpoint(Path(world.found[f"hf:{name}"]["folder"]))
    torch.testing.assert_close(checkpoint.build()(pictures), getattr(wanted, "logits", wanted), atol=1e-5, rtol=1e-5)
    assert checkpoint.preprocessing is not None


@pytest.mark.parametrize("name", PEERS)
def test_only_what_is_needed_is_downloaded(world, name: str) -> None:
    held = {file for file in world.server.files(name) if file.startswith("model")}
    needed = {"config.json", *(held or {"pytorch_model.bin"})}
    needed |= {"preprocessor_config.json"} if name in ("acme/transformers", "acme/sharded") else set()
    assert world.server.downloads(name) == needed
    assert sorted(os.listdir(world.found[f"hf:{name}"]["folder"])) == sorted(needed)
    assert (len(held) > 3) == (name == "acme/sharded")


def test_a_checkpoint_under_another_name_is_taken_if_it_is_the_only_one(world) -> None:
    assert os.listdir(world.found["hf:acme/single"]["folder"]) == ["B_[16].npz"]


def test_the_cache_and_the_token_are_the_librarys_own_and_nothing_is_printed(world) -> None:
    assert all(Path(world.found[source]["folder"]).is_relative_to(world.home / "hub") for source in FETCHED)
    assert world.server.tokens - {None} == {f"Bearer {TOKEN}"}
    assert world.noise == ""


def test_a_filled_cache_serves_without_the_hub(world) -> None:
    for source in FETCHED:
        assert world.offline[source] == world.cut_off[source] == world.found[source]


@pytest.mark.parametrize("source", ERRORS)
def test_what_the_hub_does_not_give_is_explained_in_one_line(world, source: str) -> None:
    refusal = world.found[source]
    assert ERRORS[source].format(url=world.server.url) in refusal["error"]
    assert "\n" not in refusal["error"]
    assert refusal["kind"] == "WeightsError"


def test_without_network_or_offline_the_reason_is_named_in_one_line(world) -> None:
    words = f"not in the cache {world.home}/hub, and HF_HUB_OFFLINE is set: unset it to download them, or give a local"
    for source in ("hf:acme/absent", "hf:acme/gated", "hf:acme/torn"):
        offline, cut_off = world.offline[source]["error"], world.cut_off[source]["error"]
        assert words in offline
        assert f"no connection to {world.server.url} (" in cut_off
        assert "check the network, or give a local folder" in cut_off
        assert "\n" not in offline + cut_off


@pytest.mark.parametrize("name", ["", "foo", "a/b/c", "a/b@", "a/b@../x", "a/b@/etc", "//a/b", "a b/c", "a/b\n"])
def test_a_malformed_name_is_refused_before_anything_is_asked(name: str) -> None:
    with pytest.raises(WeightsError, match="is no name on the Hub: write hf:owner/name or hf:owner/name@re") as caught:
        hub.fetch(f"hf:{name}")
    assert "\n" not in str(caught.value)


def test_without_huggingface_hub_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(VitrailError, match=r"hf: needs huggingface_hub: pip install 'vitrail\[hub\]'"):
        hub.fetch("hf:acme/timm")
