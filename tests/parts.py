"""All tests in several processes: which files each of them has, so that they take about as long."""

from collections.abc import Collection, Mapping
from pathlib import Path

TESTS = Path(__file__).parent
SECONDS = {
    "data/test_ending.py": 36,
    "data/test_loading.py": 29,
    "data/test_orphans.py": 23,
    "figures/test_drawings.py": 23,
    "model/test_config.py": 22,
    "peers/test_google.py": 40,
    "peers/test_real_weights.py": 97,
    "pretraining/test_cifar10_recipes.py": 21,
    "pretraining/test_pretrain.py": 33,
    "scoring/test_imagenet.py": 72,
    "scoring/test_processes.py": 58,
    "serving/test_attacks.py": 21,
    "serving/test_living.py": 22,
    "serving/test_page.py": 29,
    "shipping/bulk/test_ray.py": 56,
    "shipping/test_engines.py": 54,
    "shipping/test_export.py": 33,
    "shipping/test_push.py": 27,
    "shipping/test_signal_stack.py": 22,
    "speed/test_bench.py": 40,
    "studies/test_study.py": 40,
    "training/test_accumulation.py": 29,
    "training/test_growing.py": 21,
    "training/test_parallel.py": 34,
    "training/test_resume.py": 21,
    "training/test_sharded_optimisers.py": 27,
    "training/test_stopping.py": 23,
    "training/test_train.py": 21,
}  # of files that take 20 or more
A_FILE = 4  # seconds, about, of any other


def file_of(path: Path) -> str:
    """Its name here, the same on every machine."""
    return path.relative_to(TESTS).as_posix()


def weights(files: Collection[str]) -> dict[str, float]:
    """Seconds of each file."""
    return {file: SECONDS.get(file, A_FILE) for file in files}


def divided(seconds: Mapping[str, float], parts: int) -> list[list[str]]:
    """The longest first, each to whoever has least to do. The same files are divided the same way everywhere."""
    found: list[list[str]] = [[] for _ in range(parts)]
    sums = [0.0] * parts
    for file in sorted(seconds, key=lambda file: (-seconds[file], file)):
        least = sums.index(min(sums))
        found[least].append(file)
        sums[least] += seconds[file]
    return found
