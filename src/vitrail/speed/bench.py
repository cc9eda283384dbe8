"""`vitrail.bench`: inference and training of models, beside the peers that are installed, in one run.

Each contender is a process of its own. All of one case take turns, round after round, so that a drift of the machine
meets all; a large matrix product has its turn in each round too, and is the ceiling of that case. Contenders hold the
same weights and are given the same pictures, and what they answer is compared.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vitrail.classifier import Classifier
from vitrail.errors import VitrailError
from vitrail.model.config import ResNetConfig
from vitrail.model.devices import choose_device
from vitrail.model.walk import flops
from vitrail.model.zoo import Config, configure, create, find
from vitrail.speed.bench_process import Contender, ContenderError
from vitrail.speed.bench_results import Bench, Measurement, about
from vitrail.speed.peers import LOSS_TOLERANCE, OURS, TOLERANCE, BenchPrecision, Case, Mode, Row, Way, chosen_peers

Say = Callable[[str], None]


def bench(
    *models: str | os.PathLike[str],
    batch_sizes: Sequence[int] | None = None,
    precisions: Sequence[BenchPrecision] | None = None,
    modes: Sequence[Mode] = ("infer", "train"),
    ways: Sequence[Way] | None = None,
    peers: Sequence[str] | None = None,
    peer_ways: Sequence[Way] | None = None,
    img_size: int | None = None,
    device: str | None = None,
    rounds: int = 5,
    seconds: float = 1.0,
    out: str | os.PathLike[str] | None = None,
    say: Say = lambda line: None,
    alone: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Bench:
    """Measures `models` (any MODEL; by default vit_ti16) in every mode, batch size and precision, ours and the peers'.

    By default on a GPU: batches of 1 and 128, bf16, eager and compiled; on a CPU: 1 and 8, fp32, eager. Peers run in
    the same `ways`, or in `peer_ways`. Each of `rounds` gives a contender about so many `seconds`. `out` is the folder
    of bench.json and bench.png. `alone` is held while contenders take turns, so that several benches can prepare side
    by side and measure one after the other.
    """
    where = choose_device(device)
    on_gpu = where.type == "cuda"
    sizes = list(batch_sizes if batch_sizes is not None else (1, 128) if on_gpu else (1, 8))
    numbers: Sequence[BenchPrecision] = precisions or (("bf16",) if on_gpu else ("fp32",))
    chosen: Sequence[Way] = ways or (("eager", "compiled") if on_gpu else ("eager",))
    theirs = peer_ways or chosen
    _check(sizes, rounds, seconds)
    if not on_gpu:
        _refuse_graphs({"--ways": chosen, "--peer-ways": peer_ways or ()})
    beside = chosen_peers(None if peers is None else list(peers))
    contenders = [*((OURS, way) for way in chosen), *((who, way) for who in beside for way in theirs)]
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory() as kept:
        for number, given in enumerate(models or ("vit_ti16",)):
            name, config = _saved(given, img_size, Path(kept) / str(number))
            cases = [Case(name, mode, batch, p) for mode in modes for p in numbers for batch in sizes]
            with ExitStack() as stack:
                ceiling = stack.enter_context(Contender("matrix product", "eager"))
                crowd = [stack.enter_context(Contender(who, way)) for who, way in contenders]
                arena = _Arena(Path(kept) / str(number), config, str(where), rounds, seconds, say, alone)
                measurements += [arena.measure(case, ceiling, crowd) for case in cases]
    result = Bench(about(where), tuple(measurements))
    if out is not None:
        result.write(Path(out))
    return result


class _Arena:
    """Where the contenders of one model meet."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        device: str,
        rounds: int,
        seconds: float,
        say: Say,
        alone: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.folder, self.config, self.device = folder, config, device
        self.rounds, self.seconds, self.say, self.alone = rounds, seconds, say, alone
        self.wanted: torch.Tensor | None = None

    def measure(self, case: Case, ceiling: Contender, crowd: Sequence[Contender]) -> Measurement:
        """All contenders of one case, in turns."""
        self.say(f"{case}: preparing")
        rows: dict[tuple[str, str], Row] = {}
        facts: dict[tuple[str, str], dict[str, Any]] = {}
        self._make_reference(case, crowd)
        # on a GPU compilers run side by side; on a CPU they would only wait for each other, and memory is what counts
        pool = ThreadPoolExecutor(1 if self.device == "cpu" else max(1, (os.cpu_count() or 1) // 2))
        try:
            asked = [(one, pool.submit(self._ask, one, case, one.way)) for one in crowd]
            for one, answer in asked:
                try:
                    facts[one.name, one.way] = answer.result()
                except ContenderError as error:
                    rows[one.name, one.way] = Row(one.name, one.way, error=_brief(str(error)))
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C nobody else begins
        with self.alone():
            for one in crowd:
                if _lacked_room(rows.get((one.name, one.way))):
                    self.say(f"{case}: {one.name}, {one.way} had no room beside the others and is prepared again")
                    with contextlib.suppress(ContenderError):
                        facts[one.name, one.way] = self._ask(one, case, one.way)
            ready = [one for one in crowd if (one.name, one.way) in facts]
            times, rate = self._rounds(case, ceiling, ready)
        work = flops(self.config) * (3 if case.mode == "train" else 1)
        for one in ready:
            key = one.name, one.way
            if isinstance(times[key], str):
                rows[key] = Row(one.name, one.way, error=_brief(str(times[key])))
                continue
            rates = sorted(case.batch / spent for spent in times[key])
            low, middle, high = statistics.quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else rates * 3
            difference, same, note = self._compared(case, facts, key)
            rows[key] = Row(
                one.name,
                one.way,
                pictures_per_s=middle,
                low=low,
                high=high,
                of_ceiling=middle * work / rate,
                memory=facts[key]["memory"],
                difference=difference,
                same=same,
                note=note,
            )
        order = [(one.name, one.way) for one in crowd]
        return Measurement(case, rate, flops(self.config), tuple(rows[key] for key in order))

    def _make_reference(self, case: Case, crowd: Sequence[Contender]) -> None:
        """Logits of our model in float32, with which all are compared."""
        if case.mode == "infer" and self.wanted is None:
            one = next(one for one in crowd if one.name == OURS)
            try:
                whole = self._ask(one, Case(case.model, "infer", 4, "fp32"), way="eager")
            except ContenderError as error:
                raise VitrailError(f"{case.model} cannot be measured here: {error}") from error
            self.wanted = torch.tensor(whole["logits"])

    def _ask(self, one: Contender, case: Case, way: str) -> dict[str, Any]:
        if case.mode == "train" and case.precision == "fp16" and self.device == "cpu":
            raise ContenderError("training in fp16 needs a GPU")
        return one.ask(
            "prepare",
            folder=str(self.folder),
            contender=one.name,
            way=way,
            mode=case.mode,
            batch=case.batch,
            precision=case.precision,
            device=self.device,
        )

    def _rounds(
        self, case: Case, ceiling: Contender, ready: Sequence[Contender]
    ) -> tuple[dict[tuple[str, str], Any], float]:
        """Seconds of a run in each round, or what went wrong; and the rate of the matrix product."""
        times: dict[tuple[str, str], Any] = {(one.name, one.way): [] for one in ready}
        rates = []
        for number in range(self.rounds):
            self.say(f"{case}: round {number + 1} of {self.rounds}")
            rates.append(
                ceiling.ask("product", precision=case.precision, device=self.device, seconds=self.seconds)["flops"]
            )
            for one in ready if number % 2 == 0 else reversed(ready):
                key = one.name, one.way
                if isinstance(times[key], str):
                    continue
                try:
                    times[key].append(one.ask("turn", seconds=self.seconds)["seconds"])
                except ContenderError as error:
                    times[key] = str(error)
        return times, statistics.median(rates)

    def _compared(
        self, case: Case, facts: dict[tuple[str, str], dict[str, Any]], key: tuple[str, str]
    ) -> tuple[float | None, bool | None, str]:
        """How far its answers are from the reference, whether that is near enough, and what must be known of it."""
        found = facts[key]
        if case.mode == "infer":
            note = ""
            if found["logits"] is not None:
                assert self.wanted is not None
                logits = torch.tensor(found["logits"])
                away = float((logits - self.wanted[: len(logits)]).abs().max() / self.wanted.std())
            else:
                away, note = found["difference"], "own architecture; compared with ours holding its weights"
            return away, away <= TOLERANCE[case.precision], note
        first = next((facts[k] for k in facts if k[0] == OURS), None)
        if key[0] == "vit-pytorch" or first is None:
            return None, None, "own architecture"
        away = abs(found["loss"] / first["loss"] - 1)
        return away, away <= LOSS_TOLERANCE[case.precision], ""


def _saved(given: str | os.PathLike[str], img_size: int | None, folder: Path) -> tuple[str, Config]:
    """A model's name and configuration; its weights lie in the folder, for all contenders."""
    changes: dict[str, Any] = {} if img_size is None else {"img_size": img_size}
    name = os.fspath(given)
    if name.startswith("hf:") or Path(name).exists():
        model = Classifier.load(name, **changes).model
    else:
        row = find(name)
        name = row.name
        torch.manual_seed(0)
        model = create(configure(row.config, **changes, zero_head=False))
    config = model.config
    if not config.num_classes:
        raise VitrailError(f"{name} has no head, so there are no logits to compare: choose a model with classes")
    if img_size is not None:
        name += f" at {img_size} px"
    folder.mkdir()
    save_file({key: tensor.detach().contiguous().clone() for key, tensor in model.state_dict().items()},
              folder / "model.safetensors")  # fmt: skip
    kind = "resnet" if isinstance(config, ResNetConfig) else "vit"
    (folder / "config.json").write_text(json.dumps({"kind": kind, "config": config.to_json()}), encoding="utf-8")
    return name, config


def _check(sizes: Sequence[int], rounds: int, seconds: float) -> None:
    wrong = [
        (not sizes or any(size < 1 for size in sizes), "--batch-sizes must be at least 1"),
        (rounds < 1, f"--rounds must be at least 1, not {rounds}"),
        (not 0 < seconds < math.inf, f"--seconds must be above 0, not {seconds:g}"),
    ]
    for is_so, words in wrong:
        if is_so:
            raise VitrailError(words)


def _refuse_graphs(flags: Mapping[str, Collection[str]]) -> None:
    for flag, ways in flags.items():
        if found := [way for way in ways if way in ("graphs", "tuned")]:
            raise VitrailError(f"{flag} {' '.join(found)}: CUDA graphs need a GPU: choose eager or compiled")


def _lacked_room(row: Row | None) -> bool:
    """Whether a contender failed for want of a GPU's memory, of which others had a part."""
    return row is not None and any(words in row.error for words in ("out of memory", "ALLOC_FAILED"))


def _brief(words: str) -> str:
    return words.removeprefix("WeightsError: ")
