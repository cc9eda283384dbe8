"""Seconds of a step: the device's own work, and what the devices say to each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitrail.model.config import ResNetConfig
from vitrail.model.walk import flops, parameters, walk
from vitrail.speed.activations import FULL, kept, size_of
from vitrail.speed.efficiency import Efficiency, Work
from vitrail.speed.hardware import Device
from vitrail.speed.matrices import linear_flops, muon_bytes, muon_flops
from vitrail.speed.memory import STATE, Setup

REPLAYED = 0.1  # of what starting a block's kernels takes; four times the 23 µs of Ti/16's, recorded, for one picture
OVERLAP = 0.9  # the part of the exchange that computation can hide
BACKWARD = 2 / 3  # of the time of a step's computation


@dataclass(frozen=True)
class Step:
    """Seconds of a step."""

    compute: float
    exchange: float  # between devices, if nothing hid it
    waiting: float  # the part of it that computation does not hide
    starting: float = 0.0  # what the CPU takes to start the kernels, most of it while the device computes

    @property
    def seconds(self) -> float:
        return self.compute + self.waiting

    @property
    def waits_for_cpu(self) -> bool:
        """Whether the CPU takes longer to start the kernels than the device alone to compute them."""
        return 2 * self.starting**2 > self.compute**2


def can_be_recorded(setup: Setup, device: Device) -> bool:
    """As training has it: one process on a GPU, and batches in one part."""
    return device.is_gpu and setup.devices == 1 and setup.accumulate == 1


def training_flops(setup: Setup) -> float:
    """For one picture: forward, twice that backward, and blocks once more where activations are computed again: all
    but their last product, of which nothing is needed."""
    forward = flops(setup.config)
    blocks = [step for step in walk(setup.config) if step.name.startswith("block:")]
    again = sum(step.flops * step.times for step in blocks[:-1])
    return 3.0 * forward + (again if setup.checkpointing else 0)


def work_of(setup: Setup) -> Work:
    """What one device has to do in a step."""
    saved = sum(room.saved for room in kept(setup.config, setup.precision, kernels=setup.kernels))
    count = parameters(setup.config) / setup.holders
    # gradients are written, measured and clipped, the update reads and writes weights and state, an average likewise
    update = count * (5 * FULL + 3 * FULL + 2 * STATE[setup.optimiser] + (8 * FULL if setup.ema else 0))
    casts = parameters(setup.config) * (FULL + size_of(setup.precision)) * setup.accumulate
    flop, carried = training_flops(setup) * setup.local, saved * setup.local * (4 / 3 if setup.checkpointing else 1)
    if setup.optimiser == "muon":  # every device computes all of it
        flop, carried = flop + muon_flops(setup.config), carried + muon_bytes(setup.config)
    is_resnet = isinstance(setup.config, ResNetConfig)
    blocks = sum(setup.config.layers) if is_resnet else setup.config.depth  # type: ignore[union-attr]
    return Work(
        flop=flop,
        width=setup.config.out_chans // 4 if isinstance(setup.config, ResNetConfig) else setup.config.embed_dim,
        carried=carried + update + casts,
        blocks=blocks * (REPLAYED if setup.recorded else setup.accumulate),
        eight=3.0 * linear_flops(setup.config) * setup.local if setup.precision == "fp8" else 0.0,
    )


def exchanged(setup: Setup) -> float:
    """Bytes that each device sends in a step, over a ring: gradients there and around (all-reduce), or, of a model
    that is spread, weights twice (forward and backward) and gradients once, for every accumulated part."""
    count, devices = parameters(setup.config), setup.devices
    around = FULL * count * (devices - 1) / devices
    return 3 * around * setup.accumulate if setup.shard else 2 * around


def pace(setup: Setup, device: Device, network: float) -> float:
    """Bytes a second of the slowest link of the ring."""
    return 1e9 * (device.link if setup.devices <= device.per_machine else min(device.link, network))


def step_of(setup: Setup, device: Device, efficiency: Efficiency, network: float) -> Step:
    """Predicted."""
    work = work_of(setup)
    compute = efficiency.seconds(work, device.peak(setup.precision), 1e12 * device.bandwidth)
    return replace(with_exchange(setup, compute, device, network), starting=efficiency.starting(work))


def with_exchange(setup: Setup, compute: float, device: Device, network: float) -> Step:
    """Gradients travel while the backward pass goes on (of a spread model, weights in the forward pass too), but for
    the last tenth, which nothing is left to hide."""
    exchange = exchanged(setup) / pace(setup, device, network)
    hiding = compute * (1 if setup.shard else BACKWARD)
    return Step(compute, exchange, max(exchange - OVERLAP * hiding, (1 - OVERLAP) * exchange))
