"""The planner's closed forms are of GPUs; what autograd saves on a CPU stands for them, so attention is fused here."""

import pytest

from vitrail.model import attention


@pytest.fixture(autouse=True)
def attention_as_gpus_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPUs that train in bfloat16 would keep the weights of attention too."""
    monkeypatch.setattr(attention, "PLAIN", 0)
