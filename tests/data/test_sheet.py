"""augmented.png: what stands below a picture can be read."""

import numpy as np
import torch
from PIL import Image

from vitrail.data import sheet

CLASSES = ["tulips", "sunflowers", "daisies"]


def test_mixed_pictures_have_a_line_for_each_class() -> None:
    mixed = [sheet._caption(torch.tensor(shares), CLASSES) for shares in ([0.64, 0.36, 0.0], [0.2, 0.3, 0.5])]
    assert mixed == ["tulips 64%\nsunflowers 36%", "daisies 50%\nsunflowers 30%, tulips 20%"]
    assert sheet._caption(torch.tensor([0.0, 1.0, 0.0]), CLASSES) == "sunflowers"
    assert sheet._caption(torch.tensor([1.0, 1.0, 0.0]), CLASSES) == "sunflowers, tulips"  # several labels


def test_both_lines_are_drawn_and_nothing_hides_them() -> None:
    pictures = [Image.new("RGB", (16, 16), "red")] * 4
    one = sheet.contact_sheet(pictures, ["tulips"] * 4, columns=2)
    two = sheet.contact_sheet(pictures, ["tulips 64%\nsunflowers 36%"] * 4, columns=2)
    assert two.height > one.height
    for page, lines in ((one, 1), (two, 2)):
        rows = (np.asarray(page.convert("L"))[:, :140] < 200).any(axis=1)  # in which there is ink, or a picture
        begins = int((np.diff(rows.astype(int)) == 1).sum())
        assert begins == 2 * (1 + lines)
