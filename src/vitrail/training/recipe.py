"""Everything that defines a training: a frozen `Recipe`. `recipe_files` reads it from TOML and writes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vitrail.data.augmentation.plan import Augmentation
from vitrail.errors import ConfigError
from vitrail.training.methods import Dino, Mae, Masked

Fit = Literal["crop", "squash", "pad"]  # as `vitrail.pictures` has them, which would bring NumPy and Pillow along
Interpolation = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]

METHODS = ("masked", "mae", "dino")
Setting = int | float | str | bool | tuple[int, ...] | tuple[float, ...] | dict[str, Any]  # a table: `backbone`


@dataclass(frozen=True)
class Data:
    """Which pictures are for what, and how they are fed."""

    val_fraction: float = 0.1  # made by name where the source has no validation part
    split_seed: int = 0
    subset: float = 1.0  # the part of the training pictures that is used, of each class; validation stays the same
    engine: Literal["auto", "workers", "resident"] = "auto"  # resident: all pixels on the device
    workers: int | None = None  # processes that decode; None: one for each core
    balanced: bool = False  # classes are drawn equally often
    strict: bool = False  # an unreadable picture stops the training


@dataclass(frozen=True)
class Pixels:
    """How pictures are fitted to the model in evaluation; None: as the model's weights were trained."""

    fit: Fit | None = None
    crop_pct: float | None = None
    interpolation: Interpolation | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Group:
    """A rule for parameters whose names match a pattern (`head.*`, `blocks.[0-3].*`); the last that matches holds."""

    match: str
    lr: float = 1.0  # factor
    weight_decay: float | None = None  # None: as for the others
    frozen: bool = False


@dataclass(frozen=True)
class Optimiser:
    name: Literal["adamw", "adam", "sgd", "lion", "muon"] = "adamw"
    lr: float = 1e-3  # at the peak; of muon: for what is no matrix
    muon_lr: float = 0.02  # of the matrices
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9  # of sgd and muon
    eps: float = 1e-8
    weight_decay: float = 0.05  # not of norms, biases, tokens and positions
    layer_decay: float = 1.0  # each block learns this factor slower than the one above it
    clip: float = 1.0  # of the norm of all gradients; 0: none
    sam: float = 0.0  # radius of sharpness-aware minimisation; 0: none
    groups: tuple[Group, ...] = ()

    def times(self, factor: float) -> Optimiser:
        """With all learning rates times a factor, in six digits."""
        lr, muon_lr = (float(f"{rate * factor:.6g}") for rate in (self.lr, self.muon_lr))
        return replace(self, lr=lr, muon_lr=muon_lr if self.name == "muon" else self.muon_lr)


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the steps: warm-up from 0, the course, the end."""

    kind: Literal["cosine", "linear", "step", "rsqrt", "wsd", "constant"] = "cosine"
    warmup_epochs: float = 0.0
    warmup_steps: int = 0  # the two are added
    final: float = 0.0  # factor at the end, of cosine, linear and wsd
    step_epochs: float = 30.0  # of step: after so many epochs …
    step_factor: float = 0.1  # … times this
    timescale: int = 10_000  # of rsqrt, in steps
    cooldown: float = 0.2  # of wsd and rsqrt: the last part of the steps goes down linearly


@dataclass(frozen=True)
class Loss:
    kind: Literal["auto", "cross-entropy", "binary"] = "auto"  # auto: binary for several labels to a picture
    smoothing: float = 0.0
    class_weights: bool = False  # rare classes count more, so that all count alike


@dataclass(frozen=True)
class Distillation:
    """A teacher whose answers are learned beside the labels (DeiT)."""

    teacher: str = ""  # any MODEL; empty: none
    kind: Literal["hard", "soft"] = "hard"
    weight: float = 0.5
    temperature: float = 1.0


@dataclass(frozen=True)
class Stage:
    """Until this part of the steps, pictures are of this size (progressive resolution), so many of their patches are
    left out, or other things happen to them (no mixing at the end, say)."""

    until: float
    img_size: int | None = None  # None: the recipe's
    patch_drop: float | None = None  # None: the architecture's
    augmentation: Augmentation | None = None  # all of it, in place of the recipe's; None: the recipe's

    @property
    def changes_nothing(self) -> bool:
        return self.img_size is None and self.patch_drop is None and self.augmentation is None


@dataclass(frozen=True)
class Recipe:
    model: str = "vit_ti16"
    architecture: dict[str, Setting] = field(default_factory=dict)  # fields of the model's config
    img_size: int | None = None  # None: the model's
    whiten: bool = False  # from scratch: patches are made uncorrelated before their projection
    epochs: float = 30.0
    steps: int | None = None  # in place of epochs
    batch_size: int = 256  # of all processes and accumulated parts together
    auto_batch: bool = False  # set by batch_size = "auto": the largest that fits; learning rates are for batch_size
    accumulate: int = 1  # parts of a batch that go through the model one after the other
    seed: int = 0
    # auto: bf16 where the device multiplies it, else fp32; bf16_residual: the sums over the blocks too, which is faster
    # and less exact; fast: that where auto is bf16, else fp32; fp8: bf16_residual with linear maps in eight bits
    precision: Literal["auto", "fast", "fp32", "bf16", "bf16_residual", "fp16", "fp8"] = "auto"
    compile: bool = False
    record: bool = False  # on one GPU: the whole step is recorded and replayed, which makes small models faster
    deterministic: bool = False  # bit-equal on CUDA too, at some cost
    ema: float = 0.0  # decay of the average of the weights that is evaluated and saved beside them; 0: none
    eval_epochs: float = 1.0
    patience: int = 0  # evaluations without a better one after which to stop; 0: never
    checkpoint_minutes: float = 5.0
    keep_checkpoints: int = 2
    data: Data = Data()
    pixels: Pixels = Pixels()
    augmentation: Augmentation = field(default_factory=Augmentation)
    optimiser: Optimiser = Optimiser()
    schedule: Schedule = Schedule()
    loss: Loss = Loss()
    distillation: Distillation = Distillation()
    stages: tuple[Stage, ...] = ()
    masked: Masked | None = None  # these three, of which one at most: learning without labels
    mae: Mae | None = None
    dino: Dino | None = None

    @property
    def method(self) -> str | None:
        """By which it learns without labels, if it does."""
        return next((name for name in METHODS if getattr(self, name) is not None), None)

    def __post_init__(self) -> None:
        _check(self)


def augmentations(recipe: Recipe) -> list[Augmentation]:
    """The recipe's own, and those of its stages."""
    return [recipe.augmentation, *(one.augmentation for one in recipe.stages if one.augmentation is not None)]


def leaves_patches_out(recipe: Recipe) -> bool:
    """Whether any step does."""
    return bool(recipe.architecture.get("patch_drop")) or any(stage.patch_drop for stage in recipe.stages)


def _check(recipe: Recipe) -> None:
    """What no type says."""
    wrong = [
        (recipe.epochs <= 0, "epochs must be above 0"),
        (recipe.steps is not None and recipe.steps < 1, "steps must be at least 1"),
        (recipe.batch_size < 1, "batch_size must be at least 1"),
        (recipe.accumulate < 1, "accumulate must be at least 1"),
        (recipe.batch_size % max(1, recipe.accumulate) != 0, "accumulate must divide batch_size"),
        (not 0 <= recipe.ema < 1, "ema must be from 0 to below 1"),
        (recipe.eval_epochs <= 0, "eval_epochs must be above 0"),
        (recipe.patience < 0, "patience must not be negative"),
        (recipe.keep_checkpoints < 1, "keep_checkpoints must be at least 1"),
        (not 0 <= recipe.data.val_fraction < 1, "data.val_fraction must be from 0 to below 1"),
        (not 0 < recipe.data.subset <= 1, "data.subset must be above 0 and at most 1"),
        (recipe.optimiser.lr <= 0 or recipe.optimiser.muon_lr <= 0, "optimiser: learning rates must be above 0"),
        (recipe.optimiser.weight_decay < 0, "optimiser.weight_decay must not be negative"),
        (not 0 < recipe.optimiser.layer_decay <= 1, "optimiser.layer_decay must be above 0 and at most 1"),
        (recipe.optimiser.clip < 0 or recipe.optimiser.sam < 0, "optimiser: clip and sam must not be negative"),
        (not 0 <= recipe.loss.smoothing < 1, "loss.smoothing must be from 0 to below 1"),
        (not 0 <= recipe.distillation.weight <= 1, "distillation.weight must be from 0 to 1"),
        (not 0 <= recipe.schedule.cooldown <= 1, "schedule.cooldown must be from 0 to 1"),
        (sum(getattr(recipe, name) is not None for name in METHODS) > 1, f"choose one of {', '.join(METHODS)}"),
        (any(not 0 < stage.until <= 1 for stage in recipe.stages), "stages: until must be above 0 and at most 1"),
        (
            any(stage.changes_nothing for stage in recipe.stages),
            "a stage must have img_size, patch_drop or augmentation: this one changes nothing",
        ),
        (
            any(plan.repeats != recipe.augmentation.repeats for plan in augmentations(recipe)),
            "stages: augmentation.repeats must be the recipe's: it says which pictures make a batch",
        ),
        (
            len({plan.crop == "none" for plan in augmentations(recipe)}) > 1,
            "stages: augmentation.crop must be none for all of the training or for no part of it",
        ),
        (
            any(not 0 <= (stage.patch_drop or 0) < 1 for stage in recipe.stages),
            "stages: patch_drop must be from 0 to below 1",
        ),
        (
            recipe.method is not None and leaves_patches_out(recipe),
            "patch_drop must be 0 where there are no labels: those methods have their own ways to leave patches out",
        ),
    ]
    for is_so, words in wrong:
        if is_so:
            raise ConfigError(f"recipe: {words}")
