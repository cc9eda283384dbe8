"""Models from the Hugging Face Hub: `hf:owner/name` becomes a local folder with one set of weights."""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from vitrail.errors import VitrailError, WeightsError
from vitrail.weights.files import WEIGHT_FILES, read_json

SOURCE = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>\w[\w.+/-]*))?", re.ASCII)
SETTINGS = ("config.json", "preprocessor_config.json")
# checkpoints under any other name, by how they end; the first ending that occurs is taken
ENDINGS = (".safetensors", ".npz", ".pth", ".pt", ".bin")
# what trainers leave beside the weights under the same endings
BESIDE = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|random_states).*")


def fetch(source: str) -> Path:
    """The local folder of `hf:owner/name` or `hf:owner/name@revision`, with its settings and one set of weights.

    Only what is needed is downloaded, into the cache that all users of huggingface_hub share. Where the Hub cannot be
    asked, what the cache holds is taken.
    """
    repo, revision = _parse(source)
    try:
        from huggingface_hub import HfApi, constants
        from huggingface_hub.errors import RevisionNotFoundError
    except ImportError as error:
        raise VitrailError("hf: needs huggingface_hub: pip install 'vitrail[hub]'") from error
    try:
        # without a limit the library would wait for ever on a network that swallows packets
        about = HfApi().model_info(repo, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # the library, its HTTP client and the system raise many kinds
        folder = None if isinstance(error, RevisionNotFoundError) else _find_cached(repo, revision)
        if folder is not None:
            return folder
        raise _explain(error, source, repo, revision) from error
    files = {sibling.rfilename for sibling in about.siblings or ()}
    weights = _choose(files, source)
    try:
        return _download(repo, revision, weights, files)
    except VitrailError:
        raise
    except Exception as error:
        raise _explain(error, source, repo, revision) from error


def _parse(source: str) -> tuple[str, str]:
    match = SOURCE.fullmatch(source)
    if match is None or ".." in source:
        raise _error(f"{source!r} is no name on the Hub: write hf:owner/name or hf:owner/name@revision")
    return match["repo"], match["revision"] or "main"


def _choose(files: Collection[str], source: str) -> str:
    """The file with the weights, of all that a repository holds."""
    for name in WEIGHT_FILES:
        if name in files:
            return name
    others = sorted(name for name in files if "/" not in name and not BESIDE.fullmatch(name))
    for ending in ENDINGS:
        found = [name for name in others if name.endswith(ending)]
        if len(found) == 1:
            return found[0]
        if found:
            repo = source.removeprefix("hf:").partition("@")[0]
            raise _error(
                f"{source} holds several checkpoints ({_some(found)}): get one with"
                f" `hf download {repo} FILE`, and give the path of that file"
            )
    files = [name for name in others if not name.startswith(".") and not name.endswith((".md", ".json", ".txt"))]
    held = f"it holds {_some(files)}" if files else "it holds none at all"
    raise _error(f"{source} has no weights that can be read here ({held}): expected one of {', '.join(WEIGHT_FILES)}")


def _download(repo: str, revision: str, weights: str, files: Collection[str]) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download

    with _quiet():
        wanted = [weights, *(name for name in SETTINGS if name in files)]
        if weights.endswith(".index.json"):
            shards = _shards(Path(hf_hub_download(repo, weights, revision=revision)))
            if lost := sorted(shards - set(files)):
                raise _error(
                    f"hf:{repo} lacks parts of its weights ({_some(lost)}): ask its author to upload them again"
                )
            wanted += sorted(shards)
        patterns = [glob.escape(name) for name in wanted]
        # by the name of the revision, not its commit: so the cache learns the name, and knows it without network
        return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns))


def _shards(index: Path) -> set[str]:
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict):
        raise _error(f"{index} has no weight_map")
    return {str(name) for name in shards.values()}


def _find_cached(repo: str, revision: str) -> Path | None:
    """The folder that the cache holds for a revision, if weights are in it. Files appear there only when whole."""
    from huggingface_hub import constants

    storage = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    name = storage / "refs" / revision
    commit = name.read_text(encoding="utf-8").strip() if name.is_file() else revision
    folder = storage / "snapshots" / commit
    try:
        weights = folder / _choose({path.name for path in folder.iterdir() if path.is_file()}, f"hf:{repo}")
        shards = _shards(weights) if weights.name.endswith(".index.json") else set()
    except (OSError, WeightsError):
        return None
    return folder if all((folder / shard).is_file() for shard in shards) else None


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars where nobody watches them, unless the environment insists."""
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    settled = are_progress_bars_disabled() or constants.HF_HUB_DISABLE_PROGRESS_BARS is not None
    if settled or sys.stderr.isatty():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _explain(error: Exception, source: str, repo: str, revision: str) -> WeightsError:
    """Says in one line why the Hub gave nothing, and what to do."""
    from huggingface_hub import constants, errors

    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else None
    reason = cause if isinstance(cause, Exception) else error
    status = reason.response.status_code if isinstance(reason, errors.HfHubHTTPError) else None
    log_in = "log in with `hf auth login` or set HF_TOKEN"
    if isinstance(reason, errors.HFValidationError):
        text = f"{source!r} is no name on the Hub ({reason}): write hf:owner/name or hf:owner/name@revision"
    elif isinstance(reason, errors.GatedRepoError):
        text = f"{repo} is open only to those who asked: ask at {constants.ENDPOINT}/{repo}, then {log_in}"
    elif isinstance(reason, errors.RepositoryNotFoundError) or status == 401:
        # the Hub does not tell these apart, so that nobody learns the names of private models
        text = f"there is no {repo} on {constants.ENDPOINT}, or it is private: check the name, or {log_in}"
    elif isinstance(reason, errors.RevisionNotFoundError):
        text = f"{repo} has no revision {revision}: give a branch, a tag or a whole commit that it has"
    elif isinstance(reason, errors.OfflineModeIsEnabled):
        text = (
            f"the weights of {source} are not in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set:"
            " unset it to download them, or give a local folder"
        )
    elif status == 403:
        text = f"{constants.ENDPOINT} refuses access to {repo}: {log_in} as somebody who may read it"
    elif status is not None:
        text = f"{constants.ENDPOINT} answers with status {status} for {repo}: try again later, or give a local folder"
    elif _is_connection(reason):
        text = (
            f"no connection to {constants.ENDPOINT} ({str(reason) or type(reason).__name__}), and the weights of"
            f" {source} are not in the cache: check the network, or give a local folder"
        )
    else:
        text = f"{source} cannot be fetched ({type(reason).__name__}: {reason}): try again, or give a local folder"
    return _error(text)


def _is_connection(error: Exception) -> bool:
    """By name, since the HTTP client under huggingface_hub is another one from version to version."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"TransportError", "ConnectionError", "TimeoutError"})


def _error(text: str) -> WeightsError:
    """Names of files and messages of libraries may hold line breaks; an error here is one line."""
    return WeightsError(" ".join(text.split()))


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f", and {len(names) - 4} more" if len(names) > 4 else "")
