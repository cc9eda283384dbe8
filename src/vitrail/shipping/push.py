"""`vitrail.push`: a model folder on the Hugging Face Hub, with a card."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

from vitrail.classifier import Classifier, load
from vitrail.errors import VitrailError
from vitrail.shipping.card import write_card
from vitrail.training.run import Run
from vitrail.weights.hub import SOURCE


def push(
    model: Classifier | Run | str | os.PathLike[str],
    repo: str,
    *,
    private: bool = False,
    license: str | None = None,
    message: str | None = None,
) -> str:
    """Uploads a model folder in one commit, and gives the address of the repository, which is made if it is not there.

    model: a run (its best model; the card tells of its data, recipe and results), a classifier, or whatever
        `vitrail.load` takes.
    repo: `hf:owner/name`. license: as the Hub writes it, such as `apache-2.0`; without it, the card names none.
    """
    match = SOURCE.fullmatch(repo)
    if match is None or match["revision"]:
        raise VitrailError(f"{repo!r} is no name on the Hub: write hf:owner/name")
    name = match["repo"]
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise VitrailError("hf: needs huggingface_hub: pip install 'vitrail[hub]'") from error
    run = model if isinstance(model, Run) else _run_of(model)
    classifier = model if isinstance(model, Classifier) else run.best if run is not None else load(_path(model))
    if not classifier.classes:
        raise VitrailError("the model is an encoder without a head: train one on it (train --from) before it is shared")
    with tempfile.TemporaryDirectory(prefix="vitrail-push-") as room:
        folder = Path(room) / name.split("/")[-1]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            classifier.save(folder)
        elsewhere = not any("loads in vitrail alone" in str(one.message) for one in caught)
        card = write_card(classifier, name, run, elsewhere, license)
        (folder / "README.md").write_text(card, encoding="utf-8")
        return _upload(HfApi(), name, folder, private, message or f"{folder.name}, by vitrail")


def _upload(api: Any, name: str, folder: Path, private: bool, message: str) -> str:
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    disable_progress_bars()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
        return str(address)
    except Exception as error:  # the library, its HTTP client and the system raise many kinds
        raise VitrailError(_reason(error, name)) from error
    finally:
        enable_progress_bars()


def _reason(error: Exception, name: str) -> str:
    """One line: why nothing was uploaded, and what to do."""
    from huggingface_hub import constants, errors

    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if status == 401 or isinstance(error, errors.LocalTokenNotFoundError):
        return f"{constants.ENDPOINT} does not know you: log in with `hf auth login`, or set HF_TOKEN"
    if status == 403:
        return f"you may not write to {name} on {constants.ENDPOINT}: choose your own name, or a token that may write"
    if status is not None:
        return f"{constants.ENDPOINT} answers with status {status} for {name}: try again later"
    words = " ".join(str(error).split())[:200]
    return f"{name} is not uploaded to {constants.ENDPOINT} ({type(error).__name__}: {words}): try again"


def _run_of(model: object) -> Run | None:
    if isinstance(model, Classifier):
        return None
    path = Path(_path(model))
    return Run.open(path) if (path / "run.json").is_file() else None


def _path(model: Any) -> str:
    return os.fspath(model)
