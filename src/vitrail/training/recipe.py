"""Everything that defines a training: a frozen `Recipe`. `recipe_files` reads it from TOML and writes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

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

    val_fraction: Annotated[float, "the part held out for validation, by name, where the source has none"] = 0.1
    split_seed: Annotated[int, "another one holds other pictures out"] = 0
    subset: Annotated[float, "the part of each class's training pictures that is used; validation stays the same"] = 1.0
    engine: Annotated[
        Literal["auto", "workers", "resident"], "who augments: worker processes, or the device, which holds all pixels"
    ] = "auto"
    workers: Annotated[int | None, "processes that decode pictures; by default one for each core"] = None
    balanced: Annotated[bool, "classes are drawn equally often"] = False
    strict: Annotated[bool, "a picture that cannot be read stops the training"] = False


@dataclass(frozen=True)
class Pixels:
    """How pictures are fitted to the model in evaluation; what is left out is as the model's weights were trained."""

    fit: Annotated[Fit | None, "cut to the model's shape, squeezed into it, or padded"] = None
    crop_pct: Annotated[float | None, "of fit = crop: the part of the shorter side that is kept"] = None
    interpolation: Annotated[Interpolation | None, "by which pictures are resized"] = None
    mean: Annotated[tuple[float, float, float] | None, "of each channel, which is taken off"] = None
    std: Annotated[tuple[float, float, float] | None, "of each channel, by which the rest is divided"] = None


@dataclass(frozen=True)
class Group:
    """A rule for parameters by their names; the last that matches holds."""

    match: Annotated[str, "a pattern of names: head.*, blocks.[0-3].*"]
    lr: Annotated[float, "factor of the learning rate"] = 1.0
    weight_decay: Annotated[float | None, "by default as for the others"] = None
    frozen: Annotated[bool, "they stay as they are"] = False


@dataclass(frozen=True)
class Optimiser:
    """What a step does with the gradients."""

    name: Annotated[Literal["adamw", "adam", "sgd", "lion", "muon"], "muon: for matrices, and AdamW for the rest"] = (
        "adamw"
    )
    lr: Annotated[float, "learning rate at its peak; of muon: for what is no matrix"] = 1e-3
    muon_lr: Annotated[float, "of muon: the learning rate of the matrices"] = 0.02
    betas: Annotated[tuple[float, float], "of adamw, adam, lion, and muon's AdamW: how slowly their means forget"] = (
        0.9,
        0.999,
    )
    momentum: Annotated[float, "of sgd and muon"] = 0.9
    eps: Annotated[float, "of adamw, adam, and muon's AdamW: what keeps their quotient finite"] = 1e-8
    weight_decay: Annotated[float, "not of norms, biases, tokens and positions"] = 0.05
    layer_decay: Annotated[float, "each block learns this factor slower than the one above it"] = 1.0
    clip: Annotated[float, "most that the norm of all gradients may be; 0: anything"] = 1.0
    sam: Annotated[float, "radius of sharpness-aware minimisation, which doubles the work; 0: none"] = 0.0
    groups: Annotated[tuple[Group, ...], "rules for parameters by their names"] = ()

    def times(self, factor: float) -> Optimiser:
        """With all learning rates times a factor, in six digits."""
        lr, muon_lr = (float(f"{rate * factor:.6g}") for rate in (self.lr, self.muon_lr))
        return replace(self, lr=lr, muon_lr=muon_lr if self.name == "muon" else self.muon_lr)


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the steps: warm-up from 0, the course, the end."""

    kind: Annotated[
        Literal["cosine", "linear", "step", "rsqrt", "wsd", "constant"],
        "the course; wsd: constant, with a cooldown, rsqrt: as one over the square root of the step, with a cooldown",
    ] = "cosine"
    warmup_epochs: Annotated[float, "in which the learning rate rises from 0 …"] = 0.0
    warmup_steps: Annotated[int, "… and steps that are added to them"] = 0
    final: Annotated[float, "of cosine, linear and wsd: the part of the learning rate that is left at the end"] = 0.0
    step_epochs: Annotated[float, "of step: after so many epochs …"] = 30.0
    step_factor: Annotated[float, "… the learning rate is multiplied by this"] = 0.1
    timescale: Annotated[int, "of rsqrt: steps until the root begins to matter"] = 10_000
    cooldown: Annotated[float, "of wsd and rsqrt: the last part of the steps, which goes down evenly"] = 0.2


@dataclass(frozen=True)
class Loss:
    """What is learned from labels."""

    kind: Annotated[
        Literal["auto", "cross-entropy", "binary"],
        "binary: each class says yes or no by itself; auto: that where pictures have several labels",
    ] = "auto"
    smoothing: Annotated[float, "the part of a label that is shared by all classes"] = 0.0
    class_weights: Annotated[bool, "rare classes count more, so that all count alike"] = False


@dataclass(frozen=True)
class Distillation:
    """A teacher whose answers are learned beside the labels (DeiT)."""

    teacher: Annotated[str, "a run, a model folder, any other MODEL; empty: none"] = ""
    kind: Annotated[Literal["hard", "soft"], "its best guess is a label, or all its scores are learned"] = "hard"
    weight: Annotated[float, "the teacher's part of the loss; labels have the rest"] = 0.5
    temperature: Annotated[float, "of soft: by what logits are divided first"] = 1.0


@dataclass(frozen=True)
class Stage:
    """Until this part of the steps, pictures are of this size (progressive resolution), so many of their patches are
    left out, or other things happen to them (no mixing at the end, say)."""

    until: Annotated[float, "the part of the steps at which it ends"]
    img_size: Annotated[int | None, "by default the recipe's"] = None
    patch_drop: Annotated[float | None, "by default the architecture's"] = None
    augmentation: Annotated[Augmentation | None, "all of it, in place of the recipe's; by default the recipe's"] = None

    @property
    def changes_nothing(self) -> bool:
        return self.img_size is None and self.patch_drop is None and self.augmentation is None


@dataclass(frozen=True)
class Recipe:
    """A training. What stands beside a field is its help on the command line and in the documentation."""

    model: Annotated[str, "a name of the zoo (vitrail models)"] = "vit_ti16"
    architecture: Annotated[
        dict[str, Setting], "fields of the model's configuration: depth, drop_path, pool, … (docs/models.md)"
    ] = field(default_factory=dict)
    img_size: Annotated[int | None, "pixels of a side; by default the model's"] = None
    whiten: Annotated[bool, "from scratch: patches are made uncorrelated before their projection"] = False
    epochs: Annotated[float, "how often each picture is seen"] = 30.0
    steps: Annotated[int | None, "how many batches, in place of epochs"] = None
    batch_size: Annotated[
        int, "pictures of a step, in all processes and accumulated parts together; auto: what fits"
    ] = 256
    auto_batch: bool = False  # set by batch_size = "auto": the largest that fits; learning rates are for batch_size
    accumulate: Annotated[int, "parts of a batch that go through the model one after the other, for less memory"] = 1
    seed: Annotated[int, "everything random is a function of it"] = 0
    precision: Annotated[
        Literal["auto", "fast", "fp32", "bf16", "bf16_residual", "fp16", "fp8"],
        "what the model computes in; auto: bf16 where the device multiplies it, else fp32; bf16_residual: the sums "
        "over the blocks too, faster and less exact; fast: that where auto is bf16; fp8: linear maps in eight bits too",
    ] = "auto"
    compile: Annotated[bool, "by torch's compiler, which takes a minute and pays in longer trainings"] = False
    record: Annotated[bool, "on one GPU: the whole step is recorded and replayed; small models gain most"] = False
    deterministic: Annotated[bool, "the same bits every time on a GPU too, at some cost"] = False
    ema: Annotated[float, "decay of an average of the weights, which is then what is evaluated and saved; 0: none"] = (
        0.0
    )
    eval_epochs: Annotated[float, "epochs from one evaluation to the next"] = 1.0
    patience: Annotated[int, "evaluations without a better one after which training stops; 0: never"] = 0
    checkpoint_minutes: Annotated[float, "from one checkpoint to the next"] = 5.0
    keep_checkpoints: Annotated[int, "the newest ones that are kept"] = 2
    data: Annotated[Data, "Pictures"] = Data()
    pixels: Annotated[Pixels, "Pixels in evaluation (by default as the weights were trained)"] = Pixels()
    augmentation: Annotated[Augmentation, "Augmentation"] = field(default_factory=Augmentation)
    optimiser: Annotated[Optimiser, "Optimiser"] = Optimiser()
    schedule: Annotated[Schedule, "Learning rate over the steps"] = Schedule()
    loss: Annotated[Loss, "Loss"] = Loss()
    distillation: Annotated[Distillation, "Teacher"] = Distillation()
    stages: Annotated[tuple[Stage, ...], "what is different until some step"] = ()
    # learning without labels, one of these at most
    masked: Annotated[Masked | None, "Masked patch prediction"] = None
    mae: Annotated[Mae | None, "Masked autoencoder"] = None
    dino: Annotated[Dino | None, "Self-distillation"] = None

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
        (
            recipe.batch_size % max(1, recipe.accumulate) != 0,
            f"accumulate must divide batch_size: {recipe.batch_size} are not {recipe.accumulate} equal parts",
        ),
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
