"""A Python process ends, whatever it has left of its loaders."""

import multiprocessing
import subprocess
import sys

import numpy as np
import pytest

from tests.training.running import make_pictures
from vitrail.data.loading import EvaluationLoader
from vitrail.data.opening import open_source
from vitrail.data.source import Subset
from vitrail.errors import PictureError
from vitrail.pictures import Preprocessing

SCRIPT = """
import multiprocessing, sys
import numpy as np
from vitrail.data.augmentation import Augmentation
from vitrail.data.loading import TrainingLoader
from vitrail.data.opening import open_source
from vitrail.data.schedule import Schedule
from vitrail.data.source import Subset
from vitrail.pictures import Preprocessing

pictures, how = sys.argv[1:]


def work():
    source = open_source(pictures)
    subset = Subset(source, "train", np.arange(len(source)))
    loader = TrainingLoader(Schedule(subset, 4, seed=0), Preprocessing(size=(8, 8)), Augmentation(), workers=2)
    if how == "fails":
        loader.schedule = None
    sys.modules["kept"] = batches = loader.batches()  # so that nothing collects it
    next(batches)
    print("a batch came")


if how == "child":
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    sys.exit(child.exitcode)
work()
"""


@pytest.mark.parametrize(("how", "code"), [("kept", 0), ("fails", 1), ("child", 0)])
def test_a_process_with_an_unfinished_loader_ends(tmp_path, how, code):
    pictures = make_pictures(tmp_path / "pictures")
    command = [sys.executable, "-c", SCRIPT, str(pictures), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code
    assert ("a batch came" in done.stdout) == (how != "fails")
    assert ("killed" in done.stderr) is False
    assert how == "fails" or not done.stderr


def test_workers_end_with_the_error_that_stopped_them(tmp_path):
    """Even while a traceback refers to all of it."""
    folder = make_pictures(tmp_path / "pictures")
    (folder / "kind 0" / "000.png").write_bytes(b"no picture")
    source = open_source(folder)
    subset = Subset(source, "val", np.arange(len(source)))
    loader = EvaluationLoader(subset, Preprocessing(size=(8, 8)), batch_size=4, workers=2, strict=True)
    before = set(multiprocessing.active_children())
    with pytest.raises(PictureError) as kept:
        list(loader)
    assert set(multiprocessing.active_children()) <= before
    assert kept.tb is not None
