"""Other people's checkpoints: names and layouts, both ways; one file per family."""

from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.recognise import read_checkpoint

__all__ = ["Checkpoint", "read_checkpoint"]
