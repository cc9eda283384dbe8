"""All tests in several processes: which files each of them has, so that they take about as long."""

from collections.abc import Collection, Mapping
from pathlib import Path

TESTS = Path(__file__).parent
SECONDS = {
    "data/test_ending.py": 30,
    "data/test_loading.py": 29,
    "data/test_orphans.py": 23,
    "figures/test_drawings.py": 23,
    "model/test_attention.py": 22,
    "model/test_config.py": 22,
    "model/test_fp8_training.py": 55,
    "model/test_fused_mlp.py": 22,
    "model/test_mid_attention.py": 20,
    "peers/test_google.py": 30,
    "peers/test_real_weights.py": 20,
    "pretraining/test_cifar10_recipes.py": 21,
    "pretraining/test_parallel.py": 30,
    "pretraining/test_pretrain.py": 25,
    "scoring/test_imagenet.py": 72,
    "scoring/test_processes.py": 50,
    "serving/test_attacks.py": 21,
    "serving/test_living.py": 22,
    "serving/test_page.py": 29,
    "shipping/bulk/test_ray.py": 56,
    "shipping/test_engines.py": 80,
    "shipping/test_export.py": 40,
    "shipping/test_push.py": 25,
    "shipping/test_quantise.py": 20,
    "shipping/test_signal_stack.py": 35,
    "speed/test_bench.py": 75,
    "speed/test_memory.py": 22,
    "studies/test_side_by_side.py": 40,
    "studies/test_study.py": 45,
    "training/test_accumulation.py": 25,
    "training/test_cifar10_recipes.py": 24,
    "training/test_parallel.py": 34,
    "training/test_sharded_optimisers.py": 20,
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
