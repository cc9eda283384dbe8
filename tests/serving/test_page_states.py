"""The page where things are otherwise: a busy server, other models, a token, the dark, a narrow screen."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from tests.serving.browsing import chromium, photograph, visit
from tests.serving.conftest import make_model
from tests.serving.running import Running, picture, running
from vitrail.serving.files import page_files

PREDICT = re.compile(r".*/v1/predict.*")
CONTRAST = """() => {
  const light = (text) => {
    const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  return ["body", ".facts", ".hero p", ".hint", ".bottom a"].map((name) => {
    const ink = light(getComputedStyle(document.querySelector(name)).color);
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  });
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as one:
        yield one


def busy(status: int, times: int) -> Any:
    """The server's own refusal, so many times; then it answers."""
    left = [times]

    def answer(route: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            route.continue_()
        else:
            headers = {"retry-after": "1", "content-type": "application/json"}
            route.fulfill(status=status, headers=headers, body='{"error": "…"}')

    return answer


@pytest.mark.parametrize(("status", "words"), [(429, "The server is busy"), (503, "The server is not ready")])
def test_a_busy_server_is_said_so_and_asked_again(browser: Any, server: Running, status: int, words: str) -> None:
    with visit(browser, server.url) as page:
        page.page.route(PREDICT, busy(status, 1))
        page.choose(("flower.png", photograph()))
        page.says(words, "[role=alert]")
        page.says("Trying again", "[role=alert]")
        page.settle()
        assert page.page.locator("[role=alert]:visible").count() == 0
        assert len(page.bars()) == 5


def test_pictures_that_a_full_queue_refuses_come_in_the_end(browser: Any, tiny: Path) -> None:
    with running(tiny, queue=1, max_pictures=1) as server, visit(browser, server.url) as page:
        page.choose(*[(f"{i}.png", picture(i)) for i in range(6)])
        ready = page.page.locator(".window[data-status=ready][aria-busy=false]")
        ready.nth(5).wait_for(timeout=25_000)
        assert page.page.locator("[role=alert]:visible").count() == 0
        assert all(len(page.bars(i)) == 5 for i in range(6))


def test_a_server_that_is_gone_is_said_so_and_can_be_tried_again(browser: Any, server: Running) -> None:
    with visit(browser, server.url) as page:
        page.page.route(PREDICT, lambda route: route.abort())
        page.choose(("flower.png", photograph()))
        page.says("The server does not answer", "[role=alert]")
        page.page.unroute(PREDICT)
        page.page.get_by_role("button", name="Try again").click()
        page.settle()


def test_a_file_beyond_the_limit_is_not_even_sent(browser: Any, tiny: Path) -> None:
    with running(tiny, max_body=100_000) as server, visit(browser, server.url) as page:
        sent: list[str] = []
        page.page.on("request", lambda request: sent.append(request.method))
        page.choose(("large.png", b"\x89PNG" + bytes(200_000)), ("empty.png", b""))
        page.says("large.png: is 0.2 MiB, and the server takes 0.1 MiB at most", "[role=alert]")
        page.says("empty.png: is empty", "[role=alert]")
        assert "POST" not in sent


def test_a_token_is_asked_for_once(browser: Any, tiny: Path) -> None:
    with running(tiny, token="a-long-enough-token") as server, visit(browser, server.url) as page:
        page.page.locator("#token").fill("not-this-one-at-all")
        page.page.get_by_role("button", name="Go on").click()
        page.page.locator("#token:visible").fill("a-long-enough-token")
        page.page.get_by_role("button", name="Go on").click()
        page.page.wait_for_selector("[data-state=ready]")
        page.show()
        assert len(page.bars()) == 5


def test_several_models_are_chosen_from_and_a_resnet_says_what_it_lacks(browser: Any, tiny: Path) -> None:
    torch.manual_seed(0)
    config = vitrail.ResNetConfig(img_size=32, layers=(1, 1), width=32, small_stem=True, num_classes=4, zero_head=False)
    resnet = vitrail.Classifier(vitrail.ResNet(config), classes=["a", "b", "c", "d"])
    with running({"tiny": tiny, "resnet": resnet}) as server, visit(browser, server.url) as page:
        page.show()
        assert page.page.locator("[name=view]").count() == 4
        page.page.select_option("#model-choice", "resnet")
        page.says("A ResNet has no attention")
        page.settle()
        assert page.page.locator(".views label").all_inner_texts() == ["Picture", "Class"]
        assert len(page.bars()) == 4
        page.page.click("label[for=view-class]")
        page.says("What speaks for")


def test_attention_that_is_too_much_for_one_answer_comes_layer_by_layer(
    browser: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.serving.looking.MOST_BYTES", 2 * 17**2)  # one layer of two heads, 17 tokens
    classifier = vitrail.load(tiny)
    with torch.inference_mode():
        values = torch.from_numpy(classifier.preprocessing(photograph()))[None]
        attention = classifier.model.forward_intermediates(values, attention="all").attention
    with running(tiny) as server, visit(browser, server.url) as page:
        page.show()
        page.page.keyboard.press("2")
        for layer in (1, 0):
            page.page.locator("#layer").press("End" if layer else "Home")
            page.says(f"The class token attends to · layer {layer + 1}")
            assert page.text(".scale i", 1) == f"{100 * attention[layer][0, :, 0, 1:].mean(0).max():.1f} %"


def test_attention_that_never_fits_is_said_to_be_missing(
    browser: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.serving.looking.MOST_BYTES", 100)
    with running(tiny) as server, visit(browser, server.url) as page:
        page.show()
        page.says("The attention of this model is too large to be sent")
        assert page.page.locator(".views label").all_inner_texts() == ["Picture", "Rollout", "Class"]
        page.page.keyboard.press("2")
        page.says("What arrives at the head")


def test_a_picture_need_not_be_square_nor_a_model_without_a_class_token(browser: Any, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "wide", img_size=(32, 64), class_token=True, registers=2)
    with running(folder) as server, visit(browser, server.url) as page:
        page.show()
        page.page.keyboard.press("2")
        page.says("The class token attends to")
        box = page.page.locator(".frame").bounding_box()
        assert box["width"] == pytest.approx(2 * box["height"], abs=1)
        page.page.mouse.move(*page.at(3, 7, rows=4, columns=8))
        page.says("Pane 4, 8 attends to")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_are_readable_by_day_and_by_night(browser: Any, server: Running, scheme: str) -> None:
    with visit(browser, server.url, color_scheme=scheme) as page:
        page.page.wait_for_selector("[data-state=ready]")
        assert min(page.page.evaluate(CONTRAST)) > 4.5
        ground = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground)[:3])) > 380) == (scheme == "light")
        for _ in range(2 if scheme == "light" else 1):  # auto, light, dark
            page.page.click("#theme")
        other = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert other != ground
        page.page.reload()
        page.page.wait_for_selector("[data-state=ready]")
        assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") == other


def test_a_narrow_screen_has_everything_and_a_finger_takes_panes_out(browser: Any, server: Running) -> None:
    with visit(browser, server.url, width=360, height=740, has_touch=True, is_mobile=True) as page:
        wide = "document.scrollingElement.scrollWidth"
        page.page.wait_for_selector("[data-state=ready]")
        assert page.page.evaluate(wide) <= 360
        page.show()
        assert page.page.evaluate(wide) <= 360
        for name in (".views", ".frame", ".bars", ".out", "#choose", "#camera"):
            box = page.page.locator(name).bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 360
        small = page.page.locator("main button:visible, main label:visible").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect().height).filter(height => height < 24)"
        )
        assert small == []  # a finger hits each
        page.page.touchscreen.tap(*page.at(1, 2, rows=4, columns=4))
        page.says("Pane 2, 3 attends to")
        page.says("All panes are in")
        page.page.touchscreen.tap(*page.at(1, 2, rows=4, columns=4))
        page.says("1 of 16 panes out")


def test_who_wants_no_motion_has_none(browser: Any, server: Running) -> None:
    running_now = "document.getAnimations().filter((one) => one.playState === 'running').length"
    for wish, some in (("reduce", False), ("no-preference", True)):
        with visit(browser, server.url, reduced_motion=wish) as page:
            page.page.wait_for_timeout(100)
            assert (page.page.evaluate(running_now) > 0) == some
            page.show()
            assert len(page.bars()) == 5


def test_the_page_is_in_the_package_and_names_no_other_place() -> None:
    files = page_files()
    assert {"index.html", "app.js", "base.css", "mark.svg"} <= set(files)
    for name, file in files.items():
        text = file.data.decode().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, name
        assert len(text.splitlines()) <= 350, name
