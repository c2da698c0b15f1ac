"""What a model folder is known by, in this release and in earlier ones."""

import re
import subprocess
from pathlib import Path

import pytest
from run_factory import write_model

from pipelines.files import storage
from pipelines.models.folder import start_card
from pipelines.models.identity import (
    CARD_FILE,
    LEFT_OUT,
    digest_in_earlier_tables,
    has_made,
    is_digest_of,
    model_digest,
    recorded_digest,
)
from pipelines.models.static.architecture import StaticSpec
from pipelines.tokens.vocabulary import learn_wordpieces, save_wordpieces

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "serving.md"


@pytest.fixture
def model(tmp_path) -> Path:
    folder = write_model(tmp_path / "model", "{}")
    save_wordpieces(folder, learn_wordpieces({"word": 3}, 60), 64, lowercase=True)
    return folder


def test_files_beside_a_model_change_nothing_and_every_other_file_does(model) -> None:
    known = model_digest(model)
    assert len(known) == 64
    for name in (*LEFT_OUT, ".gitattributes", ".cache/file"):
        (model / name).parent.mkdir(exist_ok=True)
        for text in ("a", "the other"):
            (model / name).write_text(text)
            assert model_digest(model) == known
    # Only the card is one: other files of the name may be what a tokenizer reads.
    for name in ("1_Pooling/README.md", "onnx.bin", "modeling.py"):
        (model / name).write_text("text")
        assert model_digest(model) != known
        (model / name).unlink()
    assert model_digest(model) == known
    (model / "config.json").write_text("[]")
    assert model_digest(model) != known


def test_a_link_to_a_folder_above_is_not_followed_round(model) -> None:
    known = model_digest(model)
    (model / "self").symlink_to(".")
    (model / "1_Pooling").mkdir(exist_ok=True)
    (model / "1_Pooling" / "up").symlink_to("..")
    assert model_digest(model) == known


@pytest.mark.slow
def test_a_shell_finds_the_same(model, tmp_path) -> None:
    (command,) = re.findall(r"```bash\n(find .*?)```", PAGE.read_text(), re.DOTALL)
    for name in (
        "README.md",
        ".hidden",
        "Ä b.txt",
        "1_Pooling/.hidden",
        "0.txt",
        "Z",
        "-n",
        "a-b",
        "a/b",
    ):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(name)
    # As in the cache of a hub, whose folders hold links, and where a module is a link itself.
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in model.iterdir():
        (linked / path.name).symlink_to(path)
    for folder in (model, linked):
        found = subprocess.check_output(command, shell=True, cwd=folder, timeout=60)
        assert found.decode() == f"{model_digest(folder)}  -\n"
    assert model_digest(linked) == model_digest(model)


def test_records_of_earlier_releases_are_known(model) -> None:
    with_card = storage.digest_folder(model)
    (model / CARD_FILE).write_text("a card")
    before = storage.digest_folder(model, without=(CARD_FILE,))
    table = digest_in_earlier_tables(model)
    (model / "promotion.json").write_text("{}")
    (model / "observations.parquet").write_text("")
    table_of_version = digest_in_earlier_tables(model)
    for digest in (before, model_digest(model)):
        assert is_digest_of(digest, model)
    for digest in (table, table_of_version, model_digest(model)):
        assert has_made(digest, model)
    assert table != table_of_version
    (model / CARD_FILE).unlink()
    assert is_digest_of(with_card, model)
    (model / "config.json").write_text("[]")
    for digest in (before, with_card, table, None):
        assert not is_digest_of(digest, model)
    for digest in (table, table_of_version):
        assert not has_made(digest, model)


def test_a_table_that_no_tokenizer_made_is_of_another_model(model) -> None:
    (model / "tokenizer.json").write_text("{}")
    assert not has_made("0" * 64, model)
    assert has_made(model_digest(model), model)


def test_the_digest_in_a_record() -> None:
    assert recorded_digest({"model_digest": "new", "model": "old"}) == "new"
    assert recorded_digest({"model": "old"}) == recorded_digest({"digest": "old"}) == "old"
    assert recorded_digest({"model": None}) is recorded_digest({}) is None


def test_a_start_says_what_it_is() -> None:
    card = start_card(StaticSpec(vocabulary=9, hidden=8))
    assert "static embeddings of 8" in card
    assert "It reads all tokens of a text." in card
