"""HTML that is safe by its making."""

from hypothesis import given
from hypothesis import strategies as st

from tests.pages.reading import Reading
from vitrail.pages.markup import Markup, tag


@given(st.text(), st.text())
def test_any_text_comes_back_from_the_markup_as_it_was(text: str, value: str) -> None:
    read = Reading(tag("p", text, tag("b", Markup("&amp;")), title=value))
    assert [name for name, _ in read.tags] == ["p", "b"]
    if (text + value).isprintable():
        assert "".join(read.text) == text + "&"
        assert read.tags[0][1] == {"title": value}
