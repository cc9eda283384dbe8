"""Token merging: what is alike becomes one, and where nothing is lost, nothing changes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vitrail
from vitrail.errors import ConfigError
from vitrail.model.merging import can_merge, merge, merged

SMALL = {"img_size": 64, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5}


def one_by_one(x: torch.Tensor, count: int, prefix: int) -> torch.Tensor:
    """The tokens of one picture after merging, by the words of the paper."""
    tokens = [row.double() for row in x[prefix:]]
    here, there = tokens[::2], tokens[1::2]
    alike = [[float(torch.cosine_similarity(a, b, dim=0)) for b in there] for a in here]
    nearest = sorted(range(len(here)), key=lambda i: -max(alike[i]))
    groups = [[b] for b in there]
    for i in nearest[:count]:
        groups[alike[i].index(max(alike[i]))].append(here[i])
    found = [torch.stack(group).mean(0) for group in groups] + [here[i] for i in nearest[count:]]
    return torch.stack([*x[:prefix].double(), *found])


@settings(max_examples=40, deadline=None)
@given(
    patches=st.integers(2, 13),
    prefix=st.integers(0, 3),
    batch=st.integers(1, 3),
    seed=st.integers(0, 9),
    data=st.data(),
)
def test_the_nearest_tokens_become_their_mean(
    patches: int, prefix: int, batch: int, seed: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, math.ceil(patches / 2)))
    x = torch.randn(batch, prefix + patches, 6, generator=torch.Generator().manual_seed(seed))
    tokens, size = merge(x, torch.ones(batch, prefix + patches, 1), count, prefix)
    assert tokens.shape == (batch, prefix + patches - count, 6)
    assert size.sum().item() == batch * (prefix + patches)
    for row, wanted in zip(tokens, x, strict=True):
        far = torch.cdist(row.double(), one_by_one(wanted, count, prefix))
        assert far.min(dim=0).values.max() < 1e-5
        assert far.min(dim=1).values.max() < 1e-5


def test_means_are_weighted_by_what_tokens_stand_for() -> None:
    x = torch.randn(2, 13, 8)
    size = torch.ones(2, 13, 1)
    total = x[:, 1:].sum(dim=1)
    for count in (3, 2, 2):
        x, size = merge(x, size, count, prefix=1)
        torch.testing.assert_close((x * size)[:, 1:].sum(dim=1), total)
    assert x.shape[1] == 6


@pytest.mark.parametrize("changes", [{}, {"registers": 2}, {"distilled": True}, {"qk_norm": True}])
def test_where_only_equal_patches_are_merged_the_logits_are_the_same(changes: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = vitrail.create("vit_ti16", zero_head=False, **{**SMALL, **changes}).eval()
    assert model.pos_embed is not None
    with torch.no_grad():
        model.pos_embed.zero_()  # equal patches are equal tokens
    chosen = torch.randn(3, 3, 8, 8)[torch.randint(3, (2, 8, 8))]  # three patches, again and again
    pictures = chosen.permute(0, 3, 1, 4, 2, 5).reshape(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(merged(model)(pictures), model(pictures), atol=1e-5, rtol=1e-4)


def test_half_of_the_patches_are_gone_at_the_end_and_the_weights_are_shared() -> None:
    model = vitrail.create("vit_s16", zero_head=False, **{**SMALL, "depth": 12}).eval()
    seen: list[int] = []
    for block in model.blocks:
        block.mlp.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
    other = merged(model)
    with torch.inference_mode():
        other(torch.randn(1, 3, 64, 64))
    assert seen == [65] * 4 + [49] * 4 + [33] * 3 + [1]
    assert len(model.blocks) == 12
    assert {p.data_ptr() for p in other.parameters()} == {p.data_ptr() for p in model.parameters()}


@pytest.mark.parametrize("changes", [{"pool": "mean"}, {"rope": True}, {"relative_bias": True}, {"depth": 2}])
def test_models_whose_tokens_cannot_be_merged_are_refused(changes: dict[str, object]) -> None:
    model = vitrail.create("vit_ti16", **{**SMALL, **changes})
    assert not can_merge(model)
    with pytest.raises(ConfigError, match="tokens can be merged where"):
        merged(model)


def test_real_weights_keep_their_accuracy(deit_tiny, imagenet_sample, imagenet_classes) -> None:
    """On 200 pictures of 1,000; benchmarks/cpu_speed.jsonl has all of them."""
    classifier = vitrail.load(deit_tiny, preprocessing={"crop_pct": 0.9})
    order = {wordnet: number for number, (wordnet, _) in enumerate(imagenet_classes)}
    files = sorted(imagenet_sample.rglob("*.JPEG"))[::5]
    labels = torch.tensor([order[file.parent.name] for file in files])
    values = torch.from_numpy(np.stack([classifier.preprocessing(file) for file in files]))
    whole, fewer = classifier.model.eval(), merged(classifier.model)
    with torch.inference_mode():
        one, other = (torch.cat([model(part) for part in values.split(50)]) for model in (whole, fewer))
    right = [(logits.argmax(-1) == labels).float().mean().item() for logits in (one, other)]
    assert right[1] >= right[0] - 0.02
    assert (other - one).std() < 0.2 * one.std()
