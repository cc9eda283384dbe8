"""Tests in several processes: each file in one of them, and as long for all as files allow."""

from hypothesis import given
from hypothesis import strategies as st

from tests.parts import SECONDS, TESTS, divided, file_of

FILES = st.dictionaries(st.text(min_size=1), st.floats(0.01, 100), max_size=60)


@given(FILES, st.integers(1, 5))
def test_every_file_is_in_one_part(seconds: dict[str, float], parts: int) -> None:
    found = divided(seconds, parts)
    assert len(found) == parts
    assert sorted(file for part in found for file in part) == sorted(seconds)


@given(FILES, st.integers(1, 5))
def test_no_part_takes_longer_than_another_by_more_than_one_file(seconds: dict[str, float], parts: int) -> None:
    sums = [sum(seconds[file] for file in part) for part in divided(seconds, parts)]
    assert max(sums) - min(sums) <= max(seconds.values(), default=0) + 1e-6


@given(FILES)
def test_parts_do_not_depend_on_the_order_in_which_files_are_found(seconds: dict[str, float]) -> None:
    assert divided(seconds, 2) == divided(dict(reversed(seconds.items())), 2)


def test_files_that_take_long_are_there() -> None:
    assert SECONDS.keys() <= {file_of(path) for path in TESTS.rglob("test_*.py")}
