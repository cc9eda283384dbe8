"""`torch.compile` where it works. Where it does not, training goes on without it, and says why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.model.vit import ViT
from vitrail.training.parallel import World

BACKEND: Any = "inductor"
FORMS = 256  # of one function that a process may compile


def compile_or_say_why(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    world: World,
    autocast: Callable[[], AbstractContextManager[Any]],
    *,
    blocks: bool = False,
    asked: Sequence[nn.Module] = (),
) -> str | None:
    """Compiles a model in place, before it is spread over processes, and those that its loss asks; or leaves them as
    they are, and gives the reason.

    Whether a compiler works shows when it is used: so it is tried by the `loss` of a first step, there and back, of
    which nothing stays but machine code. `blocks`: each block by itself, as it will be sharded; then the trial is of a
    model with two blocks, as the whole one may not fit. If it fails for one process, none compiles.
    """
    if blocks and not isinstance(model, ViT):
        return "of a sharded model the blocks are compiled, and this one has none"
    tried = _with_two_blocks(model, world.device) if isinstance(model, ViT) and blocks else model
    reason = _fault(tried, [*_parts(tried, blocks), *asked], loss, autocast)
    reason = next((one for one in world.gathered(reason) if one is not None), None)
    if reason is None:
        _compile([*_parts(model, blocks), *asked])
    return reason


def is_compiled(model: nn.Module) -> bool:
    """Whether this model, or its blocks."""
    return any("forward" in vars(module) for module in model.modules())


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes as it is written: for evaluations, whose batches have several shapes."""
    compiled = [(module, vars(module).pop("forward")) for module in model.modules() if "forward" in vars(module)]
    try:
        yield
    finally:
        for module, forward in compiled:
            module.forward = forward


def fused(function: Callable[..., Any], say: Callable[[str], None]) -> Callable[..., Any]:
    """The same function, of which a compiler makes few passes; if it fails, the function as it is, and a line says so.

    It is compiled as one piece, at its first call: so a compiler that fails has not begun to change anything.
    """
    # reordered loops are not for lists of tensors: torch 2.11's scheduler breaks on them
    options: dict[str, Any] | None = {"loop_ordering_after_fusion": False} if BACKEND == "inductor" else None
    _allow_many()
    chosen = torch.compile(function, backend=BACKEND, fullgraph=True, dynamic=False, options=options)

    def call(*given: Any) -> Any:
        nonlocal chosen
        try:
            return chosen(*given)
        except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as error:
            if chosen is function:
                raise
            chosen = function
            say(f"torch.compile does not take {function.__qualname__}, which goes on as it is: {_brief(error)}")
            return function(*given)

    return call


def _parts(model: nn.Module, blocks: bool) -> list[nn.Module]:
    return list(model.blocks) if blocks else [model]  # type: ignore[arg-type]


def _compile(modules: Sequence[nn.Module]) -> None:
    """In place: modules keep their class, their names and their hooks. Batches of training have one shape, or a few one
    after the other, and code for any shape would be slower."""
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # CUDA's files without a GPU are no news
    _allow_many()
    backend = _remembering if BACKEND == "inductor" else BACKEND
    for module in modules:
        module.forward = torch.compile(module.forward, backend=backend, dynamic=False)


def _allow_many() -> None:
    """Of one function torch keeps eight compiled forms, and then compiles no more: a process that trains several models
    one after the other, or with several learning rates, needs one for each."""
    torch._dynamo.config.recompile_limit = max(FORMS, torch._dynamo.config.recompile_limit)
    total = torch._dynamo.config.accumulated_recompile_limit
    torch._dynamo.config.accumulated_recompile_limit = max(4 * FORMS, total)


def _remembering(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Any:
    """Inductor, but the next process finds again what this one compiled even where gradients are written by hand, as
    those of our kernels are: unless asked, torch keeps no such model."""
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    with config.patch(autograd_cache_allow_custom_autograd_functions=True):
        return compile_fx(graph, inputs)


def _fault(
    model: nn.Module,
    parts: Sequence[nn.Module],
    loss: Callable[[nn.Module], Tensor],
    autocast: Callable[[], AbstractContextManager[Any]],
) -> str | None:
    """Why these parts of the model cannot be compiled. It is as it was afterwards."""
    try:
        _compile(parts)
        with autocast():
            found = loss(model)
        found.backward()  # type: ignore[no-untyped-call]
    except torch.OutOfMemoryError:  # no fault of the compiler's; the loop knows what to do
        return None
    except Exception as error:
        return _brief(error)
    finally:
        model.zero_grad(set_to_none=True)
        for part in parts:
            vars(part).pop("forward", None)
    return None


def _with_two_blocks(model: ViT, device: torch.device) -> ViT:
    with device:
        small = ViT(model.config.replace(depth=min(2, model.config.depth), levels=()))
    small.gradient_checkpointing = True
    return small.train()


def _brief(error: BaseException) -> str:
    """The cause, in one line."""
    while (inner := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
