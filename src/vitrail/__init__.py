"""The Vision Transformer as complete software."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.checking.check import check
    from vitrail.classifier import Classifier, Prediction, load
    from vitrail.conversion import convert
    from vitrail.data.packing import PackReport, pack
    from vitrail.errors import VitrailError
    from vitrail.figures.look import Look, look
    from vitrail.model.config import ResNetConfig, ViTConfig
    from vitrail.model.resnet import ResNet
    from vitrail.model.vit import ViT
    from vitrail.model.zoo import create, models
    from vitrail.pictures import Preprocessing
    from vitrail.pretraining.pretrain import pretrain, resume
    from vitrail.scoring.evaluation import evaluate
    from vitrail.scoring.probing.probe import probe
    from vitrail.scoring.probing.report import ProbeReport
    from vitrail.scoring.probing.suite import SuiteReport, probe_suite
    from vitrail.scoring.report import Report
    from vitrail.scoring.stress.report import StressReport
    from vitrail.scoring.stress.stress import stress
    from vitrail.serving.serve import serve
    from vitrail.shipping.bulk.predict import BulkReport, predict_many
    from vitrail.shipping.export import export
    from vitrail.shipping.export_report import ExportReport
    from vitrail.shipping.push import push
    from vitrail.speed.bench import bench
    from vitrail.speed.plan import plan
    from vitrail.studies.study import study
    from vitrail.training.recipe import Recipe
    from vitrail.training.run import Run
    from vitrail.training.train import train

__version__ = "0.1.0"

_HOMES = {
    "BulkReport": "shipping.bulk.predict",
    "Classifier": "classifier",
    "ExportReport": "shipping.export_report",
    "Look": "figures.look",
    "PackReport": "data.packing",
    "Prediction": "classifier",
    "Preprocessing": "pictures",
    "ProbeReport": "scoring.probing.report",
    "Recipe": "training.recipe",
    "Report": "scoring.report",
    "ResNet": "model.resnet",
    "ResNetConfig": "model.config",
    "Run": "training.run",
    "StressReport": "scoring.stress.report",
    "SuiteReport": "scoring.probing.suite",
    "ViT": "model.vit",
    "ViTConfig": "model.config",
    "VitrailError": "errors",
    "bench": "speed.bench",
    "check": "checking.check",
    "convert": "conversion",
    "create": "model.zoo",
    "evaluate": "scoring.evaluation",
    "export": "shipping.export",
    "load": "classifier",
    "look": "figures.look",
    "models": "model.zoo",
    "pack": "data.packing",
    "plan": "speed.plan",
    "predict_many": "shipping.bulk.predict",
    "probe": "scoring.probing.probe",
    "probe_suite": "scoring.probing.suite",
    "push": "shipping.push",
    "pretrain": "pretraining.pretrain",
    "resume": "pretraining.pretrain",
    "serve": "serving.serve",
    "stress": "scoring.stress.stress",
    "study": "studies.study",
    "train": "training.train",
}

__all__ = [
    "BulkReport",
    "Classifier",
    "ExportReport",
    "Look",
    "PackReport",
    "Prediction",
    "Preprocessing",
    "ProbeReport",
    "Recipe",
    "Report",
    "ResNet",
    "ResNetConfig",
    "Run",
    "StressReport",
    "SuiteReport",
    "ViT",
    "ViTConfig",
    "VitrailError",
    "bench",
    "check",
    "convert",
    "create",
    "evaluate",
    "export",
    "load",
    "look",
    "models",
    "pack",
    "plan",
    "predict_many",
    "pretrain",
    "probe",
    "probe_suite",
    "push",
    "resume",
    "serve",
    "stress",
    "study",
    "train",
]


def __getattr__(name: str) -> Any:
    # imported when first used, so that `vitrail --help` does not wait for torch
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    return getattr(importlib.import_module(f"vitrail.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
