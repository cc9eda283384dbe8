"""Probes of the real DeiT-Tiny on the flowers, beside scikit-learn on the same features.

    python benchmarks/probe_flowers.py FLOWERS DEIT_TINY --out benchmarks/probe_flowers.json

FLOWERS holds {train,val}/<class>/*.jpg (2,934 and 736 photographs of 5 kinds), DEIT_TINY is the checkpoint. Both sides
learn from the same pictures; settings are those that vitrail chose on held-out pictures, so that the same problem is
solved twice. SGD has no counterpart there and stands beside the same logistic regression.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import tempfile
import time
import warnings
from datetime import date
from pathlib import Path

import numpy as np
import sklearn
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from threadpoolctl import threadpool_limits

import vitrail
from vitrail.data.opening import open_source
from vitrail.scoring.features import Extractor
from vitrail.scoring.probing.heads import scale_of
from vitrail.scoring.probing.knn import KS, TEMPERATURE
from vitrail.scoring.probing.logistic import DECAYS, regress
from vitrail.scoring.probing.methods import METHODS, make_methods
from vitrail.scoring.probing.problem import gather
from vitrail.scoring.probing.ridge import BIAS, L2
from vitrail.scoring.probing.runs import Runs
from vitrail.scoring.probing.sides import make_sides


def scaled(learn: np.ndarray, judged: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, std = learn.mean(axis=0), learn.std(axis=0) + 1e-5
    return (learn - mean) / std, (judged - mean) / std


def peer(name: str, setting: float, learn: np.ndarray, labels: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """What scikit-learn says."""
    learn, judged = learn.astype(np.float64), judged.astype(np.float64)
    if name == "knn":
        votes = {"metric": "cosine", "weights": lambda distances: np.exp((1 - distances) / TEMPERATURE)}
        return KNeighborsClassifier(int(setting), **votes).fit(learn, labels).predict(judged)
    learn, judged = scaled(learn, judged)
    if name == "ridge":
        learn, judged = (np.pad(part, ((0, 0), (0, 1)), constant_values=BIAS) for part in (learn, judged))
        targets = 2.0 * (labels[:, None] == np.unique(labels)) - 1
        return Ridge(alpha=setting, fit_intercept=False).fit(learn, targets).predict(judged).argmax(axis=1)
    model = LogisticRegression(C=1 / (len(learn) * setting), tol=1e-8, max_iter=10_000)
    return model.fit(learn, labels).predict(judged)


def one_by_torch(points: torch.Tensor, labels: torch.Tensor, classes: int, decay: float) -> None:
    """The same problem for torch's own L-BFGS."""
    head = torch.nn.Linear(points.shape[1], classes, dtype=points.dtype)
    torch.nn.init.zeros_(head.weight)
    how = {"max_iter": 1000, "max_eval": 5000, "tolerance_grad": 1e-8, "tolerance_change": 0.0}
    optimiser = torch.optim.LBFGS(head.parameters(), line_search_fn="strong_wolfe", **how)

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(head(points), labels) + decay / 2 * head.weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)


def grid_seconds(points: torch.Tensor, labels: torch.Tensor, classes: int) -> dict[str, float]:
    """Processor time of the grid of penalties on all pictures, to the same tolerance and at most 1,000 steps."""
    points = scale_of(points, torch.float64)(points)
    how = {"steps": 1000, "tolerance": 1e-8}
    ways = {
        "at once": lambda: regress(points, labels, classes, DECAYS, **how),
        "one after the other": lambda: [regress(points, labels, classes, [decay], **how) for decay in DECAYS],
        "torch.optim.LBFGS": lambda: [one_by_torch(points, labels, classes, decay) for decay in DECAYS],
        "scikit-learn": lambda: [
            LogisticRegression(C=1 / (len(points) * decay), tol=1e-8, max_iter=1000).fit(points.numpy(), labels.numpy())
            for decay in DECAYS
        ],
    }
    seconds = {}
    for name, way in ways.items():
        start = time.process_time()
        with warnings.catch_warnings(), threadpool_limits(1):  # threads that wait would be counted
            warnings.simplefilter("ignore")  # scikit-learn tells of 1,000 steps
            way()
        seconds[name] = round(time.process_time() - start, 1)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("flowers", type=Path)
    parser.add_argument("deit_tiny", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    hardware = torch.cuda.get_device_name() if args.device.startswith("cuda") else platform.machine()
    model, source = vitrail.load(args.deit_tiny).to(args.device), open_source(args.flowers)
    report = vitrail.probe(model, source, seeds=args.seeds, name="DeiT-Tiny")
    print(report.text(), flush=True)
    sides = make_sides(source, None, None).with_held_out(source.samples)
    problem = gather(source, sides, Extractor(model), progress=None)
    methods = make_methods(METHODS, torch.device(args.device), l2=L2, ks=KS, temperature=TEMPERATURE)
    runs = Runs(problem, methods, args.seeds, None)
    rows = []
    for figure in report.figures:
        method = next(one for one in methods if one.name == figure.method)
        row = {"method": figure.method, "shots": figure.shots, "vitrail": round(100 * figure.mean, 2)}
        row |= {"spread": None if figure.spread is None else round(100 * figure.spread, 2)}
        if figure.method != "sgd":
            theirs, same = [], []
            for seed, setting in enumerate(figure.chosen):
                own = runs.places(method, figure.shots, seed)
                learn, labels = problem.learn[own], problem.learn_labels[own]
                ours = method.answer(learn, labels, problem.judged, problem.classes, (setting,), seed)[0].numpy()
                answers = peer(figure.method, setting, learn.numpy(), labels.numpy(), problem.judged.numpy())
                theirs.append(float((answers == problem.judged_labels.numpy()).mean()))
                same.append(float((answers == ours).mean()))
            row |= {"scikit_learn": round(100 * statistics.fmean(theirs), 2)}
            row |= {"answers_that_agree": round(100 * statistics.fmean(same), 2)}
        rows.append(row)
        print(json.dumps(row), flush=True)
    versions = {"torch": torch.__version__, "scikit-learn": sklearn.__version__, "python": platform.python_version()}
    facts = {"date": date.today().isoformat(), "hardware": hardware, "threads": torch.get_num_threads(), **versions}
    facts |= {"learnt": report.learnt, "judged": report.judged, "held_out": report.held, "seeds": args.seeds}
    torch.set_num_threads(1)
    facts["grid_processor_s"] = grid_seconds(problem.learn, problem.learn_labels, problem.classes)
    print(facts["grid_processor_s"])
    if args.out:
        args.out.write_text(json.dumps({**facts, "rows": rows}) + "\n")
    if args.plot:
        with tempfile.TemporaryDirectory() as folder:
            report.write(Path(folder) / "probe")
            shutil.copyfile(Path(folder) / "probe" / "probe.png", args.plot)


if __name__ == "__main__":
    main()
