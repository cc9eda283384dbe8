"""`vitrail.plan`: memory, pictures a second, days and cost of a training, before it is begun."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vitrail.errors import VitrailError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.walk import flops, parameters, tokens
from vitrail.model.zoo import configure, find
from vitrail.speed.activations import Precision
from vitrail.speed.advice import advise, not_counted
from vitrail.speed.auto_batch import with_auto_batch
from vitrail.speed.efficiency import Efficiency, efficiency_of
from vitrail.speed.hardware import GIB, Device, find_device
from vitrail.speed.memory import USABLE, Memory, Setup, largest_part, memory_of
from vitrail.speed.precisions import CHOOSING, check_name, planned, replaced
from vitrail.speed.stages import PlannedStage, resized, sizes_of
from vitrail.speed.timing import Step, can_be_recorded, step_of, training_flops, with_exchange
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_files import read_recipe

if TYPE_CHECKING:
    from vitrail.speed.measuring import Measured

# pictures of well-known sets: of ImageNet-21k the release of 2011, of JFT what the paper says
SETS = {"cifar10": 50_000, "imagenet": 1_281_167, "imagenet21k": 14_197_122, "jft300m": 303_000_000}
SMALL = 100  # pixels of a side, below which pictures are hardly ImageNet's


@dataclass(frozen=True)
class Plan:
    """What a training needs."""

    model: str
    setup: Setup  # this and the next lines: of the stage that needs most memory
    compiled: bool
    device: Device
    memory: Memory
    largest: int  # batch of all devices together that fits; 0: none
    step: Step
    stages: tuple[PlannedStage, ...]  # in their order; one, but for recipes whose pictures grow
    epochs: float
    pictures: int
    price: float | None  # of a device, an hour
    certain: bool  # the factors of this kind of device were measured
    advice: tuple[str, ...]
    changed: bool = False  # the recipe makes another architecture of the named model
    measured: Measured | None = None

    @property
    def room(self) -> float:
        """Bytes of a device that a training can have."""
        return USABLE * self.device.memory * GIB

    @property
    def fits(self) -> bool:
        return self.memory.peak <= self.room

    @property
    def pictures_per_s(self) -> float:
        return self.setup.batch / self.step.seconds

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    @property
    def hours(self) -> float:
        return sum(stage.steps * stage.step.seconds for stage in self.stages) / 3600

    @property
    def cost(self) -> float | None:
        return None if self.price is None else self.hours * self.setup.devices * self.price

    @property
    def reached(self) -> float:
        """The part of the device's peak that the model's own arithmetic reaches."""
        own = 3 * flops(self.setup.config) * self.setup.batch / self.setup.devices
        return own / self.step.seconds / self.device.peak(self.setup.precision)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain numbers: bytes, seconds."""
        setup = {name: value for name, value in vars(self.setup).items() if name != "config"}
        config = self.setup.config
        return {
            "model": {
                "name": self.model,
                "changed": self.changed,
                "img_size": list(config.img_size),
                "tokens": tokens(config),
                "parameters": parameters(config),
                "flop_forward": flops(config),
                "flop_training": training_flops(self.setup),
            },
            "device": asdict(self.device),
            "setup": {**setup, "local": self.setup.local, "part": self.setup.part, "compiled": self.compiled},
            "memory": {**asdict(self.memory), "peak": self.memory.peak, "room": round(self.room)},
            "fits": self.fits,
            "largest_batch": self.largest,
            "step": {**asdict(self.step), "seconds": self.step.seconds, "waits_for_cpu": self.step.waits_for_cpu},
            "stages": [
                {
                    "img_size": list(stage.setup.config.img_size),
                    "steps": stage.steps,
                    "seconds": stage.step.seconds,
                    "peak": stage.memory.peak,
                }
                for stage in self.stages
            ],
            "pictures_per_s": self.pictures_per_s,
            "of_peak": self.reached,
            "measured_kind": self.certain,
            "training": {
                "epochs": self.epochs,
                "pictures": self.pictures,
                "steps": self.steps,
                "hours": self.hours,
                "device_days": self.hours * self.setup.devices / 24,
                "price": self.price,
                "cost": self.cost,
            },
            "advice": list(self.advice),
            "measured": None if self.measured is None else asdict(self.measured),
        }


def plan(
    model: str | ViTConfig | ResNetConfig | None = None,
    *,
    recipe: str | Path | None = None,
    img_size: int | None = None,
    batch_size: int | None = None,
    gpus: int = 1,
    kind: str | None = None,
    epochs: float | None = None,
    pictures: int | str | None = None,
    accumulate: int | None = None,
    precision: str | None = None,
    compile: bool | None = None,
    record: bool | None = None,
    optimiser: str | None = None,
    ema: bool | None = None,
    shard: bool = False,
    checkpointing: bool = False,
    price: float | None = None,
    memory: float | None = None,
    network: float | None = None,
    measure: bool = False,
    device: str | None = None,
) -> Plan:
    """Memory, speed, time and cost of training `model` (any MODEL, or a configuration) on `gpus` devices of a `kind`.

    A recipe says what is not given. `batch_size` is that of all devices together; `pictures` of an epoch are ImageNet's
    by default. `memory` in GiB, `network` in GB/s and `price` in dollars an hour stand in place of the table's.
    `measure` times real steps on `device` here.
    """
    base = Recipe() if recipe is None else read_recipe(recipe, {})
    own = base.img_size if img_size is None else img_size
    name, config, changed = _configured(base.model if model is None else model, base, own)
    if base.method is not None:
        raise VitrailError(f"the recipe learns without labels ({base.method}): only training with labels is planned")
    if measure and kind is not None:
        raise VitrailError("--measure is of this machine's device: leave --kind out")
    if device is not None and not measure:
        raise VitrailError(f"--device {device} is where --measure times steps: the kind that is planned for is --kind")
    count = _pictures("imagenet" if pictures is None else pictures)
    _check_numbers(price, epochs=epochs, memory=memory, network=network)
    asked = precision or base.precision
    check_name(asked)
    known = None if measure else find_device(kind or "h200")
    setup = Setup(
        config=config,
        batch=base.batch_size if batch_size is None else batch_size,
        devices=gpus,
        accumulate=base.accumulate if accumulate is None else accumulate,
        precision=_chosen_here(asked, device, config) if known is None else planned(asked, known, config),
        optimiser=optimiser or base.optimiser.name,  # type: ignore[arg-type]
        ema=base.ema > 0 if ema is None else ema,
        shard=shard,
        checkpointing=checkpointing or shard,  # `vitrail train --shard` computes activations again
    )
    compiled = base.compile if compile is None else compile
    measured, where = _measured(setup, compiled, device) if known is None else (None, known)
    where = replace(where, memory=memory or where.memory, network=network or where.network)
    recordable = measured is None and can_be_recorded(setup, where) and not base.optimiser.sam
    recorded = base.record if record is None else record
    setup = replace(setup, recorded=recorded and recordable)
    efficiency = efficiency_of(where.name, compiled)
    is_measured, remarks = measured is not None, replaced(asked, setup.precision, where)
    if base.auto_batch and batch_size is None:
        sides = [stage.img_size for stage in base.stages if stage.img_size is not None]
        shapes = [config.img_size, *((side, side) for side in sides)]
        setup, remark = with_auto_batch(setup, shapes, where, count, is_measured=is_measured)
        remarks.append(remark)
    if setup.batch > count:
        raise VitrailError(f"a batch of {setup.batch} is larger than the {count} pictures: give a smaller --batch-size")
    length, steps = _length(base, epochs, count, setup.batch)
    sizes = sizes_of(base, config.img_size, steps) if measured is None else {config.img_size: steps}
    every = [(resized(setup, size, where), times) for size, times in sizes.items()]
    stages = [PlannedStage(one, times, memory_of(one), _step(one, where, efficiency, measured)) for one, times in every]
    fullest = max(stages, key=lambda stage: stage.memory.peak)
    room = USABLE * where.memory * GIB
    made = Plan(
        model=name,
        setup=fullest.setup,
        compiled=compiled,
        device=where,
        memory=fullest.memory,
        largest=largest_part(fullest.setup, room) * setup.devices * setup.accumulate,
        step=fullest.step,
        stages=tuple(stages),
        epochs=length,
        pictures=count,
        price=price if price is not None else (where.price or None),
        certain=measured is not None or (efficiency.measured and _is_plain(config)),
        advice=(),
        changed=changed,
        measured=measured,
    )
    lines = advise(
        fullest.setup,
        where,
        room,
        fullest.step,
        compiled=compiled,
        is_measured=is_measured,
        recordable=recordable,
        is_free=asked in CHOOSING,
    )
    if pictures is None and min(config.img_size) < SMALL:
        remarks.append(f"an epoch's {count:,} pictures are ImageNet's: --pictures takes another number, or cifar10")
    unknown = not_counted(base, is_measured=is_measured, unrecorded=recorded and not recordable)
    return replace(made, advice=(*lines, *unknown, *remarks))


def _check_numbers(price: float | None, **above_zero: float | None) -> None:
    for flag, value in above_zero.items():
        if value is not None and not 0 < value < math.inf:
            raise VitrailError(f"--{flag} must be above 0, not {value:g}")
    if price is not None and not 0 <= price < math.inf:
        raise VitrailError(f"--price must be a number and not negative: it is {price:g}")


def _step(setup: Setup, device: Device, efficiency: Efficiency, measured: Measured | None) -> Step:
    """As measured, or else predicted."""
    if measured is None:
        return step_of(setup, device, efficiency, device.network)
    return with_exchange(setup, measured.seconds_for(setup), device, device.network)


def _length(recipe: Recipe, epochs: float | None, pictures: int, batch: int) -> tuple[float, int]:
    """Epochs and steps, as training counts them: of an epoch, whole batches alone."""
    if epochs is None and recipe.steps is not None:
        return recipe.steps * batch / pictures, recipe.steps
    wanted = recipe.epochs if epochs is None else epochs
    return wanted, max(1, round(wanted * (pictures // batch)))


def _configured(
    model: str | ViTConfig | ResNetConfig, base: Recipe, img_size: int | None
) -> tuple[str, ViTConfig | ResNetConfig, bool]:
    """The model's name and configuration, and whether the recipe changes it."""
    changes = {"img_size": img_size} if img_size is not None else {}
    if not isinstance(model, str):
        return "a model of your own", configure(model, **changes), False
    if model.startswith("hf:") or Path(model).exists():
        from vitrail.classifier import Classifier

        return model, configure(Classifier.load(model).model.config, **changes), False
    return model, configure(find(model).config, **{**base.architecture, **changes}), bool(base.architecture)


def _is_plain(config: ViTConfig | ResNetConfig) -> bool:
    """Whether steps of such models were measured: no convolutions."""
    return isinstance(config, ViTConfig) and config.backbone is None


def _pictures(given: int | str) -> int:
    text = str(given).lower().replace("_", "").replace(",", "")
    if text in SETS:
        return SETS[text]
    try:
        count = float(text)
    except ValueError:
        count = math.nan
    if not 1 <= count < math.inf or count != int(count):
        raise VitrailError(f"--pictures {given} is no number of pictures: give one, or {', '.join(SETS)}")
    return int(count)


def _chosen_here(asked: str, device: str | None, config: ViTConfig | ResNetConfig) -> Precision:
    from vitrail.model.devices import choose_device
    from vitrail.training.precision import choose_precision

    return cast(Precision, choose_precision(asked, choose_device(device), config))


def _measured(setup: Setup, compiled: bool, device: str | None) -> tuple[Measured, Device]:
    from vitrail.speed.measuring import measure_here

    return measure_here(setup, compiled=compiled, device=device)
