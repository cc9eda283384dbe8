"""Draws the pictures that come with the package, one or two of each class of `cifar10_small`.

    python benchmarks/draw_pictures.py [--out src/vitrail/assets/pictures]

The same pixels each time: all that is random comes from a seed per picture.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from drawn_animals import bird, bird_2, cat, deer, dog, frog, horse
from painting import Painting
from PIL import Image

OUT = Path(__file__).parents[1] / "src" / "vitrail" / "assets" / "pictures"


def clouds(art: Painting, top: float, bottom: float, amount: float) -> None:
    field = art.noise(110, 37, octaves=4)
    band = art.ramp(top - 1, top + 25) * (1 - art.ramp(bottom - 30, bottom))
    art.tint((field * 0.55).clip(0, 1) * band, "ffffff", amount)


def waves(art: Painting, horizon: float) -> None:
    """Ripples that grow towards the viewer."""
    for top, wide, amount in ((horizon, 14, 0.05), (horizon + 20, 30, 0.07), (horizon + 55, 55, 0.09)):
        ripple = art.noise(wide, wide / 9, octaves=2) * art.ramp(top, top + 25)
        art.grain(amount, ripple)


def airplane(art: Painting) -> None:
    art.backdrop((0, "4d86c6"), (150, "8fb9e3"), (256, "c9def0"))
    clouds(art, 120, 290, 0.7)
    art.haze(2)
    art.place(1.02, 0, 0, turn=-8)
    art.paint(art.polygon((112, 122), (150, 122), (92, 66), (78, 66)), "8f9bab", "aab5c2", bulge=2)  # far wing
    art.paint(art.polygon((34, 118), (60, 114), (34, 92), (24, 92)), "8d99a8", bulge=2)
    art.paint(art.polygon((24, 122), (66, 114), (34, 62), (14, 62)), "2d5ba8", "3c74c8", bulge=3)  # fin
    body = art.blob(
        (10, 119), (40, 110), (90, 106), (170, 105), (215, 109), (240, 121), (244, 128), (234, 135), (205, 141),
        (150, 144), (95, 143), (50, 132), (18, 124),
    )  # fmt: skip
    art.paint(body, "ffffff", "b9c6d4", bulge=11)
    art.tint(art.stroke([(30, 121), (90, 127), (170, 129), (244, 128)], 2, 4, 4, 3), "2d5ba8", 0.9, within=body)
    for x in range(72, 214, 8):
        art.tint(art.box(x, 115.5, x + 4, 121.5, 1.6), "33475e")
    art.tint(art.polygon((219, 113), (228, 115), (235, 121), (222, 120)), "2b3c50")
    art.paint(art.oval(136, 157, 17, 8.5), "eef2f6", "7c8a9a", bulge=5)  # engine
    art.paint(art.oval(151, 157, 3, 7.5), "39424e", bulge=0)
    wing = art.polygon((108, 133), (160, 135), (84, 196), (62, 196))
    art.shadow(wing, 0.25, 3)
    art.paint(wing, "dfe6ee", "97a5b5", bulge=3)
    tail = art.polygon((30, 121), (58, 123), (26, 146), (12, 146))
    art.paint(tail, "dfe6ee", "a3b0be", bulge=2)


def wheel(art: Painting, x: float, y: float, r: float) -> None:
    art.paint(art.oval(x, y, r, r), "2f3034", "131417", bulge=3)
    rim = art.oval(x, y, r * 0.64, r * 0.64)
    art.paint(rim, "dfe3e7", "8e959d", bulge=3)
    for turn in np.radians(range(18, 378, 72)):
        gap = art.oval(x + 0.4 * r * np.cos(turn), y + 0.4 * r * np.sin(turn), 0.1 * r, 0.13 * r, np.degrees(turn))
        art.tint(gap, "2b2e33", 0.85, within=rim)
    art.paint(art.oval(x, y, r * 0.16, r * 0.16), "aab0b7", "6a7078", bulge=1)


def street(art: Painting, horizon: float) -> None:
    """Asphalt with a kerb, and trees out of focus behind it."""
    art.backdrop((0, "b9d3ea"), (horizon, "e6edf0"), (horizon + 1, "8b8d8f"), (256, "6f7276"))
    edge = art.ramp(horizon - 64, horizon - 10) * 3 - 1.1 + 0.35 * art.noise(40, 30, 3)
    trees = edge.clip(0, 1) * (1 - art.ramp(horizon - 1, horizon))
    art.tint(trees, "6b8a58", 0.95)
    art.grain(0.1, art.noise(24, 20, 3) * trees)
    art.haze(3)
    art.tint(art.polygon((-5, horizon), (261, horizon), (261, horizon + 14), (-5, horizon + 12)), "b9b6ac", soft=1)
    art.grain(0.035, art.noise(3, 1.5, 2) * art.ramp(horizon + 10, horizon + 20))


def automobile(art: Painting) -> None:
    street(art, 120)
    art.shadow(art.oval(128, 204, 122, 11), 0.75, 5)
    body = art.blob(
        (8, 164), (16, 144), (58, 130), (84, 99), (106, 88), (150, 86), (178, 93), (208, 126), (238, 133), (249, 152),
        (249, 182), (238, 193), (130, 197), (20, 194), (8, 184),
    )  # fmt: skip
    art.paint(body, "e2463a", "8f1414", bulge=9, gloss=0.35)
    glass = art.blob((72, 128), (94, 102), (112, 95), (148, 93), (171, 99), (194, 127), (130, 130))
    art.tint(glass, "3d0b0a", 0.6, 1.5)
    art.paint(glass, "a9c2d4", "31414f", bulge=3)
    for left in (100, 160):
        art.tint(
            art.polygon((left, 126), (left + 20, 95), (left + 32, 95), (left + 12, 126)), "ffffff", 0.28, within=glass
        )
    art.paint(art.polygon((130, 91), (137, 91), (140, 131), (131, 131)), "cf3a30", bulge=1)
    art.tint(art.stroke([(14, 158), (90, 149), (180, 149), (246, 156)], 2, 3, 2), "ffffff", 0.4, 1, body)
    for door in (
        [(74, 131), (80, 156), (96, 186)],
        [(135, 131), (136, 165), (133, 190)],
        [(196, 129), (190, 150), (170, 184)],
    ):
        art.tint(art.stroke(door, 1.4), "5c0c0c", 0.8)
    art.tint(art.box(0, 184, 256, 198), "2a0b0c", 0.6, 1, body)
    art.paint(art.blob((70, 124), (82, 120), (86, 130), (74, 132)), "d23a30", "8f1a16", bulge=3)
    for left in (143, 97):
        art.paint(art.box(left, 141, left + 14, 145, 2), "f6dcd8", "c9a09b", bulge=1)
    art.paint(art.oval(19, 154, 8, 7, -20), "fff8e2", "d8c48a", bulge=2)
    art.paint(art.oval(243, 150, 5, 9), "ff7a5a", "8e0f0f", bulge=2)
    for left, right in ((5, 34), (222, 252)):
        art.paint(art.box(left, 176, right, 184, 4), "e9ecef", "878d94", bulge=2)
    for x in (62, 198):
        art.tint(art.oval(x, 184, 31, 31), "1b0a0a", 0.92, within=body)
        wheel(art, x, 188, 25)


def truck(art: Painting) -> None:
    street(art, 150)
    art.shadow(art.oval(128, 227, 122, 9), 0.75, 5)
    art.paint(art.box(20, 190, 236, 206, 3), "3b3f45", "24272b", bulge=2)
    cargo = art.box(8, 42, 168, 194, 4)
    art.paint(cargo, "fafbfc", "cdd4da", bulge=5)
    art.tint(art.box(0, 104, 180, 130), "2f66b5", 0.92, within=cargo)
    art.tint(art.box(0, 134, 180, 138), "e2a13a", 0.92, within=cargo)
    for x in range(24, 164, 16):
        art.tint(art.box(x, 47, x + 1.4, 190), "7d8894", 0.4)
    cab = art.blob(
        (174, 86), (186, 80), (214, 82), (230, 96), (240, 136), (246, 150), (247, 196), (240, 204), (178, 204),
        (173, 196),
    )  # fmt: skip
    art.paint(cab, "e0493a", "a51f1a", bulge=6, gloss=0.25)
    glass = art.polygon((188, 94), (213, 94), (224, 100), (234, 138), (188, 140))
    art.paint(glass, "b3cbdc", "3b4d5c", bulge=2)
    art.tint(art.polygon((192, 138), (208, 94), (217, 94), (203, 138)), "ffffff", 0.3, within=glass)
    art.tint(art.stroke([(185, 92), (184, 196)], 1.4), "5e0f0c", 0.7)
    art.paint(art.box(222, 108, 228, 128, 3), "3a3d42", "1c1e21", bulge=1)
    art.paint(art.box(190, 152, 203, 156, 2), "f6dcd8", "c9a09b", bulge=1)
    art.paint(art.box(236, 166, 247, 180, 3), "fff4cf", "d9c27e", bulge=2)
    art.paint(art.box(226, 192, 250, 208, 3), "c5cad0", "6e757d", bulge=2)
    for x in (46, 92, 206):
        art.tint(art.oval(x, 205, 26, 24), "141518", 0.9, within=cab)
        wheel(art, x, 208, 21)


def sea(art: Painting, horizon: float) -> None:
    art.backdrop((0, "7fb0de"), (horizon - 1, "dfe9f0"), (horizon, "5f93b4"), (256, "1f5277"))
    clouds(art, 0, horizon, 0.8)
    art.haze(1)
    waves(art, horizon)


def foam(art: Painting, left: float, right: float, top: float, bottom: float) -> None:
    art.tint(art.noise(26, 5, 2).clip(0, 1) * art.box(left, top, right, bottom, 6), "ffffff", 0.9, 1)


def ship(art: Painting) -> None:
    sea(art, 150)
    art.tint(art.oval(122, 204, 112, 12), "10304a", 0.5, 5)
    deck = [(6, 144), (60, 151), (186, 151), (250, 136)]
    hull = art.polygon(*deck, (228, 196), (24, 196))
    art.paint(hull, "2f5080", "16263f", bulge=5)
    art.tint(art.box(0, 183, 256, 200), "a8352b", 0.9, within=hull)
    art.lay(art.polygon(*deck, *((x, y + 4.5) for x, y in reversed(deck))), "f2f4f5")
    for x in range(36, 222, 15):
        art.tint(art.oval(x, 168, 3, 3), "c9dbe8", 0.85)
    for x in (76, 118):
        art.paint(art.polygon((x, 86), (x + 4, 48), (x + 27, 48), (x + 25, 86)), "dc5640", "a02e22", bulge=5)
        art.tint(art.polygon((x + 3, 58), (x + 4, 47), (x + 28, 47), (x + 27, 58)), "20242b")
    art.paint(art.stroke([(172, 110), (176, 42)], 3, 1.5), "e8ecef", bulge=1)
    art.paint(art.polygon((176, 44), (196, 49), (176, 55)), "e2a13a", bulge=1)
    for left, top, right, bottom in ((28, 124, 204, 153), (42, 103, 186, 126), (56, 83, 166, 105)):
        art.paint(art.box(left, top, right, bottom, 3), "ffffff", "cfd8df", bulge=3)
        for x in range(left + 7, right - 8, 11):
            art.tint(art.box(x, top + 8, x + 6.5, top + 14, 1.5), "35506b", 0.9)
    foam(art, 6, 236, 189, 203)


def ship_2(art: Painting) -> None:
    """A sailing boat."""
    sea(art, 178)
    art.tint(art.blob((60, 228), (200, 228), (180, 256), (120, 262), (80, 254)), "e8e4da", 0.22, 5)
    art.tint(art.oval(132, 228, 84, 9), "10304a", 0.6, 4)
    art.paint(art.stroke([(124, 200), (126, 18)], 4.5, 2.5), "8a5a34", bulge=1)
    art.paint(art.polygon((126, 18), (148, 24), (126, 31)), "d8503c", bulge=1)
    main = art.blob(
        (131, 26), (160, 80), (196, 136), (218, 178), (214, 184), (175, 186), (138, 187), (132, 182), (133, 100)
    )
    jib = art.blob((119, 36), (100, 90), (68, 140), (40, 176), (42, 182), (78, 185), (112, 186), (118, 181), (120, 110))
    for sail, top, bottom in ((main, "ffffff", "dcdad2"), (jib, "fbf3e2", "d8c9ab")):
        art.paint(sail, top, bottom, bulge=9)
        for y in (76, 112, 148):
            art.tint(art.stroke([(30, y + 12), (128, y), (226, y + 12)], 1.2), "8d8a80", 0.45, within=sail)
    deck = [(27, 190), (80, 196), (128, 197), (180, 195), (237, 186)]
    hull = art.polygon(*deck, (206, 226), (60, 226))
    art.paint(hull, "c4483a", "6f1d1a", bulge=5)
    art.lay(art.polygon(*deck, *((x, y + 4) for x, y in reversed(deck))), "f7f1e6")
    foam(art, 36, 226, 219, 233)


SCENES: dict[str, Callable[[Painting], None]] = {
    "airplane": airplane, "automobile": automobile, "bird": bird, "bird-2": bird_2, "cat": cat, "deer": deer,
    "dog": dog, "frog": frog, "horse": horse, "ship": ship, "ship-2": ship_2, "truck": truck,
}  # fmt: skip


def draw(scene: Callable[[Painting], None], seed: int) -> Image.Image:
    art = Painting(seed)
    scene(art)
    return art.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for seed, (name, scene) in enumerate(SCENES.items()):
        draw(scene, seed).save(out / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
