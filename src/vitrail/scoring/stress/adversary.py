"""An adversarial patch: a square of each picture is changed, by projected gradient ascent, so that the model errs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.figures.watching import at_rest
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT
from vitrail.scoring.stress.dice import Dice


@dataclass(frozen=True)
class Attack:
    """eps: how far a value, from 0 to 1, may move; 1 is anywhere. Each of the steps moves by 2.5 eps / steps along the
    sign of the gradient, then back into the bounds, as is usual (Madry et al., 2018). The worst picture that was met
    on the way counts."""

    eps: float = 1.0
    steps: int = 10

    @property
    def step(self) -> float:
        return 2.5 * self.eps / self.steps

    def describe(self) -> str:
        return f"projected gradient, {self.steps} steps of {self.step:.3g}, eps {self.eps:g}"


def squares(dice: Dice, size: tuple[int, int], share: float) -> Tensor:
    """A square of this share of the shorter side, somewhere in each picture: (n, 1, height, width), true inside."""
    height, width = size
    side = max(1, round(share * min(height, width)))
    down, right = (
        (dice.uniform(2) * torch.tensor([height - side + 1, width - side + 1], device=dice.rows.device)).long().T
    )
    rows, columns = torch.arange(height, device=dice.rows.device), torch.arange(width, device=dice.rows.device)
    tall = (rows >= down[:, None]) & (rows < down[:, None] + side)
    wide = (columns >= right[:, None]) & (columns < right[:, None] + side)
    return (tall[:, :, None] & wide[:, None, :])[:, None]


def attacked(
    model: ViT | ResNet, inputs: Tensor, labels: Tensor, where: Tensor, mean: Tensor, std: Tensor, attack: Attack
) -> Tensor:
    """Normalised pictures, attacked where it is allowed. `mean` and `std`, (channels, 1, 1), are of the normalisation,
    and make the bounds: a value from 0 to 1 stays one. The loss that climbs is the cross-entropy of the label."""
    low = torch.maximum(inputs - attack.eps / std, (0 - mean) / std)
    high = torch.minimum(inputs + attack.eps / std, (1 - mean) / std)
    step = attack.step / std
    now = best = inputs.detach().clone()
    worst = torch.full((len(inputs),), -torch.inf, device=inputs.device)
    with at_rest(model), torch.inference_mode(False), torch.enable_grad():
        for number in range(attack.steps + 1):
            now = now.clone().requires_grad_()
            loss = F.cross_entropy(model(now).float(), labels, reduction="none")
            with torch.no_grad():
                better = loss > worst
                worst = torch.where(better, loss, worst)
                best = torch.where(better[:, None, None, None], now, best)
            if number < attack.steps:
                (slope,) = torch.autograd.grad(loss.sum(), now)
                with torch.no_grad():
                    moved = torch.minimum(torch.maximum(now + step * slope.sign(), low), high)
                    now = torch.where(where, moved, inputs)
    return best.detach()
