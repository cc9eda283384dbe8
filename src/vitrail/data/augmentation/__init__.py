"""Augmentation: what happens to a sample is drawn once, as a pure function, and applied by either of two engines."""

from vitrail.data.augmentation.plan import Augmentation

__all__ = ["Augmentation"]
