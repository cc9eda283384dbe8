"""A real browser for tests: Debian's Chromium, driven by Playwright; every page is watched for errors and strangers."""

import base64
import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; where there is none, the tests skip and say so."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@cache
def photograph(name: str = "flower.jpg", kind: str = "PNG") -> bytes:
    """A file of one of scikit-learn's two photographs, china.jpg and flower.jpg; smaller, so that it is quick."""
    page = io.BytesIO()
    Image.fromarray(load_sample_image(name)).resize((320, 214)).save(page, kind)
    return page.getvalue()


@dataclass
class Visit:
    """A page that is open, and what went wrong on it."""

    page: Any
    base: str
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def choose(self, *files: tuple[str, bytes]) -> None:
        """Files by the chooser."""
        given = [{"name": name, "mimeType": "application/octet-stream", "buffer": data} for name, data in files]
        self.page.set_input_files("#file", given)

    def show(self, data: bytes | None = None, name: str = "flower.png") -> None:
        """One picture, until everything about it is there."""
        self.choose((name, data or photograph()))
        self.settle()

    def settle(self) -> None:
        """All pictures are read, and nothing is asked any more."""
        self.page.wait_for_selector(".window[data-status=ready]")
        self.page.wait_for_selector(".window[aria-busy=true]", state="detached")

    def text(self, selector: str, place: int = 0) -> str:
        return " ".join(self.page.locator(selector).nth(place).inner_text().split())

    def bars(self, window: int = 0) -> list[tuple[str, float]]:
        """(label, percent) of each bar from above, as a reader sees them."""
        rows = self.page.locator(".window").nth(window).locator(".bars li")
        found = rows.evaluate_all(
            "rows => rows.map(row => [row.querySelector('.label').textContent,"
            " parseFloat(row.querySelector('b').textContent), Number(row.style.getPropertyValue('--place'))])"
        )
        return [(label, score) for label, score, _ in sorted(found, key=lambda row: row[2])]

    def at(self, row: int, column: int, rows: int = 8, columns: int = 8, window: int = 0) -> tuple[float, float]:
        """The middle of a pane on the screen."""
        frame = self.page.locator(".frame").nth(window)
        frame.scroll_into_view_if_needed()
        box = frame.bounding_box()
        x = box["x"] + (column + 0.5) * box["width"] / columns
        return x, box["y"] + (row + 0.5) * box["height"] / rows

    def hover(self, row: int, column: int) -> None:
        self.page.mouse.move(*self.at(row, column))

    def says(self, words: str, selector: str = "body") -> None:
        """Waits until these words are there."""
        self.page.locator(selector).filter(has_text=words).first.wait_for(timeout=10_000)

    def glass(self, window: int = 0) -> Image.Image:
        """What is drawn on the panes; without motion, it is at rest after a frame or two."""
        script = "canvas => new Promise(done => setTimeout(() => done(canvas.toDataURL()), 80))"
        address = self.page.locator(".glass").nth(window).evaluate(script)
        return Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGBA")


@contextmanager
def visit(browser: Any, base: str, *, width: int = 1280, height: int = 800, **options: Any) -> Iterator[Visit]:
    """The page at an address, in a browser of its own, without motion; at the end, no script failed and no other host
    was asked."""
    given = {"viewport": {"width": width, "height": height}, "reduced_motion": "reduce", **options}
    context = browser.new_context(**given)
    page = context.new_page()
    one = Visit(page, base)
    page.on("pageerror", lambda error: one.errors.append(str(error)))
    page.on("request", lambda request: one.hosts.add(urlsplit(request.url).netloc or urlsplit(request.url).scheme))
    try:
        page.goto(base)
        yield one
        assert one.errors == []
        assert one.hosts <= {urlsplit(base).netloc, "data", "blob"}
    finally:
        context.close()
