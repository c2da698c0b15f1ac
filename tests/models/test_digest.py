"""What a model folder is known by."""

from run_factory import write_model

from pipelines.models.folder import CARD_FILE, digest_model, start_card
from pipelines.models.static.architecture import StaticSpec


def test_a_card_changes_nothing_and_every_other_file_does(tmp_path) -> None:
    model = write_model(tmp_path, "weights")
    known = digest_model(model)
    for text in ("a card", "the card with figures"):
        (model / CARD_FILE).write_text(text)
        assert digest_model(model) == known
    (model / "promotion.json").write_text("{}")
    assert digest_model(model, without=("promotion.json",)) == known != digest_model(model)
    (model / "promotion.json").unlink()
    # Only the card is one: other files of the name may be what a tokenizer reads.
    inner = model / "1_Pooling" / CARD_FILE
    inner.write_text("text")
    assert digest_model(model) != known
    inner.unlink()
    (model / "config.json").write_text("other weights")
    assert digest_model(model) != known


def test_a_start_says_what_it_is() -> None:
    card = start_card(StaticSpec(vocabulary=9, hidden=8))
    assert "static embeddings of 8" in card
    assert "It reads all tokens of a text." in card
