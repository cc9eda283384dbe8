"""What to change when a training does not fit, or spends its time on waiting: each piece is computed, not guessed."""

from __future__ import annotations

from dataclasses import replace

from vitrail.model.config import ResNetConfig
from vitrail.speed.activations import Precision
from vitrail.speed.efficiency import efficiency_of
from vitrail.speed.hardware import DEVICES, GIB, Device
from vitrail.speed.memory import USABLE, Setup, largest_part, memory_of
from vitrail.speed.timing import Step, step_of
from vitrail.training.recipe import Recipe, leaves_patches_out

SLOW = 0.1  # of a step's time that waiting may take without a word
LEAST_GAIN = 0.05  # of pictures a second, for which a flag has its line


def advise(
    setup: Setup,
    device: Device,
    room: float,
    step: Step,
    *,
    compiled: bool,
    is_measured: bool,
    recordable: bool,
    is_free: bool = False,
) -> tuple[str, ...]:
    """Lines for the user, the cheapest change first. `is_free`: which numbers it computes in was left to training."""
    if memory_of(setup).peak > room:
        return tuple(_to_fit(setup, device, room))
    found = [] if is_measured else _to_start(setup, device, step, compiled=compiled, recordable=recordable)
    if is_free and not is_measured:
        found += _to_halve(setup, device, step, compiled=compiled)
    return (*found, *_to_hurry(setup, device, step))


def _to_fit(setup: Setup, device: Device, room: float) -> list[str]:
    found = []
    half: Precision = "bf16" if device.bfloat16 else "fp16"
    if setup.precision == "fp32" and _fits(replace(setup, precision=half), room):
        found.append(f"--precision {half} fits")
    if parts := _parts_that_fit(setup, room):
        found.append(f"--accumulate {parts} fits: the same batch in {parts} parts, one after the other")
    if not setup.checkpointing and not isinstance(setup.config, ResNetConfig):
        found += _to_spread(setup, room)
    largest = largest_part(setup, room) * setup.devices * setup.accumulate
    if largest:
        found.append(f"--batch-size {largest} is the largest that fits as it is")
    others = [other for other in DEVICES.values() if other.memory > device.memory and other.is_gpu]
    able = [other.name for other in others if _fits(setup, USABLE * other.memory * GIB)]
    if able:
        found.append(f"as it is, it fits on {', '.join(able)}")
    return found or ["no setting here makes it fit: choose a smaller model or smaller pictures, or more devices"]


def _to_spread(setup: Setup, room: float) -> list[str]:
    found = []
    again = replace(setup, checkpointing=True)
    if _fits(again, room):
        found.append("--checkpointing fits: activations are computed again, about a quarter more arithmetic")
    spread = replace(again, shard=True)
    if setup.devices > 1 and _fits(spread, room):
        found.append(f"--shard fits: each of {setup.devices} devices holds a part of the model")
    elif setup.devices > 1 and (parts := _parts_that_fit(spread, room)):
        found.append(f"--shard --accumulate {parts} fits")
    if not found:
        for devices in (2**power for power in range(1, 13)):
            if devices > setup.devices and devices * setup.accumulate <= setup.batch:
                more = replace(spread, devices=devices)
                if _fits(more, room):
                    return [f"--gpus {devices} --shard fits"]
    return found


def _to_start(setup: Setup, device: Device, step: Step, *, compiled: bool, recordable: bool) -> list[str]:
    """What has fewer kernels to start, or none."""
    found = []
    if step.waits_for_cpu and device.is_gpu:
        took = f"{1e3 * step.starting:,.0f} ms"
        found.append(f"a step waits for the CPU, which takes {took} to start its kernels: another CPU, another time")
    ways = [] if compiled else [("--compile", setup)]
    if recordable and not setup.recorded:
        ways.append(("--record" if compiled else "--compile --record", replace(setup, recorded=True, kernels=True)))
    gained = 0.0
    for flags, other in ways:
        quicker = step_of(other, device, efficiency_of(device.name, True), device.network)
        gain = step.seconds / quicker.seconds - 1
        if gain > gained + LEAST_GAIN:
            found.append(f"{flags}: {_more(gain)} pictures a second")
            gained = gain
    return found


def _to_halve(setup: Setup, device: Device, step: Step, *, compiled: bool) -> list[str]:
    """Training does not choose float16 by itself, whose loss must be scaled."""
    if setup.precision != "fp32" or device.bfloat16:
        return []
    half = replace(setup, precision="fp16")
    quicker = step_of(half, device, efficiency_of(device.name, compiled), device.network)
    gain = step.seconds / quicker.seconds - 1
    return [f"--precision fp16: {_more(gain)} pictures a second"] if gain > LEAST_GAIN else []


def _more(gain: float) -> str:
    return f"{gain:.0%} more" if gain < 1 else f"{1 + gain:.1f} times the"


def _to_hurry(setup: Setup, device: Device, step: Step) -> list[str]:
    found = []
    if step.waiting > SLOW * step.seconds:
        words = f"{step.waiting / step.seconds:.0%} of a step is waiting for other devices"
        found.append(f"{words}: a larger --batch-size, fewer devices, or a faster --network")
    if setup.checkpointing and not setup.shard:
        return [*found, *_not_needed(setup, device)]
    return found


def _not_needed(setup: Setup, device: Device) -> list[str]:
    if _fits(replace(setup, checkpointing=False), USABLE * device.memory * GIB):
        return ["it fits without --checkpointing, which costs about a quarter more arithmetic"]
    return []


def _fits(setup: Setup, room: float) -> bool:
    return memory_of(setup).peak <= room


def _parts_that_fit(setup: Setup, room: float) -> int:
    """The fewest parts, twice as many each time, of a batch that they divide; 0: none."""
    parts = 2 * setup.accumulate
    while setup.batch % (parts * setup.devices) == 0:
        if _fits(replace(setup, accumulate=parts), room):
            return parts
        parts *= 2
    return 0


def not_counted(recipe: Recipe, *, is_measured: bool, unrecorded: bool) -> list[str]:
    """What a recipe has that a plan does not know; `unrecorded`: it asks for recorded steps and does not get them."""
    there = [
        (unrecorded and is_measured, "recorded steps, which are quicker"),
        (is_measured and any(stage.img_size for stage in recipe.stages), "stages with pictures of other sizes"),
        (leaves_patches_out(recipe), "patches that are left out, which is quicker and takes less memory"),
        (bool(recipe.distillation.teacher), "the teacher, which computes and needs memory too"),
        (any(group.frozen for group in recipe.optimiser.groups), "frozen parameters, which take less time and memory"),
        (recipe.optimiser.sam > 0, "sharpness-aware steps, which take twice as long"),
    ]
    found = [f"not counted: {words}" for is_so, words in there if is_so]
    if unrecorded and not is_measured:
        found.append("steps are not recorded: that takes one GPU, batches in one part, and no sam")
    return found
