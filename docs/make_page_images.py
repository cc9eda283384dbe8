"""Takes the pictures of docs/page.md with a real browser: uv run --all-extras python docs/make_page_images.py"""

import io
import sys
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.serving.browsing import Visit, chromium, visit  # noqa: E402
from tests.serving.running import running  # noqa: E402
from vitrail import assets  # noqa: E402
from vitrail.serving.serve import bundled  # noqa: E402

IMAGES = ROOT / "docs" / "images"


def take(page: Visit, name: str) -> None:
    """The page as it is, in a file that is small."""
    page.page.wait_for_timeout(400)
    shot = Image.open(io.BytesIO(page.page.screenshot())).convert("RGB")
    path = IMAGES / f"{name}.jpg"
    shot.save(path, quality=85, subsampling=0, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1024:.0f} KB")


def choose(page: Visit, *names: str) -> None:
    page.page.set_input_files("#file", [str(path) for name in names for path in assets.pictures() if path.stem == name])
    page.settle()


def take_all(browser: Any, url: str) -> None:
    with visit(browser, url) as page:
        page.page.wait_for_selector("[data-state=ready]")
        page.page.wait_for_timeout(500)
        take(page, "page-empty")
    with visit(browser, url, color_scheme="dark") as page:
        choose(page, "horse")
        page.page.keyboard.press("2")
        page.page.keyboard.press("]")
        page.hover(3, 4)
        take(page, "page-attention")
    with visit(browser, url, color_scheme="dark") as page:
        choose(page, "deer")
        page.page.keyboard.press("4")
        take(page, "page-class")
    with visit(browser, url) as page:
        choose(page, "frog")
        page.page.mouse.move(*page.at(2, 1))
        page.page.mouse.down()
        for row, column in [(2, 2), (2, 5), (2, 6), (3, 6), (3, 1), (4, 1), (4, 6)]:
            page.page.mouse.move(*page.at(row, column), steps=8)
        page.page.mouse.up()
        page.page.mouse.move(5, 5)
        page.settle()
        take(page, "page-occlusion")
    with visit(browser, url, color_scheme="dark") as page:
        choose(page, "cat", "dog", "bird-2")
        page.page.keyboard.press("3")
        take(page, "page-several")
    with visit(browser, url, width=360, height=780, is_mobile=True, has_touch=True) as page:
        choose(page, "ship")
        page.page.locator("label[for=view-class]").click()
        take(page, "page-narrow")
    with visit(browser, url) as page:
        page.choose(("ship.txt", b"a ship, in words"))
        page.says("holds text")
        take(page, "page-error")


if __name__ == "__main__":
    with running({"cifar10_small": bundled()}) as server, chromium() as browser:
        take_all(browser, server.url)
