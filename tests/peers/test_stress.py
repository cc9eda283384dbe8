"""Patches that leave the sequence, as timm's layers have it when only the others are handed on."""

import pytest
import timm
import torch

import vitrail
from vitrail.scoring.stress.dice import Dice
from vitrail.scoring.stress.panes import dropped, kept


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_the_real_weights_without_patches_answer_as_timms_layers_do(share: float, deit_tiny) -> None:
    ours = vitrail.load(deit_tiny).model
    theirs = timm.create_model("deit_tiny_patch16_224", checkpoint_path=str(deit_tiny)).eval()
    torch.manual_seed(0)
    pictures = torch.randn(2, 3, 224, 224)
    stay = kept(dropped(Dice(torch.arange(2), 0, "occlusion").order(196), share))
    with torch.no_grad():
        patches = theirs.patch_embed(pictures) + theirs.pos_embed[:, 1:]
        patches = torch.stack([patches[k, stay[k]] for k in range(2)])
        first = (theirs.cls_token + theirs.pos_embed[:, :1]).expand(2, -1, -1)
        wanted = theirs.forward_head(theirs.norm(theirs.blocks(torch.cat([first, patches], dim=1))))
        assert (ours(pictures, keep=stay) - wanted).abs().max() < 1e-4
