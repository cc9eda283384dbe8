"""The page in a real browser: what a visitor does, and that what is shown is what the model computes."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.serving.browsing import Visit, chromium, photograph, visit
from tests.serving.running import Running, running
from vitrail.serving.serve import bundled

LAYER = 4  # of six: where the page begins, at three quarters of the depth


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def small() -> vitrail.Classifier:
    return vitrail.load(bundled())


@pytest.fixture(scope="module")
def site(small: vitrail.Classifier) -> Iterator[Running]:
    """What `vitrail serve` shows without a model."""
    with running({"cifar10_small": bundled()}) as one:
        yield one


@pytest.fixture
def page(browser: Any, site: Running) -> Iterator[Visit]:
    with visit(browser, site.url) as one:
        yield one


def scores(classifier: vitrail.Classifier, pixels: np.ndarray) -> dict[str, float]:
    """Percent of each class, for pixels as the model takes them."""
    with torch.inference_mode():
        logits = classifier.model(torch.from_numpy(classifier.preprocessing.normalise(pixels))[None])[0]
    return dict(zip(classifier.classes, (100 * logits.softmax(-1)).tolist(), strict=True))


def without(classifier: vitrail.Classifier, pixels: np.ndarray, panes: list[tuple[int, int]]) -> np.ndarray:
    """The pixels with panes of 4 x 4 in the colour of the mean."""
    page = pixels.copy()
    for row, column in panes:
        page[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = np.round(
            255 * np.array(classifier.preprocessing.mean)
        )
    return page


def assert_bars(found: list[tuple[str, float]], wanted: dict[str, float]) -> None:
    best = sorted(wanted.items(), key=lambda one: -one[1])[: len(found)]
    assert [label for label, _ in found][:1] == [best[0][0]]
    for label, score in found:
        assert score == pytest.approx(wanted[label], abs=0.06), label


def drop(page: Visit, *files: tuple[str, bytes]) -> None:
    """Files let go over the page, as the browser tells of them."""
    given = [[name, list(data)] for name, data in files]
    transfer = page.page.evaluate_handle(
        "files => { const all = new DataTransfer();"
        " files.forEach(([name, data]) => all.items.add(new File([new Uint8Array(data)], name))); return all; }",
        given,
    )
    for kind in ("dragenter", "dragover", "drop"):
        page.page.dispatch_event("main", kind, {"dataTransfer": transfer})


def test_a_dropped_picture_has_the_bars_of_predict_and_says_model_and_time(
    page: Visit, small: vitrail.Classifier, tmp_path: Path
) -> None:
    drop(page, ("flower.png", photograph()))
    page.settle()
    (tmp_path / "flower.png").write_bytes(photograph())
    best = small.predict(tmp_path / "flower.png", top=5)[0].top
    assert [label for label, _ in page.bars()] == [label for label, _ in best]
    assert [score for _, score in page.bars()] == pytest.approx([100 * score for _, score in best], abs=0.06)
    assert page.text(".verdict").startswith(best[0][0])
    assert page.text("#model-name") == "cifar10_small"
    assert "8 × 8 panes · 6 layers · 3 heads" in page.text("#model-facts")
    assert re.fullmatch(r"[\d.]+ ms in the model · [\d.]+ in the server · [\d.]+ in all", page.text(".time"))


def test_the_page_sends_the_very_bytes_so_pixels_and_logits_are_the_same(
    page: Visit, small: vitrail.Classifier
) -> None:
    found = page.page.evaluate(
        "async data => { const { predict } = await import('/page/api.js');"
        " const file = new File([new Uint8Array(data)], 'a.jpg');"
        " return predict(file, 'cifar10_small', { logits: true, seen: true }); }",
        list(photograph("china.jpg", "JPEG")),
    )
    pixels = small.preprocessing.pixels(photograph("china.jpg", "JPEG"))
    with torch.inference_mode():
        wanted = small.model(torch.from_numpy(small.preprocessing.normalise(pixels))[None])[0]
    np.testing.assert_allclose(found["logits"], wanted, atol=1e-4)
    seen = page.page.evaluate(
        "async address => { const image = new Image(); image.src = address; await image.decode();"
        " const brush = new OffscreenCanvas(32, 32).getContext('2d'); brush.drawImage(image, 0, 0);"
        " return [...brush.getImageData(0, 0, 32, 32).data]; }",
        found["seen"],
    )
    np.testing.assert_array_equal(np.reshape(seen, (32, 32, 4))[..., :3], pixels)


def test_a_picture_is_pasted(browser: Any, site: Running) -> None:
    with visit(browser, site.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.page.evaluate(
            "async data => navigator.clipboard.write([new ClipboardItem({'image/png':"
            " new Blob([new Uint8Array(data)], {type: 'image/png'})})])",
            list(photograph()),
        )
        page.page.keyboard.press("Control+v")
        page.settle()
        assert len(page.bars()) == 5
        page.page.evaluate("navigator.clipboard.writeText('words')")
        page.page.keyboard.press("Control+v")
        page.says("There is no picture in the clipboard.")


def test_the_camera_takes_a_picture(page: Visit) -> None:
    page.page.click("#camera")
    page.page.click("#shoot:enabled")
    page.settle()
    assert page.text(".window h2") == "camera.png"


def test_an_example_is_one_click_away(page: Visit) -> None:
    page.page.click("[aria-label='Example: ship']")
    page.settle()
    assert page.bars()[0][0] == "ship"


def test_a_pane_under_the_mouse_shows_its_attention_in_each_layer_and_head(
    page: Visit, small: vitrail.Classifier
) -> None:
    page.show()
    values = torch.from_numpy(small.preprocessing(photograph()))[None]
    with torch.inference_mode():
        attention = small.model.forward_intermediates(values, attention="all").attention
    bare = page.glass()
    page.hover(2, 5)
    page.says("Pane 3, 6 attends to · layer 5, mean of heads")
    assert page.text(".scale i", 1) == f"{100 * attention[LAYER][0].mean(0)[21].max():.1f} %"
    assert page.glass() != bare
    page.page.locator("#layer").press("ArrowLeft")  # the mouse stays where it is
    page.page.locator("#head").press("End")
    page.says("Pane 3, 6 attends to · layer 4, head 3")
    assert page.text(".scale i", 1) == f"{100 * attention[LAYER - 1][0, 2, 21].max():.1f} %"
    shades = np.asarray(page.glass().convert("L").resize((64, 64), Image.Resampling.BOX), float)
    light = shades.reshape(8, 8, 8, 8).mean((1, 3)).ravel()
    light[21] = 0  # under its ring
    weights = attention[LAYER - 1][0, 2, 21].clone()
    weights[21] = 0
    assert light.argmax() in weights.topk(3).indices.tolist()
    page.page.mouse.move(5, 5)
    page.says("Hover a pane")


def test_the_strength_of_the_overlay_goes_to_nothing(page: Visit) -> None:
    page.show()
    bare = page.glass()
    page.page.click("label[for=view-rollout]")
    assert page.glass() != bare
    page.page.locator("#opacity").press("Home")
    assert page.glass() == bare


def test_panes_that_are_clicked_away_move_the_prediction(page: Visit, small: vitrail.Classifier) -> None:
    page.show()
    pixels = small.preprocessing.pixels(photograph())
    page.page.mouse.move(*page.at(3, 2))
    page.page.mouse.down()
    for column in range(3, 6):
        page.page.mouse.move(*page.at(3, column))
    page.page.mouse.up()
    page.page.mouse.click(*page.at(6, 6))
    page.says("5 of 64 panes out")
    page.settle()
    panes = [(3, 2), (3, 3), (3, 4), (3, 5), (6, 6)]
    wanted = scores(small, without(small, pixels, panes))
    assert_bars(page.bars(), wanted)
    label, score = page.bars()[0]
    change = score - scores(small, pixels)[label]
    said = page.text(".figures small").replace("−", "-")
    assert float(said or 0) == pytest.approx(change, abs=0.11)
    page.page.mouse.move(5, 5)
    alpha = np.asarray(page.glass())[..., 3]
    middle = alpha.shape[0] // 16
    assert alpha[middle * 7, middle * 7] == 0  # pane (3, 3): one sees through
    assert alpha[middle * 9, middle * 7] == 255
    page.page.get_by_role("button", name="Put back").click()
    page.says("All panes are in")
    page.settle()
    assert_bars(page.bars(), scores(small, pixels))


def test_panes_can_leave_the_sequence_instead(page: Visit, small: vitrail.Classifier) -> None:
    page.show()
    page.page.get_by_role("button", name="panes go blank").click()
    page.page.mouse.click(*page.at(0, 0))
    page.says("1 of 64 panes out")
    page.settle()
    mask = torch.ones(1, 64, dtype=torch.bool)
    mask[0, 0] = False
    with torch.inference_mode():
        logits = small.model(torch.from_numpy(small.preprocessing(photograph()))[None], mask=mask)[0]
    assert_bars(page.bars(), dict(zip(small.classes, (100 * logits.softmax(-1)).tolist(), strict=True)))


def test_another_class_has_another_attribution(page: Visit) -> None:
    page.show()
    labels = [label for label, _ in page.bars()]
    page.page.click("label[for=view-class]")
    page.says(f"What speaks for {labels[0]}")
    first = page.glass()
    page.page.locator(".bars button").filter(has_text=labels[1]).click()
    page.says(f"What speaks for {labels[1]}")
    assert page.glass() != first
    assert page.page.locator(".bars [aria-pressed=true]").inner_text().startswith(labels[1])
    last = page.page.locator("datalist option").last.get_attribute("value")
    page.page.locator(".other input").fill(last)
    page.page.locator(".other input").press("Enter")
    page.says(f"What speaks for {last}")


def test_everything_is_reached_by_keys(page: Visit, small: vitrail.Classifier) -> None:
    page.show()
    page.page.keyboard.press("2")
    page.says("All panes attend, on average, to · layer 5")
    page.page.locator(".does button").last.focus()
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.className") == "frame"
    page.says("Pane 5, 5 attends to")
    page.page.keyboard.press("ArrowUp")
    page.page.keyboard.press("ArrowRight")
    page.says("Pane 4, 6 attends to")
    page.page.keyboard.press("Space")
    page.says("1 of 64 panes out")
    page.settle()
    assert_bars(page.bars(), scores(small, without(small, small.preprocessing.pixels(photograph()), [(3, 5)])))
    page.says(page.bars()[0][0], "[aria-live]")
    page.page.keyboard.press("[")
    page.page.keyboard.press(".")
    page.says("layer 4, head 1")
    page.page.keyboard.press("Escape")
    page.says("All panes attend")
    page.page.keyboard.press("r")
    page.says("All panes are in")


def test_pictures_stand_side_by_side_and_one_that_is_none_says_so(page: Visit) -> None:
    page.choose(("flower.png", photograph()), ("notes.txt", b"these are words"), ("china.png", photograph("china.jpg")))
    page.says("notes.txt: holds text, not a picture")
    page.settle()
    assert page.page.locator(".window[data-status=ready]").count() == 2
    left, right = (page.page.locator(".window").nth(i).bounding_box() for i in (0, 2))
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    page.page.get_by_label("Close notes.txt").click()
    assert page.page.locator(".window").count() == 2


def test_the_window_is_saved_as_a_picture(page: Visit) -> None:
    page.show()
    page.page.keyboard.press("2")
    with page.page.expect_download() as waiting:
        page.page.get_by_label("Save as PNG").click()
    assert waiting.value.suggested_filename == "flower-attention-layer5-heads.png"
    saved = Image.open(io.BytesIO(Path(waiting.value.path()).read_bytes()))
    assert saved.format == "PNG"
    assert saved.width == 1200
    assert saved.height > 1200
