"""Pretrainings that take a second: tiny pictures, a tiny model, every kind of noise."""

from typing import Any

TINY: dict[str, Any] = {
    "img_size": 16,
    "architecture.embed_dim": 32,
    "architecture.depth": 2,
    "architecture.num_heads": 2,
    "architecture.drop_path": 0.2,
    "batch_size": 12,
    "steps": 12,
    "eval_epochs": 0.5,
    "checkpoint_minutes": 0.0,
    "compile": False,
    "data.workers": 0,
    "data.val_fraction": 0.3,
    "schedule.warmup_epochs": 0,
}
OWN: dict[str, dict[str, Any]] = {
    "masked": {"ema": 0.9},
    "mae": {"mae.decoder_dim": 16, "mae.decoder_depth": 1, "mae.decoder_heads": 2, "accumulate": 2},
    "dino": {
        "dino.local_size": 8, "dino.local_crops": 2, "dino.out_dim": 24, "dino.hidden_dim": 16,
        "dino.bottleneck_dim": 8, "accumulate": 2, "dino.freeze_epochs": 0.5,
    },
}  # fmt: skip


def settings(method: str, **more: Any) -> dict[str, Any]:
    return TINY | OWN[method] | more
