"""The page as a reader uses it: buttons, sliders, a click on a patch."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.figures.models import make
from tests.serving.browsing import chromium


@pytest.mark.slow
def test_buttons_sliders_and_clicks_choose_what_is_drawn(tmp_path: Path) -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    found = vitrail.look(vitrail.Classifier(make(), classes=list("abcde")), [picture], tmp_path / "look", steps=2)
    with chromium() as browser:
        page = browser.new_page()
        errors: list[str] = []
        asked: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(found.page.resolve().as_uri())
        drawn = [page.locator("canvas").evaluate("canvas => canvas.toDataURL()")]

        def see() -> str:
            drawn.append(page.locator("canvas").evaluate("canvas => canvas.toDataURL()"))
            return page.locator(".says").inner_text()

        page.locator("button[value=attention]").click()
        assert "in this layer and head" in see()
        page.locator("input.layer").fill("1")
        see()
        page.locator("input.head").fill("3")
        see()
        assert page.locator(".sliders output").all_inner_texts() == ["1 of 3", "3 of 4"]
        page.locator("button[value=attribution]").click()
        assert "What speaks for the class" in see()
        assert not page.locator("input.layer").is_visible()
        page.locator("button[value=likeness]").click()
        see()
        box = page.locator(".view").bounding_box()
        page.locator(".view").click(position={"x": box["width"] * 0.1, "y": box["height"] * 0.9})
        assert "row 4, column 1: 1.00 cosine" in see()
        assert len(set(drawn)) == len(drawn)  # each choice shows something else
        assert errors == []
        assert all(url.startswith(("file:", "data:")) for url in asked)
