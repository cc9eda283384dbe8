"""Trackers, read back with their own readers."""

import sqlite3
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import ConfigError, VitrailError
from vitrail.training import trackers as module
from vitrail.training.trackers import Tracker, make_trackers

RECIPE = 'model = "vit_ti16"\nepochs = 3.0\n\n[optimiser]\nname = "adamw"\nlr = 0.001\n'


def row(step: int) -> dict:
    return {"kind": "train", "step": step, "epoch": step / 2, "time": 1.0, "loss": 1 / step, "grad_norm": None}


def track(tracker: Tracker, steps: range) -> None:
    for step in steps:
        tracker.log(row(step))
    tracker.log({"kind": "eval", "step": steps[-1], "accuracy": 0.5, "loss": float("nan"), "text": "words"})
    tracker.log({"kind": "event", "step": steps[-1], "text": "words alone"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "photos-1"
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text(RECIPE)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    Image.fromarray(pixels).save(run / "curves.png")
    return run


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed (the extra `track`)")
def test_tensorboard_has_the_figures_the_recipe_and_the_plots(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tracker,) = make_trackers(["tensorboard"], folder, "photos-1")
    track(tracker, range(1, 6))
    tracker.close()
    (tracker,) = make_trackers(["tensorboard"], folder, "photos-1", resume_at=3)
    track(tracker, range(4, 9))
    tracker.close([folder / "curves.png", folder / "recipe.toml", folder / "absent.png"])
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert set(events.Tags()["scalars"]) == {"train/epoch", "train/loss", "eval/accuracy"}
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 9))
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx([1 / k for k in range(1, 9)])
    assert events.Tags()["images"] == ["curves"]
    (text,) = events.Tensors("recipe/text_summary")
    assert b"| optimiser.lr | 0.001 |" in text.tensor_proto.string_val[0]


@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed (the extra `track`)")
def test_mlflow_has_one_run_over_all_sessions_in_a_local_store(folder: Path, capfd, monkeypatch) -> None:
    monkeypatch.chdir(folder)  # nothing may be left in the folder from which a training is started
    (tracker,) = make_trackers(["mlflow"], folder, "photos-1")
    track(tracker, range(1, 4))
    tracker.close()
    (tracker,) = make_trackers(["mlflow"], folder, "photos-1", resume_at=3)
    track(tracker, range(4, 6))
    tracker.close([folder / "curves.png", folder / "absent.png"])
    assert "INFO" not in capfd.readouterr().err

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("vitrail")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "photos-1"
    assert run.info.status == "FINISHED"
    assert run.data.params.items() >= {"model": "vit_ti16", "optimiser.lr": "0.001"}.items()
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert {metric.step: metric.value for metric in history} == pytest.approx({k: 1 / k for k in range(1, 6)})
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["curves.png"]
    assert {path.name for path in folder.iterdir()} == {"recipe.toml", "curves.png", "mlflow.run"}
    with sqlite3.connect(folder.parent / "mlflow.db") as store:
        assert store.execute("select count(*) from runs").fetchone() == (1,)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_one_that_is_not_installed_says_which_extra_to_install(name: str, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(VitrailError, match=rf"^{name} is not installed: pip install 'vitrail\[track\]'"):
        make_trackers([name], folder, "run")


def test_a_name_that_is_none_lists_those_there_are(folder: Path) -> None:
    with pytest.raises(ConfigError, match="choose from tensorboard, mlflow"):
        make_trackers(["wandb"], folder, "run")


def test_asking_for_none_gives_none(folder: Path) -> None:
    assert make_trackers([], folder, "run") == []
