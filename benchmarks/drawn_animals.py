"""The animals among the pictures that `draw_pictures.py` draws."""

from __future__ import annotations

import numpy as np
from painting import Array, Painting

Point = tuple[float, float]


def both(*points: Point) -> tuple[Point, ...]:
    """The right half of a face from top to bottom, and its mirror image about x = 128."""
    return points + tuple((256 - x, y) for x, y in points[::-1] if x != 128)


def out(s: int, *points: Point, middle: float = 128) -> list[Point]:
    """One of a pair: how far from the middle each point is, to the right (s = 1) or to the left (s = -1)."""
    return [(middle + s * x, y) for x, y in points]


def fur(art: Painting, amount: float, turn: float = 0, long: float = 9) -> Array:
    return amount * art.noise(2.2, long, 2, turn)


def eye(art: Painting, x: float, y: float, r: float) -> None:
    art.paint(art.oval(x, y, r, r), "2a1a10", "140d08", bulge=0)
    art.tint(art.oval(x - r * 0.3, y - r * 0.35, r * 0.32, r * 0.32), "ffffff", 0.95)


def soft_room(art: Painting, top: str, middle: str, bottom: str) -> None:
    """A background far out of focus."""
    art.backdrop((0, top), (160, middle), (256, bottom))
    art.grain(0.13, art.noise(90, 90, 2))
    art.haze(6)


def meadow(art: Painting, horizon: float, sky: str, far: str, wood: str, light: str, dark: str) -> None:
    """Far trees out of focus, grass in front."""
    art.backdrop((0, sky), (horizon - 50, far), (horizon - 10, wood), (horizon, light), (256, dark))
    art.grain(0.13, art.noise(45, 60, 2) * (1 - art.ramp(horizon - 6, horizon)))
    art.haze(5)
    art.grain(0.09, art.noise(3, 11, 3) * art.ramp(horizon, horizon + 60))
    art.grain(0.07, art.noise(70, 20, 2) * art.ramp(horizon, horizon + 40))


def blades(art: Painting, y: float, paints: tuple[str, ...]) -> None:
    """Grass before the feet."""
    for _ in range(70):
        x, lean, height = art.random.uniform(0, 256), art.random.uniform(-6, 6), art.random.uniform(9, 20)
        foot = y + art.random.uniform(-3, 9)
        paint = paints[art.random.randint(len(paints))]
        art.lay(art.stroke([(x, foot), (x + lean / 3, foot - height / 2), (x + lean, foot - height)], 2.6, 0.7), paint)


def bird(art: Painting) -> None:
    """A robin on a twig."""
    art.backdrop((0, "b9cfa2"), (128, "93b283"), (256, "6f9064"))
    art.grain(0.2, art.noise(80, 80, 2))
    art.haze(7)
    twig = art.stroke([(-10, 214), (80, 204), (170, 208), (270, 190)], 16, 13, 12, 9)
    art.paint(twig, "8a6a4c", "5b432f", bulge=4, fur=fur(art, 0.1, 90))
    for leaf in ((222, 178, 22, 9, -50), (238, 212, 20, 8, 40), (30, 192, 18, 8, -120)):
        art.paint(art.oval(*leaf), "86ab55", "587f3a", bulge=3)
    tail = art.polygon((60, 158), (78, 172), (18, 226), (6, 216))
    art.paint(tail, "6d5a48", "4c3f33", bulge=2, fur=fur(art, 0.08, 45))
    for x in (112, 136):
        art.paint(art.stroke([(x, 180), (x + 3, 202)], 4), "9a6a3a", bulge=1)
        for toe in (-5, 1, 6):
            art.paint(art.stroke([(x + 3, 201), (x + 3 + toe, 207)], 3.5), "8a5c30", bulge=1)
    body = art.blob(
        (56, 166), (70, 130), (104, 94), (130, 62), (156, 44), (184, 46), (202, 64), (204, 90), (196, 126), (172, 164),
        (140, 186), (100, 190), (72, 182),
    )  # fmt: skip
    art.paint(body, "8c7358", "a58d70", bulge=14, fur=fur(art, 0.06, 40))
    breast = art.blob((176, 58), (204, 62), (206, 96), (196, 136), (168, 166), (138, 168), (140, 130), (158, 92))
    art.tint(breast, "d9713a", 0.95, 4, body)
    belly = art.blob((80, 182), (130, 164), (170, 164), (140, 196), (90, 196))
    art.tint(belly, "efe6d8", 0.9, 5, body)
    wing = art.blob((66, 168), (84, 124), (118, 100), (142, 104), (146, 130), (124, 160), (88, 180), (40, 196))
    art.shadow(wing, 0.2, 4)
    art.paint(wing, "7a634c", "54443a", bulge=6, fur=fur(art, 0.09, 55))
    for k in range(4):
        feather = [(130 - 12 * k, 146 + 8 * k), (100 - 10 * k, 166 + 6 * k), (64 - 4 * k, 184 + 2 * k)]
        art.tint(art.stroke(feather, 1.6), "d9c9b2", 0.5)
    art.paint(art.polygon((199, 70), (228, 79), (200, 84)), "5a4a3a", "2f2720", bulge=2)
    eye(art, 183, 69, 6.5)


def bird_2(art: Painting) -> None:
    """A mallard on a pond."""
    art.backdrop((0, "8fae8c"), (70, "7fa39a"), (256, "3f7286"))
    art.haze(4)
    for wide, amount in ((30, 0.05), (70, 0.07)):
        art.grain(amount, art.noise(wide, wide / 8, 2))
    art.tint(art.oval(122, 206, 100, 22), "2c4a4c", 0.55, 6)
    body = art.blob(
        (14, 134), (44, 138), (84, 122), (130, 124), (170, 130), (196, 142), (204, 164), (192, 190), (150, 204),
        (90, 204), (48, 192), (26, 166),
    )  # fmt: skip
    art.paint(body, "c2beb4", "96928a", bulge=13, fur=fur(art, 0.05, 75))
    art.tint(art.polygon((0, 120), (46, 128), (52, 196), (10, 190)), "2a2a2c", 0.85, 5, body)
    art.tint(art.oval(186, 160, 30, 44), "6f4028", 0.95, 6, body)
    wing = art.blob((44, 146), (86, 132), (130, 138), (150, 158), (120, 178), (76, 178))
    art.shadow(wing, 0.2, 4)
    art.paint(wing, "a39a8c", "7e766a", bulge=7, fur=fur(art, 0.08, 80))
    art.tint(art.blob((56, 168), (92, 164), (104, 172), (80, 178)), "3458a8", 0.9, 1)
    neck = art.blob(
        (166, 140), (172, 110), (166, 84), (176, 60), (198, 52), (218, 62), (222, 82), (210, 104), (206, 144)
    )  # fmt: skip
    art.paint(neck, "2f7a4c", "1d5136", bulge=11, gloss=0.12)
    art.tint(art.stroke([(164, 134), (186, 140), (210, 134)], 6), "f4f2ea", 0.95, 0.6, neck)
    bill = art.blob((218, 72), (232, 78), (250, 84), (248, 91), (228, 92), (215, 88))
    art.paint(bill, "ecc04a", "b98a28", bulge=4)
    eye(art, 203, 73, 5)
    art.tint(art.noise(34, 4, 2).clip(0, 1) * art.box(20, 192, 214, 210, 8), "d6e6e4", 0.55, 1)


def cat(art: Painting) -> None:
    soft_room(art, "cdbca8", "b39d87", "8a7460")
    coat = fur(art, 0.075, 0, 10)
    chest = art.blob((40, 262), (56, 208), (96, 184), (160, 184), (200, 208), (216, 262))
    art.paint(chest, "a08a72", "7c6854", bulge=14, fur=coat)
    for s in (-1, 1):
        ear = art.blob(*out(s, (22, 72), (44, 42), (72, 18), (84, 56), (88, 110)))
        art.paint(ear, "97816a", "86705a", bulge=5, fur=coat)
        inside = art.blob(*out(s, (40, 70), (52, 52), (69, 34), (76, 62), (78, 96)))
        art.paint(inside, "dcaa9a", "b98877", bulge=4, fur=coat)
    head = art.blob(*both((128, 56), (172, 62), (206, 92), (218, 136), (202, 178), (166, 204), (128, 210)))
    art.shadow(head, 0.3, 6)
    art.paint(head, "a8927a", "b8a48c", bulge=18, fur=coat)
    for s in (-1, 1):
        for k in range(3):
            brow = out(s, (8 + 13 * k, 58 + 3 * k), (7 + 10 * k, 92 + 2 * k))
            cheek = out(s, (88, 136 + 16 * k), (58, 146 + 12 * k))
            for stripe in (brow, cheek):
                art.tint(art.stroke(stripe, 7, 2), "4c3c30", 0.7, 1, head)
    art.tint(art.blob(*both((128, 146), (160, 158), (166, 182), (128, 206))), "f4ece0", 0.9, 5, head)
    for s in (-1, 1):
        x = 128 + s * 40
        art.tint(art.oval(x, 124, 22, 18, s * 12), "3a2c22", 0.8, 2, head)
        art.paint(art.oval(x, 124, 18, 15, s * 12), "d8cf6a", "8fae4a", bulge=3)
        art.lay(art.oval(x, 124, 6, 13.5), "0f0f0d")
        art.tint(art.oval(x - 6, 118, 4, 4), "ffffff", 0.95)
        for k in range(3):
            whisker = out(s, (32, 172 + 5 * k), (76, 164 + 10 * k), (108, 168 + 15 * k))
            art.tint(art.stroke(whisker, 1.6, 1), "ffffff", 0.85)
    art.paint(art.blob((116, 156), (128, 153), (140, 156), (128, 169)), "d98a84", "b8645f", bulge=3)
    art.tint(art.stroke([(104, 178), (116, 183), (128, 170), (140, 183), (152, 178)], 2.4), "5a4034", 0.9)


def dog(art: Painting) -> None:
    soft_room(art, "a5bac6", "93aaa2", "75905f")
    coat = fur(art, 0.07, 0, 10)
    chest = art.blob((44, 262), (60, 206), (98, 184), (160, 184), (198, 206), (214, 262))
    art.paint(chest, "c08a52", "f0e4d2", bulge=14, fur=coat)
    art.tint(art.blob((84, 262), (96, 206), (160, 206), (172, 262)), "faf3e6", 0.8, 6, chest)
    face = ((128, 32), (158, 36), (184, 54), (199, 86), (198, 120), (184, 156), (168, 196), (148, 212), (128, 216))
    head = art.blob(*both(*face))
    art.shadow(head, 0.3, 6)
    art.paint(head, "c58f57", "b27c46", bulge=18, fur=coat)
    blaze = art.blob(*both((128, 26), (137, 60), (141, 108), (168, 150), (166, 196), (128, 218)))
    art.tint(blaze, "faf3e6", 0.95, 4, head)
    for s in (-1, 1):
        lobe = out(s, (48, 46), (72, 42), (98, 80), (106, 130), (98, 160), (82, 156), (68, 124), (60, 84))
        ear = art.blob(*lobe)
        art.shadow(ear, 0.25, 4)
        art.paint(ear, "8f5c32", "6b4123", bulge=8, fur=coat)
        art.tint(art.oval(128 + s * 34, 104, 17, 16), "5e3a1e", 0.6, 3, head)
        eye(art, 128 + s * 33, 104, 11)
        for k in range(3):
            art.tint(art.oval(128 + s * (26 + 7 * k), 176 + 5 * (k % 2), 1.5, 1.5), "6b4a35", 0.8)
    art.paint(art.blob(*both((128, 142), (152, 148), (144, 168), (128, 174))), "3a3130", "15110f", bulge=5, gloss=0.2)
    art.paint(art.blob(*both((128, 190), (142, 192), (142, 220), (128, 230))), "e58a8c", "c8585f", bulge=4)
    art.tint(art.stroke([(128, 194), (128, 216)], 2), "a8434c", 0.6, 1)
    art.tint(art.stroke([(94, 184), (112, 194), (128, 174), (144, 194), (162, 184)], 3), "4a2e20", 0.9)


def hooves(art: Painting, legs: Array, ground: float) -> None:
    art.tint(art.box(-50, ground - 9, 300, ground + 30), "2b1f18", 0.9, 0.5, legs)


def deer(art: Painting) -> None:
    """A stag that looks round."""
    meadow(art, 160, "a8ab86", "8d8f62", "5d5a38", "9a8d4e", "77703a")
    art.place(0.98, 0, 6)
    coat = fur(art, 0.06, 75)
    art.shadow(art.oval(146, 240, 88, 7), 0.5, 5)
    hind = [(224, 132), (192, 128), (178, 158), (190, 178), (200, 196), (199, 222), (195, 240), (206, 240), (208, 222),
            (212, 196), (214, 182), (226, 160)]  # fmt: skip
    front = [(78, 140), (106, 146), (102, 170), (96, 192), (94, 222), (95, 240), (84, 240), (85, 222), (83, 192),
             (78, 166)]  # fmt: skip
    far = art.blob(*((x - 18, y) for x, y in hind)) + art.blob(*((x + 18, y) for x, y in front))
    art.paint(far, "8a6034", "5c3e22", bulge=4)
    hooves(art, far, 238)
    trunk = art.blob(
        (60, 88), (78, 78), (96, 88), (108, 114), (140, 124), (180, 118), (212, 122), (230, 142), (222, 168),
        (190, 174), (140, 182), (100, 182), (74, 168), (64, 136),
    )  # fmt: skip
    body = np.maximum.reduce([trunk, art.blob(*hind), art.blob(*front)])
    art.paint(body, "b8814a", "87592e", bulge=9, fur=coat)
    hooves(art, body, 238)
    art.tint(art.blob((106, 178), (140, 174), (178, 170), (176, 186), (110, 190)), "e2cda6", 0.8, 4, body)
    art.tint(art.oval(227, 146, 8, 18), "f4ead6", 0.9, 3, body)
    art.tint(art.oval(78, 122, 10, 22), "ead9ba", 0.8, 5, body)
    for _ in range(26):
        x, y = art.random.uniform(114, 212), art.random.uniform(130, 156)
        art.tint(art.oval(x, y, 2.4, 2), "f0dfba", 0.7, 0.5, body)
    for s in (-1, 1):
        beam = ((9, 52), (25, 34), (38, 20), (35, 0))
        for tine in (beam, ((17, 43), (14, 16)), ((29, 30), (22, 4)), ((38, 20), (51, 6))):
            art.paint(art.stroke(out(s, *tine, middle=76), 6, 2.5), "e6cfa6", "b3966a", bulge=1.5)
        ear = art.blob(*out(s, (12, 58), (30, 48), (48, 50), (34, 66), (16, 70), middle=76))
        art.paint(ear, "a8743f", "8a5d31", bulge=3)
        art.tint(art.oval(76 + s * 30, 58, 11, 4.5, -s * 18), "e9cdb2", 0.8, 1, ear)
    half = ((0, 48), (16, 54), (20, 70), (12, 94), (10, 108), (0, 114))
    head = art.blob(*out(1, *half, middle=76), *out(-1, *half[-2:0:-1], middle=76))
    art.shadow(head, 0.3, 4)
    art.paint(head, "b67f47", "9c6c3a", bulge=8, fur=coat)
    art.tint(art.oval(76, 104, 11, 9), "ead9ba", 0.85, 2, head)
    art.paint(art.blob((69, 102), (76, 100), (83, 102), (76, 109)), "2b211c", "120d0a", bulge=2)
    for s in (-1, 1):
        eye(art, 76 + s * 13.5, 74, 4.2)
    blades(art, 240, ("b3a355", "9a8d45", "8a8a44", "c2ad62"))


def frog(art: Painting) -> None:
    art.backdrop((0, "66744a"), (110, "7d7a52"), (256, "8f7b5a"))
    art.grain(0.16, art.noise(40, 30, 3))
    art.haze(3)
    art.grain(0.06, art.noise(4, 3, 2) * art.ramp(90, 160))
    spots = 0.06 * art.noise(8, 8, 3)
    art.shadow(art.oval(128, 216, 112, 14), 0.6, 6)
    for s in (-1, 1):
        thigh = art.blob(*out(s, (50, 132), (92, 136), (112, 176), (96, 212), (48, 210)))
        art.paint(thigh, "6f8f34", "50692a", bulge=10, fur=spots)
        for k in (0, 1, 2):
            art.paint(art.stroke(out(s, (84, 212), (92 + 11 * k, 224 - 3 * k)), 8, 5), "5f7a2e", bulge=2)
    back = ((128, 86), (150, 82), (176, 92), (198, 116), (208, 146), (202, 184), (170, 208), (128, 214))
    body = art.blob(*both(*back))
    art.paint(body, "8aaa40", "8fa050", bulge=18, fur=spots)
    art.tint(art.blob(*both((128, 164), (170, 158), (184, 172), (176, 202), (128, 213))), "dedaa6", 0.85, 6, body)
    for s in (-1, 1):
        arm = art.stroke(out(s, (60, 160), (70, 196), (62, 218)), 22, 15, 11)
        art.paint(arm, "7d9c3a", "5f7a2e", bulge=6, fur=spots)
        for k in (-1, 0, 1):
            art.paint(art.stroke([(128 + s * 62, 217), (128 + s * 62 + 14 * k, 227)], 7, 5), "6f8c34", bulge=2)
        art.paint(art.oval(128 + s * 42, 86, 23, 22), "8aaa40", "7a983a", bulge=8)
        art.paint(art.oval(128 + s * 44, 83, 15, 15), "dcb552", "a87a28", bulge=4)
        art.lay(art.oval(128 + s * 45, 83, 11, 7), "0e0d0a")
        art.tint(art.oval(128 + s * 45 - 5, 78, 3.5, 3.5), "ffffff", 0.95)
        art.tint(art.oval(128 + s * 8, 128, 2, 1.5), "33401a", 0.9)
    art.tint(art.stroke([(60, 134), (92, 150), (128, 155), (164, 150), (196, 134)], 3.5), "3c4a1c", 0.9)


def horse(art: Painting) -> None:
    meadow(art, 168, "c9dbe2", "b0c6ae", "64824e", "8cab57", "5c7f35")
    coat = fur(art, 0.025, 70, 6)
    art.shadow(art.oval(118, 240, 96, 7), 0.5, 5)
    hind = [(30, 116), (60, 110), (90, 140), (82, 162), (67, 182), (61, 198), (60, 222), (67, 238), (50, 238),
            (49, 222), (47, 198), (42, 186), (44, 170), (30, 146)]  # fmt: skip
    front = [(150, 132), (188, 132), (182, 160), (175, 182), (173, 198), (171, 222), (178, 238), (160, 238),
             (161, 222), (160, 198), (158, 180), (150, 160)]  # fmt: skip
    far = art.blob(*((x + 22, y) for x, y in hind)) + art.blob(*((x + max(0, y - 140) * 0.3, y) for x, y in front))
    art.paint(far, "6a3a1e", "42220f", bulge=4)
    hooves(art, far, 236)
    tail = art.blob((38, 106), (22, 112), (8, 140), (8, 176), (16, 204), (26, 196), (26, 160), (30, 134), (44, 122))
    art.paint(tail, "38231a", "1c110b", bulge=5, fur=fur(art, 0.2, 10))
    trunk = art.blob(
        (30, 120), (54, 99), (90, 104), (122, 107), (148, 98), (164, 74), (182, 46), (202, 34), (218, 46), (218, 74),
        (206, 100), (200, 124), (190, 148), (168, 164), (130, 170), (96, 162), (66, 158), (36, 150),
    )  # fmt: skip
    body = np.maximum.reduce([trunk, art.blob(*hind), art.blob(*front)])
    art.paint(body, "b06b3e", "633416", bulge=11, fur=coat)
    hooves(art, body, 236)
    for x in (58, 172):
        art.tint(art.oval(x, 130, 18, 22), "cf8a58", 0.35, 8, body)
    for x in (197, 208):
        art.paint(art.blob((x - 5, 32), (x, 10), (x + 6, 30)), "97562d", "7d4523", bulge=2)
    head = art.blob(
        (194, 34), (208, 26), (220, 36), (232, 56), (246, 80), (249, 92), (241, 101), (230, 97), (218, 84), (204, 76),
        (194, 56),
    )  # fmt: skip
    art.shadow(head, 0.2, 4)
    art.paint(head, "aa673b", "85502b", bulge=8, fur=coat)
    art.tint(art.stroke([(216, 36), (230, 58), (242, 80)], 3, 5, 3), "f3e6d4", 0.85, 1, head)
    art.tint(art.oval(242, 94, 9, 8), "3d2417", 0.7, 2, head)
    art.tint(art.oval(244, 90, 1.8, 2.4), "160c08", 0.9)
    eye(art, 217, 52, 4.2)
    mane = art.blob(
        (210, 22), (196, 26), (178, 44), (162, 70), (142, 98), (156, 112), (166, 98), (178, 88), (184, 72), (194, 60),
        (200, 44), (214, 40),
    )  # fmt: skip
    art.paint(mane, "3c261b", "22150f", bulge=4, fur=fur(art, 0.22, 35))
    blades(art, 246, ("7fa046", "6b8d3a", "93b355", "587a30"))
