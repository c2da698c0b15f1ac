"""The pages that follow from the code are as the code is."""

from typing import get_args

import pytest
from reference import DOCS, PAGES, REFERENCE

from pipelines.corpus.cleaning.prose import PARAGRAPH_RULES, TITLE_LINE
from pipelines.corpus.cleaning.rules import TEXT_RULES
from pipelines.corpus.dedup import marks as overlaps
from pipelines.corpus.pairs import NO_NEIGHBOUR
from pipelines.settings import CorpusSettings


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name):
    assert (REFERENCE / name).read_text() == PAGES[name](), "run `python tools/reference.py`"


def test_the_page_of_the_corpus_names_every_rule_and_format():
    page = (DOCS / "concepts" / "corpus.md").read_text(encoding="utf-8")
    rules = {*PARAGRAPH_RULES, *TEXT_RULES, TITLE_LINE, overlaps.DUPLICATE, overlaps.NEAR_DUPLICATE}
    rules |= {overlaps.EXCLUDED, overlaps.NEARLY_EXCLUDED, NO_NEIGHBOUR}
    formats = get_args(CorpusSettings.model_fields["format"].annotation)
    assert [name for name in (*rules, *formats) if f"`{name}`" not in page] == []
