"""Memory of one device in training: what is kept for good, and the fullest moment of a step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Literal

from vitrail.errors import VitrailError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.walk import walk
from vitrail.speed.activations import FULL, Kept, Precision, kept, kept_once

OptimiserName = Literal["adamw", "adam", "sgd", "lion", "muon"]
STATE = {"adamw": 8, "adam": 8, "sgd": 4, "lion": 4, "muon": 4}  # bytes for each parameter of a block
USABLE = 0.92  # of a device's memory: the rest is the driver's, and lost between tensors


@dataclass(frozen=True)
class Setup:
    """What is trained, and how it is spread."""

    config: ViTConfig | ResNetConfig
    batch: int  # of all devices and accumulated parts together
    devices: int = 1
    accumulate: int = 1
    precision: Precision = "bf16"
    optimiser: OptimiserName = "adamw"
    ema: bool = False
    shard: bool = False
    checkpointing: bool = False
    kernels: bool = True  # of our own, in half precision: a GPU has them, where it has enough to do
    recorded: bool = False  # the whole step is replayed as one graph, so that no kernel waits to be started

    def __post_init__(self) -> None:
        for name, value in (("batch-size", self.batch), ("gpus", self.devices), ("accumulate", self.accumulate)):
            if value < 1:
                raise VitrailError(f"--{name} must be at least 1, not {value}")
        if self.batch < self.devices * self.accumulate:
            parts = f"{self.devices} devices" + (f" x {self.accumulate} parts" if self.accumulate > 1 else "")
            raise VitrailError(f"a batch of {self.batch} cannot be spread over {parts}: give a larger --batch-size")
        if self.checkpointing and isinstance(self.config, ResNetConfig):
            raise VitrailError("a ResNet has no blocks that are computed again: leave --checkpointing and --shard out")
        if self.precision in ("bf16_residual", "fp8") and isinstance(self.config, ResNetConfig):
            raise VitrailError(f"precision {self.precision} is for Vision Transformers: use bf16")
        if self.optimiser == "muon" and isinstance(self.config, ResNetConfig):
            raise VitrailError("muon needs a model with blocks, a Vision Transformer: choose another optimiser")

    @property
    def local(self) -> int:
        """Pictures of a step on one device."""
        return -(-self.batch // self.devices)

    @property
    def part(self) -> int:
        """Pictures that go through the model together."""
        return -(-self.local // self.accumulate)

    @property
    def holders(self) -> int:
        """Devices over which weights, gradients and state are spread."""
        return self.devices if self.shard else 1

    def with_part(self, part: int) -> Setup:
        """The same with so many pictures at once on a device."""
        return replace(self, batch=part * self.devices * self.accumulate)


@dataclass(frozen=True)
class Memory:
    """Bytes on one device at the fullest moment of a step; the parts add up to the peak."""

    parameters: int
    gradients: int  # those that are there at that moment: alone on a device, they come as activations go
    optimiser: int
    ema: int
    activations: int
    working: int  # gradients of activations, copies of weights, weights gathered from other devices

    @property
    def peak(self) -> int:
        return sum(asdict(self).values())


def memory_of(setup: Setup) -> Memory:
    """At the fullest moment: somewhere in the backward pass, at its beginning, or in the update."""
    weights = part_parameters(setup.config)
    total = sum(weights)
    gradients = [FULL * count for count in weights]
    here = setup.part
    rooms = kept(setup.config, setup.precision, kernels=setup.kernels)
    once = kept_once(setup.config, total, setup.precision)
    pictures = setup.local * _pixels(setup.config) * (FULL + 1)  # as bytes, and as numbers
    gathered = _gathered(setup, weights)
    always = setup.devices > 1 or setup.accumulate > 1  # gradients have their place for good
    moments = []
    for at, room in enumerate(rooms):
        held = sum(_held(other, setup) for other in rooms[:at]) + room.saved
        copies = once if not setup.checkpointing else _largest(weights) * 2
        there = sum(gradients) if always else sum(gradients[at + 1 :])
        moments.append((here * held + pictures, there // setup.holders, here * room.working + copies + gathered))
    if setup.checkpointing:  # the end of the forward pass, when autocast still has all its copies
        held = sum(_held(room, setup) for room in rooms)
        moments.append((here * held + pictures, sum(gradients) // setup.holders * always, once + gathered))
    averaging = FULL * total // setup.holders if setup.ema else 0  # how far each weight is from its average
    moments.append((pictures, sum(gradients) // setup.holders, averaging))
    activations, there, working = max(moments, key=sum)
    state = sum(STATE[setup.optimiser] * count for count in weights)
    if setup.optimiser == "muon":  # what is no matrix of a block is learned by Adam
        state += 4 * (weights[0] + weights[-1])
    return Memory(
        parameters=FULL * total // setup.holders,
        gradients=there,
        optimiser=state // setup.holders,
        ema=FULL * total // setup.holders if setup.ema else 0,
        activations=activations,
        working=working,
    )


def largest_part(setup: Setup, room: float) -> int:
    """The most pictures at once on a device whose step fits into so many bytes; 0 where none does."""
    if memory_of(setup.with_part(1)).peak > room:
        return 0
    low, high = 1, 2
    while memory_of(setup.with_part(high)).peak <= room:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if memory_of(setup.with_part(middle)).peak <= room else (low, middle)
    return low


def part_parameters(config: ViTConfig | ResNetConfig) -> list[int]:
    """Of the parts that `kept` goes through."""
    steps = walk(config)
    if isinstance(config, ResNetConfig):
        head = sum(step.parameters for step in steps if step.name == "logits")
        return [sum(step.parameters * step.times for step in steps) - head, head]
    places = [at for at, step in enumerate(steps) if step.name.startswith("block:")]
    before = sum(step.parameters * step.times for step in steps[: places[0]])
    block = sum(steps[at].parameters for at in places)
    after = sum(step.parameters * step.times for step in steps[places[-1] + 1 :])
    return [before, *[block] * config.depth, after]


def _held(room: Kept, setup: Setup) -> int:
    return room.entrance if setup.checkpointing and room.name == "block" else room.saved


def _largest(weights: list[int]) -> int:
    return max(weights[1:-1], default=max(weights))


def _gathered(setup: Setup, weights: list[int]) -> int:
    """Whole weights and gradients of this block and the next, and those outside the blocks, while all have a part."""
    if setup.holders == 1:
        return 0
    return FULL * (2 * 2 * _largest(weights) + 2 * (weights[0] + weights[-1]))


def _pixels(config: ViTConfig | ResNetConfig) -> int:
    return config.in_chans * config.img_size[0] * config.img_size[1]
