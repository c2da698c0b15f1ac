"""What the section `card` refuses."""

import pytest

from pipelines.errors import InputError
from pipelines.settings.load import load


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("card.start_name=../folder", "card.start_name: `../folder` is no name on the hub, write"),
        ("card.datasets=[a/b, a b]", "card.datasets: `a b` is no name on the hub, write OWNER"),
        ("card.languages=[en, English]", "card.languages: `English` is no ISO 639 code, two or"),
    ],
)
def test_names_that_the_hub_would_not_take(override, told) -> None:
    with pytest.raises(InputError) as refused:
        load(None, [override])
    assert str(refused.value).startswith(told)


def test_what_the_hub_takes() -> None:
    names = ["card.start_name=bert-base-uncased", "card.datasets=[BeIR/scifact, squad]"]
    card = load(None, [*names, "card.languages=[en, deu, multilingual, code]"]).card
    assert card.datasets == ("BeIR/scifact", "squad")
    assert len(card.languages) == 4
