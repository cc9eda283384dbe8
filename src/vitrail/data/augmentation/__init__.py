"""Augmentation: what happens to a sample is drawn once, as a pure function, and applied by either of two engines."""

from vitrail.data.augmentation.policy import Augmentation, Drawn, draw

__all__ = ["Augmentation", "Drawn", "draw"]
