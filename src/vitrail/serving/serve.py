"""`vitrail.serve`: models behind HTTP, until the process is told to end."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from vitrail.classifier import Classifier
from vitrail.errors import VitrailError
from vitrail.serving.app import make_app
from vitrail.serving.computing import Loaded
from vitrail.serving.hosting import Source
from vitrail.serving.server import Server, allow_files, bound
from vitrail.serving.settings import Settings

BUNDLED = "cifar10_small"
_SHORTEST_TOKEN = 16


def serve(
    models: Source | Mapping[str, Source] | None = None,
    *,
    token_file: str | Path | None = None,
    examples: str | Path | None = None,
    announce: Callable[[str], None] = print,
    **settings: Any,
) -> None:
    """Serves models over HTTP, with a page, until SIGTERM or Ctrl-C; then it answers what is in flight.

    models: a model folder, a run, a checkpoint of any known family, `hf:owner/name`, a file that was exported, a
        `Classifier`; several by name; none: the small model that comes with the package.
    token_file: a file with a token, which clients must send.
    examples: a folder of pictures to try, for the page.
    announce: is told where it serves, and what.
    settings: fields of `Settings`, such as `port`, `host`, `batch_size`, `engine`.
    """
    chosen = Settings(**settings)
    token = None if token_file is None else read_token(Path(token_file))
    named = named_models(models)
    allow_files(chosen.max_connections)
    listening = bound(chosen)
    try:
        loaded = {name: (source, Loaded(source, chosen)) for name, source in named.items()}
        app = make_app(loaded, chosen, token=token, examples=None if examples is None else Path(examples))
        host, port = listening.getsockname()[:2]
        for name, (_, one) in loaded.items():
            announce(f"model {name}: {len(one.classes)} classes, {one.preprocessing.describe()}; {one.engine.detail}")
        where = f"serving on http://{f'[{host}]' if ':' in host else host}:{port} ({_reach(chosen, token)})"
        with _short_collections():
            Server(app, chosen, lambda: announce(where)).run([listening])
    finally:
        listening.close()


@contextmanager
def _short_collections() -> Iterator[None]:
    """What is loaded stays: looking through all of it again and again would hold up answers, for 0.2 s at a time."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _reach(settings: Settings, token: str | None) -> str:
    if settings.loopback:
        return "this machine alone can reach it; --host 0.0.0.0 lets others"
    if token is None:
        return "whoever reaches this machine can use it; --token-file asks for a token"
    return "with a token"


def named_models(models: Source | Mapping[str, Source] | None) -> dict[str, Source]:
    """Models by the names under which they are served."""
    if models is None:
        models = bundled()
    if not isinstance(models, Mapping):
        name = "model" if isinstance(models, Classifier) else plain_name(str(models))
        return {name: models}
    if not models:
        raise VitrailError("there is no model to serve: name one")
    for name in models:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", name) or name.strip(".") == "":
            raise VitrailError(f"a model cannot be called {name!r}: use letters, digits, _ . and -")
    return dict(models)


def plain_name(source: str) -> str:
    """A name for a model, from where it is."""
    last = Path(source.removeprefix("hf:")).resolve().name if not source.startswith("hf:") else source.split("/")[-1]
    stem = Path(last).stem if Path(last).suffix in (".onnx", ".xml", ".pt2", ".safetensors", ".npz", ".pth") else last
    return re.sub(r"[^A-Za-z0-9_.-]", "_", stem)[:100].lstrip(".") or "model"


def bundled() -> Path:
    """The small model that comes with the package."""
    place = resources.files("vitrail").joinpath("assets", BUNDLED)
    if not place.joinpath("config.json").is_file():
        raise VitrailError("no model comes with this installation: name one, as in vitrail serve my-model/")
    return Path(str(place))


def read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise VitrailError(f"the token cannot be read from {path}: give a file with one line of ASCII") from error
    if len(token) < _SHORTEST_TOKEN or any(character.isspace() for character in token):
        raise VitrailError(f"the token in {path} must be one word of at least {_SHORTEST_TOKEN} characters")
    return token
