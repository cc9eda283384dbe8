"""What every page has: a head with the style, sections, panels, small pictures inside the file."""

from __future__ import annotations

import base64
import io
import re
from functools import cache
from importlib import resources

from PIL import Image

from vitrail.pages.markup import Child, Markup, joined, tag


def document(title: str, *body: Child, scripts: tuple[str, ...] = (), styles: tuple[str, ...] = ()) -> str:
    """The whole page; `scripts`, and `styles` beside the one of all pages, are names of files that stand here."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        [tag("style", Markup(_file(name))) for name in ("page.css", *styles)],
    )
    code = [tag("script", Markup(_file(name))) for name in scripts]
    return "<!doctype html>\n" + tag("html", head, tag("body", tag("main", *body), code), lang="en") + "\n"


def section(key: str, title: str, lead: str | None, *content: Child) -> Markup:
    return tag("section", tag("h2", title), tag("p", lead, class_="lead") if lead else None, *content, id=key)


def panel(title: str | None, *content: Child) -> Markup:
    return tag("div", tag("h3", title) if title else None, *content, class_="panel")


def tile(value: str, words: str, *, style: str = "", section: str | None = None) -> Markup:
    """A figure with what it is; with a section, a link to it."""
    content = joined(tag("b", value), tag("span", words))
    look = f"tile {style}".strip()
    return tag("a", content, class_=look, href=f"#{section}") if section else tag("div", content, class_=look)


def picture_address(picture: Image.Image, side: int, quality: int = 60) -> str:
    """The picture, made small, as an address that holds it."""
    small = picture.convert("RGB")
    small.thumbnail((side, side))
    page = io.BytesIO()
    small.save(page, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(page.getvalue()).decode()


@cache
def colours() -> dict[str, str]:
    """The page's colours by light, for plots that belong to it."""
    light = _file("page.css").partition("}")[0]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", light))


def _file(name: str) -> str:
    return resources.files("vitrail.pages").joinpath(name).read_text(encoding="utf-8")
