"""What a model answered, sample by sample: collected on the device, joined exactly over processes.

For each sample a row is kept, and every score is computed from the rows, in the order of the samples: so no score
depends on the batch size, on the order, or on the number of processes, and a sample that is given twice counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from vitrail.data.samples import Integers
from vitrail.errors import VitrailError
from vitrail.scoring.scores import Answers, MultiAnswers, Scores, score_multi_label, score_single_label

NO_ANSWER = -1  # of a row whose probabilities are no numbers
__all__ = ["Scores", "Tally"]

MISTAKES = 100  # that are kept of a result

State = dict[str, Tensor]


class Tally:
    """`add` batches, then ask for the `result`. Nothing waits for the device before that.

    With one label to a picture 7 numbers are kept for each, 56 bytes. With several labels the logits are kept, in the
    precision in which they come, and the targets: 3 to 5 bytes for each class of each picture.
    """

    def __init__(self, classes: int, multi_label: bool = False) -> None:
        if classes < 1:
            raise VitrailError("a model without classes cannot be scored: train a head, or load with num_classes=…")
        self.classes = classes
        self.multi_label = multi_label
        self._batches: list[State] = []

    def add(self, logits: Tensor, labels: Tensor, valid: Tensor | None, samples: Tensor) -> None:
        """Logits are (n, classes). Labels are (n,), with -1 for none; or with several to a picture (n, classes), of
        0 and 1. Rows that are not `valid` or have no label are not counted. `samples` are any numbers from 0 up that
        tell samples apart.

        Of equal logits the first class goes first. A row whose probabilities are no numbers has no answer: it is wrong.
        """
        if logits.ndim != 2 or logits.shape[1] != self.classes:
            raise VitrailError(f"logits of {self.classes} classes were expected, not {tuple(logits.shape)}")
        logits = logits.detach()
        if logits.device.type == "mps":  # it has no float64
            logits = logits.cpu()
        labels, samples = labels.to(logits.device), samples.to(logits.device)
        counted = torch.ones_like(samples, dtype=torch.bool) if valid is None else valid.to(logits.device)
        rows = _several(logits, labels) if self.multi_label else _one(logits, labels)
        if not self.multi_label:
            counted = counted & (labels >= 0)
        self._batches.append({**rows, "samples": torch.where(counted, samples, -1)})

    def state(self) -> State:
        """Everything that was added, each sample once, on the CPU: what processes send each other."""
        about = torch.tensor([self.classes, self.multi_label])
        if not self._batches:
            return {"about": about}
        columns = {name: torch.cat([batch[name] for batch in self._batches]).cpu() for name in self._batches[0]}
        return {"about": about, **_each_once(columns)}

    @classmethod
    def joined(cls, states: Iterable[Mapping[str, Tensor]]) -> Tally:
        """The tally of all processes."""
        states = list(states)
        kinds = {tuple(state["about"].tolist()) for state in states}
        if len(kinds) != 1:
            raise VitrailError(f"{len(kinds)} kinds of tally cannot be joined: they differ in classes or in labels")
        classes, multi_label = kinds.pop()
        tally = cls(classes, bool(multi_label))
        tally._batches = [{k: v for k, v in state.items() if k != "about"} for state in states if "samples" in state]
        return tally

    def answers(self) -> tuple[Integers, Integers]:
        """The samples with one label that were counted, in order, and the answer to each (-1: none)."""
        state = self.state()
        if "samples" not in state or self.multi_label:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return state["samples"].numpy(), state["answer"].numpy()

    def result(self, class_names: Sequence[str], *, mistakes: int = MISTAKES) -> Scores:
        if len(class_names) != self.classes:
            raise VitrailError(f"{self.classes} classes were scored, but {len(class_names)} names were given")
        state = self.state()
        if not len(state.get("samples", ())):
            raise VitrailError("nothing was scored: there was no readable picture with a label")
        columns = {name: column.numpy() for name, column in state.items() if name not in ("about", "logits", "targets")}
        if self.multi_label:
            several = MultiAnswers(**columns, logits=state["logits"], targets=state["targets"])
            return score_multi_label(several, class_names, mistakes)
        return score_single_label(Answers(**columns), class_names, mistakes)


def _one(logits: Tensor, labels: Tensor) -> State:
    """What is kept of samples with one label each."""
    log_p = logits.double().log_softmax(dim=1)  # float64: the sum over classes costs no digit that is kept
    label = labels.long().clamp(min=0)[:, None]
    own = logits.gather(1, label)
    lower = torch.arange(logits.shape[1], device=logits.device) < label
    rank = ((logits > own) | ((logits == own) & lower)).sum(dim=1)
    no_answer = log_p.isnan().any(dim=1)
    p = log_p.exp()
    truth = torch.zeros_like(p).scatter_(1, label, 1)
    return {
        "label": label[:, 0],
        "answer": torch.where(no_answer, NO_ANSWER, logits.argmax(dim=1)),
        "rank": torch.where(no_answer, logits.shape[1], rank),
        "loss": -log_p.gather(1, label)[:, 0],
        "confidence": p.amax(dim=1),
        "brier": (p - truth).square().sum(dim=1),
    }


def _several(logits: Tensor, targets: Tensor) -> State:
    """What is kept of samples with any number of labels."""
    exact, yes = logits.double(), targets > 0.5
    return {"loss": -logsigmoid(torch.where(yes, exact, -exact)).mean(dim=1), "logits": logits, "targets": yes}


def _each_once(columns: State) -> State:
    """Rows in the order of the samples. Of a sample that was given several times, with logits that may differ in the
    last bits, the one with the largest loss stays, so that the order in which they came decides nothing."""
    samples, loss = columns["samples"].numpy(), columns["loss"].numpy()
    order = np.lexsort((loss, samples))  # NaN comes last
    ordered = samples[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    kept = torch.from_numpy(order[last & (ordered >= 0)])
    return {name: column[kept] for name, column in columns.items()}
