"""A page as a browser reads it."""

from html.parser import HTMLParser

EVIL = "<img src=x onerror=alert(1)>\"'&amp;<script>alert(2)<"  # a slash cannot be part of a file's name


class Reading(HTMLParser):
    """The tags with their attributes, the text, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))
        if name not in ("img", "input", "meta"):
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, text):
        self.text.append(text)
