"""`vitrail plan`: memory, pictures a second, days and cost of a training, before it is begun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from vitrail.commands.printing import Json, print_json, print_table

if TYPE_CHECKING:
    from vitrail.speed.memory import Setup
    from vitrail.speed.plan import Plan

Flag = Annotated[bool, Parameter(negative="")]


def plan(
    *,
    model: str | None = None,
    recipe: str | None = None,
    img_size: int | None = None,
    batch_size: int | None = None,
    gpus: int = 1,
    kind: str | None = None,
    epochs: float | None = None,
    pictures: str | None = None,
    accumulate: int | None = None,
    precision: Literal["auto", "fast", "fp32", "bf16", "bf16_residual", "fp16", "fp8"] | None = None,
    compile: bool | None = None,
    record: bool | None = None,
    optimiser: Literal["adamw", "adam", "sgd", "lion", "muon"] | None = None,
    ema: bool | None = None,
    shard: Flag = False,
    checkpointing: Flag = False,
    price: float | None = None,
    memory: float | None = None,
    network: float | None = None,
    measure: Flag = False,
    device: str | None = None,
    as_json: Json = False,
) -> int:
    """Say what a training needs before it is begun: memory of each device, pictures a second, days, cost.

    Example: vitrail plan --model vit_l16 --gpus 8 --kind h100 --batch-size 4096 --epochs 90 --pictures imagenet21k

    Example: vitrail plan --recipe deit --gpus 8 --kind a100-40 --price 1.10

    Example: vitrail plan --model vit_s16 --batch-size 256 --measure

    docs/plan.md says how it is computed and how exact it is.

    Parameters
    ----------
    model
        a named model, a run, a model folder, a checkpoint, hf:owner/name; by default the recipe's
    recipe
        a named recipe or a TOML file, which says what is not given here
    batch_size
        of all devices and accumulated parts together
    gpus
        number of devices
    kind
        of device: h200, h100, a100-80, a100-40, l4, t4, rtx4090, tpuv3 (a core), cpu (a core); by default h200
    pictures
        of an epoch: a number, or cifar10, imagenet, imagenet21k, jft300m; by default imagenet
    accumulate
        parts of a batch that go through the model one after the other
    precision
        by default the recipe's, or auto; auto and fast are what training makes of them on such a device
    record
        the whole step is recorded on one GPU and replayed, so that no kernel waits to be started
    ema
        with an average of the weights
    shard
        each device holds a part of the model, and activations are computed again, as `vitrail train --shard` does it
    checkpointing
        activations inside blocks are computed again, not kept
    price
        US dollars for an hour of one device; by default an indicative one
    memory
        GiB of a device, in place of the table's
    network
        GB/s between machines for each device, in place of the table's
    measure
        time real training steps on this machine's device
    device
        which one: cpu, cuda, cuda:1; by default the fastest there is
    as_json
        print one JSON object
    """
    from vitrail.speed.plan import plan as make

    made = make(
        model,
        recipe=recipe,
        img_size=img_size,
        batch_size=batch_size,
        gpus=gpus,
        kind=kind,
        epochs=epochs,
        pictures=pictures,
        accumulate=accumulate,
        precision=precision,
        compile=compile,
        record=record,
        optimiser=optimiser,
        ema=ema,
        shard=shard,
        checkpointing=checkpointing,
        price=price,
        memory=memory,
        network=network,
        measure=measure,
        device=device,
    )
    if as_json:
        print_json(made.to_json())
    else:
        _print(made)
    return 0


def _print(made: Plan) -> None:
    setup, gib = made.setup, 2**30
    how = f"{setup.precision}, {'compiled' if made.compiled else 'eager'}{', recorded' * setup.recorded}"
    how += f", {setup.optimiser}" + ", EMA" * setup.ema + ", sharded" * setup.shard
    how += ", activations computed again" * setup.checkpointing
    print(
        f"{made.model}{', changed,' * made.changed} at {_size(setup)} on {setup.devices} x {made.device.title}: {how}"
    )
    parts = f" in {setup.accumulate} parts" if setup.accumulate > 1 else ""
    print(f"batch {setup.batch:,}: {_many(f'{setup.local:,}', 'picture')} on each device{parts}\n")
    rows = [["memory of each device", "GiB"]]
    rows += [[name, f"{value / gib:.2f}"] for name, value in vars(made.memory).items() if value]
    rows.append(["peak", f"{made.memory.peak / gib:.2f}"])
    if made.measured is not None and made.measured.memory is not None:
        rows.append([f"measured, batch {made.measured.batches[-1]}", f"{made.measured.memory / gib:.2f}"])
    rows.append(["there is", f"{made.room / gib:.2f}"])
    print_table(rows, right={1})
    most = f"the largest batch is {made.largest:,}" if made.largest else "no batch fits"
    print(f"\nit {'fits' if made.fits else 'does not fit'}; {most}")
    _print_time(made)
    for line in made.advice:
        print(f"- {line}")


def _print_time(made: Plan) -> None:
    setup, step = made.setup, made.step
    origin = "predicted" if made.certain else "predicted as if it were a ViT on an H200"
    origin = "measured here" if made.measured else origin
    print(f"{_rate(made.pictures_per_s)} pictures/s, {_short(step.seconds)} a step ({origin};", end=" ")
    print(f"{made.reached:.0%} of the peak)")
    if setup.devices > 1:
        print(f"exchange {_short(step.exchange)} a step, of which {_short(step.waiting)} are waited for")
    if len(made.stages) > 1:
        each = (
            f"{_many(f'{one.steps:,}', 'step')} of {_short(one.step.seconds)} at {_size(one.setup)}"
            for one in made.stages
        )
        print(", ".join(each))
    cost = ""
    if made.cost is not None:
        cost = f", {made.cost:,.{0 if made.cost >= 100 else 2}f} dollars at {made.price:.2f} for a device and hour"
    epochs, pictures = _many(f"{made.epochs:.4g}", "epoch"), _many(f"{made.pictures:,}", "picture")
    print(f"{epochs} of {pictures}: {_many(f'{made.steps:,}', 'step')}, {_time(made.hours)}{cost}")


def _many(number: str, noun: str) -> str:
    return f"{number} {noun}{'' if number == '1' else 's'}"


def _rate(value: float) -> str:
    """Two digits at least."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _short(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms" if seconds < 10 else _time(seconds / 3600)


def _size(setup: Setup) -> str:
    height, width = setup.config.img_size
    return f"{height} x {width}"


def _time(hours: float) -> str:
    for unit, name, least in ((24, "days", 2), (1, "hours", 1), (1 / 60, "minutes", 2)):
        if hours / unit >= least:
            return f"{hours / unit:,.1f} {name}"
    return f"{3600 * hours:,.1f} seconds"
