"""What an exported file says of itself: classes, preprocessing, what it takes and what it gives."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from vitrail.errors import VitrailError
from vitrail.pictures import Preprocessing

KEY = "vitrail"
FORMAT = 1  # raised when an older vitrail could no longer read it

Takes = Literal["values", "bytes", "picture"]
"""values: float32 (batch, channels, height, width), normalised; bytes: uint8 (batch, height, width, channels), resized
and cropped; picture: uint8 (batch, height, width, channels) of any height and width, as it was decoded."""


@dataclass(frozen=True)
class Metadata:
    """Stored in the file under `vitrail`, as JSON."""

    classes: tuple[str, ...]
    preprocessing: Preprocessing
    takes: Takes
    gives: tuple[str, ...]  # logits, or logits and features
    precision: str  # float32, float16, bfloat16, int8
    made_by: str
    merged: bool = False  # tokens are merged on the way

    def to_text(self) -> str:
        plain = {**asdict(self), "preprocessing": self.preprocessing.to_json(), "format": FORMAT}
        return json.dumps(plain, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str | None, path: Path) -> Self:
        if not text:
            raise VitrailError(f"{path} says nothing of its classes and preprocessing: export it with vitrail export")
        try:
            plain: dict[str, Any] = json.loads(text)
            if plain.pop("format") != FORMAT:
                raise VitrailError(f"{path} was written by a newer vitrail: upgrade, or export it again")
            plain["preprocessing"] = Preprocessing.from_json(plain["preprocessing"])
            return cls(**{**plain, "classes": tuple(plain["classes"]), "gives": tuple(plain["gives"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise VitrailError(f"what {path} says of itself is damaged: export it again") from error

    def refuse_pictures(self, path: Path) -> None:
        """An engine is given pixels that are resized already."""
        if self.takes == "picture":
            raise VitrailError(f"{path} resizes by itself: for an engine, export without --with-preprocessing")
