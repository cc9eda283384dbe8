"""All tests in several processes: which files each of them has, so that they take about as long."""

from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).parent
A_TEST = 0.08  # seconds, of one in a file that is not named below
SECONDS = {
    "data/test_ending.py": 36,
    "data/test_loading.py": 29,
    "data/test_orphans.py": 23,
    "model/test_config.py": 22,
    "model/test_merging.py": 16,
    "peers/test_google.py": 40,
    "peers/test_real_weights.py": 97,
    "pretraining/test_cifar10_recipes.py": 21,
    "pretraining/test_parallel.py": 16,
    "pretraining/test_pretrain.py": 33,
    "scoring/test_imagenet.py": 72,
    "scoring/test_processes.py": 58,
    "serving/test_attacks.py": 21,
    "serving/test_living.py": 22,
    "serving/test_overload.py": 16,
    "serving/test_page_states.py": 18,
    "shipping/bulk/test_ray.py": 56,
    "shipping/test_engines.py": 54,
    "shipping/test_export.py": 33,
    "shipping/test_push.py": 27,
    "shipping/test_quantise.py": 15,
    "shipping/test_signal_stack.py": 22,
    "speed/test_bench.py": 40,
    "studies/test_study.py": 40,
    "test_layout.py": 43,
    "training/test_accumulation.py": 29,
    "training/test_parallel.py": 34,
    "training/test_reporting.py": 19,
    "training/test_resume.py": 21,
    "training/test_sharded_optimisers.py": 27,
    "training/test_stopping.py": 23,
}  # of files that take long, as CI measured them


def file_of(path: Path) -> str:
    """Its name here, the same on every machine."""
    return path.relative_to(TESTS).as_posix()


def weights(tests: Mapping[str, int]) -> dict[str, float]:
    """Seconds of each file, given how many tests it has."""
    return {file: SECONDS.get(file, A_TEST * count) for file, count in tests.items()}


def divided(seconds: Mapping[str, float], parts: int) -> list[list[str]]:
    """The longest first, each to whoever has least to do. The same files are divided the same way everywhere."""
    found: list[list[str]] = [[] for _ in range(parts)]
    sums = [0.0] * parts
    for file in sorted(seconds, key=lambda file: (-seconds[file], file)):
        least = sums.index(min(sums))
        found[least].append(file)
        sums[least] += seconds[file]
    return found
