"""The pages that follow from the code are as the code is."""

import pytest

from pipelines.reference import DOCS, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name):
    assert (DOCS / name).read_text() == PAGES[name](), "run `python -m pipelines.reference`"
