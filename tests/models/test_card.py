"""What a person learns of a model from its card."""

from pipelines.models.bert.spec import BertSpec
from pipelines.models.card import model_card
from pipelines.models.static.spec import StaticSpec
from pipelines.tokens.prompts import Prompts

TOKENS = {"max_length": 64, "texts": 200, "cut": 3, "tokens": 900, "dropped": 100}


def test_it_tells_both_lengths_and_the_prompts() -> None:
    prompts = Prompts((("query", "ask: "), ("topic", "about: "), ("passage", "")), "topic")
    spec = BertSpec(
        vocabulary=9, layers=2, hidden=8, heads=2, intermediate=8, max_length=256, prompts=prompts
    )
    card = model_card(spec, 5, TOKENS)
    assert "It reads 256 tokens of a text." in card
    assert "trained on texts of up to 64 tokens, 3 of 200 (1.5 %) cut, 10.0 % of" in card
    assert "- `query`: `ask: `\n- `topic`: `about: `, unless another is named\n" in card
    assert "passage" not in card


def test_a_start_was_not_trained_and_a_static_encoder_may_read_everything() -> None:
    card = model_card(StaticSpec(vocabulary=9, hidden=8), 0, TOKENS)
    assert "It reads all tokens of a text." in card
    assert "trained on" not in card
    assert "prompts" not in card


def test_it_tells_to_what_embeddings_may_be_cut() -> None:
    spec = StaticSpec(vocabulary=9, hidden=8)
    card = model_card(spec, 5, TOKENS, (8, 2, 4))
    assert "have 8 numbers and were trained to be cut to 4, 2 (`truncate_dim`" in card
    assert "truncate_dim" not in model_card(spec, 5, TOKENS, (8,))
