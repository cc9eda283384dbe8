"""Real weights on real pictures: DeiT-Tiny on 1,000 pictures of ImageNet, beside timm with timm's own preprocessing."""

from pathlib import Path

import pytest
import torch
from PIL import Image

import vitrail

timm = pytest.importorskip("timm", reason="timm is not installed: uv run --all-extras pytest")


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_deit_tiny_answers_as_timm_does_on_many_pictures(
    count: int, deit_tiny: Path, imagenet_sample: Path, imagenet_classes: list[tuple[str, str]], capsys
) -> None:
    paths = sorted(imagenet_sample.glob("*/*.JPEG"))
    assert len(paths) == 1000
    paths = paths[:: 1000 // count]
    index = {wordnet: i for i, (wordnet, _) in enumerate(imagenet_classes)}
    truth = torch.tensor([index[path.parent.name] for path in paths])

    classifier = vitrail.load(deit_tiny)
    ours = classifier.logits(paths).argmax(dim=1)

    peer = timm.create_model("deit_tiny_patch16_224", checkpoint_path=str(deit_tiny)).eval()
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=peer))
    theirs = []
    with torch.inference_mode():
        for start in range(0, len(paths), 50):
            batch = [transform(Image.open(path).convert("RGB")) for path in paths[start : start + 50]]
            theirs.append(peer(torch.stack(batch)).argmax(dim=1))
    theirs = torch.cat(theirs)

    accuracy, peers = (ours == truth).float().mean().item(), (theirs == truth).float().mean().item()
    different = int((ours != theirs).sum())
    with capsys.disabled():
        print(f"\nDeiT-Tiny on {count:,} pictures: top-1 {accuracy:.1%} (timm {peers:.1%}), {different} answers differ")
    assert different <= count / 500
    assert accuracy > 0.68 or count < 1000
