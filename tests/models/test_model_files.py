"""The files beside the weights: keys give the vectors of sentence-transformers, or are refused."""

import json
import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tiny_checkpoints import FAMILIES, edit, write_sentence_folder
from tokenizers import Tokenizer, models, normalizers
from transformers import XLMRobertaTokenizer

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.models.folder import check_start, read_encoder, start_encoder, write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.weights import load_weights, save_weights
from pipelines.settings.load import parse
from pipelines.tokens.model_files import applied, check_word_pieces
from pipelines.tokens.vocabulary import changed_tokenizer, copy_tokenizer
from pipelines.vectors.embedding import embedding_options

LONG = "the arguments of a function " * 20
TEXTS = ["The Argument IS a List", "café ÉCOLE naïve", "漢字 in a text", "[MASK] [SEP] x", LONG]
LENGTH, TOKENIZER = "sentence_bert_config.json", "tokenizer_config.json"
PROMPTS, POOLING = "config_sentence_transformers.json", "1_Pooling/config.json"


@pytest.fixture
def folder(small_folder, tmp_path):
    """A copy that a test may change, of other vectors for other places and words."""
    copy = shutil.copytree(small_folder, tmp_path / "copy")
    path = copy / "model.safetensors"
    save_weights(path, {name: 20 * value for name, value in load_weights(path).items()})
    return copy


def cosines(found, expected):
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return (found * expected).sum(axis=1) / lengths


def keep_letters(folder, *, accents=False):
    """Makes the tokenizer one that keeps upper case, in both of its files."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["normalizer"].update(lowercase=False, strip_accents=accents)
    storage.write_json(folder / "tokenizer.json", tokenizer)
    edit(folder / TOKENIZER, do_lower_case=False, strip_accents=accents)


def lower_by_transformer(folder):
    keep_letters(folder)
    edit(folder / LENGTH, do_lower_case=True)


def lower_by_transformer_alone(folder):
    keep_letters(folder, accents=None)
    edit(folder / LENGTH, do_lower_case=True)
    edit(folder / TOKENIZER, tokenizer_class="PreTrainedTokenizerFast")


def use_older_name(folder):
    edit(folder / LENGTH, max_seq_length=9)
    (folder / LENGTH).rename(folder / "sentence_xlm-roberta_config.json")


def use_older_folder(folder):
    home = folder / "0_Transformer"
    home.mkdir()
    for file in [file for file in folder.iterdir() if file.is_file()]:
        if file.name != "modules.json":
            file.rename(home / file.name)
    modules = storage.read_json(folder / "modules.json")
    modules[0]["path"] = home.name
    storage.write_json(folder / "modules.json", modules)


def forget_mask(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = tokenizer["added_tokens"]
    tokenizer["added_tokens"] = [token for token in tokens if token["content"] != "[MASK]"]
    storage.write_json(folder / "tokenizer.json", tokenizer)


def keep_vocabulary_alone(folder):
    (folder / "tokenizer.json").unlink()
    edit(folder / TOKENIZER, strip_accents=False)


def name_a_word(folder):
    words = storage.read_json(folder / "tokenizer.json")["model"]["vocab"]
    edit(folder / "added_tokens.json", list=words["list"])


def list_tokens(folder):
    """Lists all tokens in the newer file, and one that tokenizer.json does not find in texts."""
    tokenizer = storage.read_json(folder / "tokenizer.json")
    tokens = {str(token.pop("id")): token for token in tokenizer["added_tokens"]}
    plain = {**next(iter(tokens.values())), "content": "list", "special": False}
    tokens[str(tokenizer["model"]["vocab"]["list"])] = plain
    edit(folder / TOKENIZER, added_tokens_decoder=tokens)
    # Which is read in its place.
    edit(folder / "added_tokens.json", elsewhere=900)


def setting(name, **changes):
    def change(folder):
        edit(folder / name, **changes)

    return change


HONOURED = {
    "do_lower_case": lower_by_transformer,
    "do_lower_case without a class": lower_by_transformer_alone,
    "do_lower_case: false of the tokenizer": setting(TOKENIZER, do_lower_case=False),
    "strip_accents": setting(TOKENIZER, strip_accents=False),
    "tokenize_chinese_chars": setting(TOKENIZER, tokenize_chinese_chars=False),
    "a class that takes tokenizer.json as it is": setting(
        TOKENIZER, do_lower_case=False, tokenizer_class="PreTrainedTokenizerFast"
    ),
    "tokenizer_args": setting(LENGTH, tokenizer_args={"do_lower_case": False}),
    "processor_kwargs": setting(
        LENGTH, processor_kwargs={"strip_accents": False, "model_max_length": 8}
    ),
    "model_args": setting(LENGTH, model_args={"attn_implementation": "eager"}),
    "max_seq_length": setting(LENGTH, max_seq_length=7),
    "an older name": use_older_name,
    "0_Transformer": use_older_folder,
    "defaults of release 6": setting(
        LENGTH,
        transformer_task="feature-extraction",
        modality_config={"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        module_output_name="token_embeddings",
        query_length=None,
        query_expansion=None,
    ),
    "default_prompt_name": setting(PROMPTS, prompts={"a": "A list: "}, default_prompt_name="a"),
    "a mask that one file names": forget_mask,
    "a word that another file names": name_a_word,
    "a list of tokens with one more": list_tokens,
    "vocab.txt": keep_vocabulary_alone,
    "defaults that no release acts on": setting(
        TOKENIZER, clean_text=True, wordpieces_prefix="##", extra_special_tokens={}
    ),
    "add_pooling_layer": setting(LENGTH, model_kwargs={"add_pooling_layer": False}),
    "auto_map": setting(TOKENIZER, auto_map={"AutoTokenizer": ["code.Slow", "code.Fast"]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", HONOURED.values(), ids=HONOURED)
def test_vectors_are_those_of_the_library_and_stay_so(folder, tmp_path, change):
    change(folder)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert cosines(load_embedder(folder)(TEXTS), expected).min() > 0.9999
    # As a training writes it that changes no weight.
    spec, weights = read_encoder(folder)
    (tmp_path / "tokenizer").mkdir()
    copy_tokenizer(folder, tmp_path / "tokenizer", spec.max_length)
    write_encoder(tmp_path / "out", spec, weights, tmp_path / "tokenizer", "")
    assert "auto_map" not in (tmp_path / "out" / TOKENIZER).read_text(encoding="utf-8")
    assert cosines(load_embedder(tmp_path / "out")(TEXTS), expected).min() > 0.9999
    written = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS)
    assert cosines(written, expected).min() > 0.9999


def test_a_model_whose_tokenizer_other_files_change_is_another_model(folder):
    assert changed_tokenizer(folder) is None
    before = embedding_options(str(folder)).model_sha256
    lower_by_transformer(folder)
    assert '"lowercase":true' in changed_tokenizer(folder)
    after = embedding_options(str(folder)).model_sha256
    assert after not in (before, "")


def test_the_changes_matter(folder):
    before = load_embedder(folder)(TEXTS)
    edit(folder / TOKENIZER, do_lower_case=False, strip_accents=False)
    assert cosines(load_embedder(folder)(TEXTS), before)[:2].max() < 0.99


def swap_words(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    words["the"], words["of"] = words["of"], words["the"]
    storage.write_json(folder / "tokenizer.json", tokenizer)


def cut_on_the_left(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    cut = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    storage.write_json(folder / "tokenizer.json", {**tokenizer, "truncation": cut})


def hand_over(folder):
    modules = storage.read_json(folder / "modules.json")
    modules[0]["kwargs"] = ["task"]
    storage.write_json(folder / "modules.json", modules)


def name_another_package(folder):
    modules = storage.read_json(folder / "modules.json")
    modules[0] |= {"type": "custom.Transformer", "kwargs": ["task"]}
    storage.write_json(folder / "modules.json", modules)


def bring_code(folder):
    name_another_package(folder)
    (folder / "custom.py").write_text("raise SystemExit('ran')\n", encoding="utf-8")


def in_messages(folder):
    """As sentence-transformers saves a decoder with a chat template."""
    forward = {"method": "forward", "method_output_name": "last_hidden_state"}
    ways = {"text": forward, "message": {**forward, "format": "flat"}}
    edit(folder / LENGTH, modality_config=ways, module_output_name="token_embeddings")


REFUSED = [
    (setting(LENGTH, query_length=8), "query_length"),
    (setting(LENGTH, document_length=8), "document_length"),
    (setting(LENGTH, query_expansion={"strategy": "fixed", "length": 8}), "query_expansion"),
    (setting(LENGTH, processing_kwargs={"text": {"max_length": 4}}), "processing_kwargs"),
    (setting(LENGTH, modality_config={"message": {"method": "forward"}}), "modality_config"),
    (setting(LENGTH, transformer_task="fill-mask"), "transformer_task"),
    (setting(LENGTH, config_args={"hidden_act": "relu"}), "config_args"),
    (setting(LENGTH, model_args={"attn_implementation": "org/kernel"}), "model_args"),
    (setting(LENGTH, max_seq_length=-5), "max_seq_length"),
    (setting(LENGTH, max_seq_length="16"), "max_seq_length"),
    (setting(LENGTH, some_key=1), "the unknown key `some_key`"),
    (setting("sentence_roberta_config.json", some_key=1), None),
    (setting(PROMPTS, truncate_dim=16), "truncate_dim"),
    (setting(PROMPTS, model_type="CrossEncoder"), "model_type"),
    (setting(PROMPTS, some_key=1), "some_key"),
    (setting(POOLING, some_key=1), "some_key"),
    (hand_over, "kwargs"),
    (in_messages, "`modality_config` to a mapping of text, message"),
    (name_another_package, "custom.Transformer, a module of custom, whose code is never run"),
    (bring_code, "custom.Transformer, a module of custom, whose code is never run"),
    (setting("adapter_config.json", peft_type="LORA"), "adapter_config.json"),
    (setting("config.json", attn_implementation="org/kernel"), "attn_implementation: org/kernel"),
    (setting("config.json", pad_token_id=10**9), "pad_token_id"),
    (setting("config.json", pruned_heads={"0": [1]}), "pruned_heads"),
    (setting("config.json", quantization_config={"bits": 8}), "quantization_config"),
    (setting("config.json", _attn_implementation="org/kernel"), "org/kernel"),
    (setting(TOKENIZER, truncation_side="left"), "truncation_side"),
    (setting(TOKENIZER, split_special_tokens=True), "split_special_tokens"),
    (setting(TOKENIZER, never_split=["list"]), "never_split"),
    (setting(TOKENIZER, word_tokenizer_type="mecab"), "word_tokenizer_type"),
    (setting(TOKENIZER, tokenizer_class="RobertaTokenizer"), "RobertaTokenizer makes other"),
    (setting(TOKENIZER, pad_token="<pad>"), "no token <pad>"),
    (setting(TOKENIZER, additional_special_tokens=["[NEW]"]), r"no token \[NEW\]"),
    (setting("added_tokens.json", **{"ferry-pier": 600}), "a tokenizer of 601 tokens"),
    (setting("added_tokens.json", **{"ferry-pier": 700}), "added token ferry-pier"),
    (
        setting(TOKENIZER, added_tokens_decoder={"700": {"content": "e4712", "special": False}}),
        "added token e4712",
    ),
    (swap_words, "vocab.txt and tokenizer.json are of two tokenizers"),
    (cut_on_the_left, "truncates texts on the left"),
]


@pytest.mark.parametrize(("change", "named"), REFUSED, ids=[str(named) for _, named in REFUSED])
def test_what_would_change_vectors_is_refused_by_the_key(folder, change, named):
    change(folder)
    if named is None:
        # The library reads the first of these files that there is.
        assert embedding_options(folder).hidden == 64
        return
    with pytest.raises(InputError, match=rf"^embedding\.model: .*{named}"):
        embedding_options(folder)
    with pytest.raises(InputError, match=rf"^encoder\.start: .*{named}"):
        check_start(parse({"encoder": {"start": str(folder)}}))
    with pytest.raises(InputError, match=named):
        load_embedder(folder)


@pytest.mark.parametrize("kind", ["bert", "static"])
def test_a_tokenizer_of_more_tokens_than_rows_is_refused(folder, tmp_path, kind):
    spec, weights = read_encoder(folder)
    if kind == "static":
        config = parse({"encoder": {"start": str(folder), "keep_layers": 0}})
        spec, weights = start_encoder(config, spec.vocabulary)
    write_encoder(tmp_path / "model", spec, weights, folder, "")
    file = next((tmp_path / "model").rglob("tokenizer.json"))
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    token = {"id": spec.vocabulary, "content": "e4712", "special": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"].append({**token, **flags})
    storage.write_json(file, tokenizer)
    told = f"{spec.vocabulary} word embeddings for a tokenizer of {spec.vocabulary + 1} tokens"
    with pytest.raises(InputError, match=rf"^embedding\.model: .*{told}\. Save it again with a"):
        embedding_options(tmp_path / "model")
    with pytest.raises(InputError, match=rf"^encoder\.start: .*{told}"):
        load_embedder(tmp_path / "model")
    with pytest.raises(InputError, match=rf"^encoder\.start: .*{told}"):
        check_start(parse({"encoder": {"start": str(tmp_path / "model")}}))


@pytest.mark.parametrize("beside", [("mapping",), ("weights",), ("mapping", "weights")])
def test_rows_and_weights_of_model2vec(folder, tmp_path, beside):
    spec, _ = read_encoder(folder)
    start = parse({"encoder": {"start": str(folder), "keep_layers": 0}})
    static, weights = start_encoder(start, spec.vocabulary)
    write_encoder(tmp_path / "model", static, weights, folder, "")
    file = next((tmp_path / "model").rglob("model.safetensors"))
    draw = np.random.default_rng(3)
    arrays = {"embeddings": load_weights(file)["embedding.weight"]}
    if "mapping" in beside:
        arrays["embeddings"] = arrays["embeddings"][:100]
        arrays["mapping"] = draw.integers(0, 100, spec.vocabulary)
    if "weights" in beside:
        arrays["weights"] = draw.uniform(0.1, 2, spec.vocabulary)
    save_weights(file, arrays)
    expected = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(TEXTS)
    assert cosines(load_embedder(tmp_path / "model")(TEXTS), expected).min() > 0.9999


def test_another_similarity_is_told(folder, caplog):
    edit(folder / PROMPTS, similarity_fn_name="dot")
    load_embedder(folder)
    assert "compares embeddings by dot, but sentence-pipelines by cosine" in caplog.text


@pytest.mark.parametrize("named", ["BertTokenizer", None])
def test_sentence_pieces_of_a_bert_are_read_as_they_are(tmp_path, caplog, named):
    folder = write_sentence_folder(tmp_path / "start", FAMILIES["bert"])
    (folder / TOKENIZER).unlink()
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *"abcdefghilmnoprstuv", *"ABCDEFG", "<mask>"]
    XLMRobertaTokenizer(vocab=[(piece, -1.0) for piece in pieces]).save_pretrained(folder)
    edit(folder / LENGTH, max_seq_length=24)
    texts = ["The Model reads", "ABC abc", "<mask> A </s> b"]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    # As paraphrase-multilingual-MiniLM-L12-v2 has it, and what is trained of it.
    edit(folder / TOKENIZER, tokenizer_class=named, do_lower_case=True, strip_accents=None)
    assert cosines(load_embedder(folder)(texts), expected).min() > 0.9999
    assert "has SentencePiece tokens in tokenizer.json" in caplog.text
    spec, weights = read_encoder(folder)
    (tmp_path / "tokenizer").mkdir()
    copy_tokenizer(folder, tmp_path / "tokenizer", spec.max_length)
    write_encoder(tmp_path / "out", spec, weights, tmp_path / "tokenizer", "")
    written = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    assert cosines(written, expected).min() > 0.9999


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"do_lower_case": False}, "do_lower_case"),
        ({"keep_accents": True}, "keep_accents"),
        ({}, None),
    ],
)
def test_letters_of_a_class_that_makes_other_steps(tmp_path, options, named):
    tokenizer = Tokenizer(models.Unigram([("<unk>", -1.0), ("a", -1.0)], 0))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    options = {"tokenizer_class": "AlbertTokenizer", **options}
    if named is None:
        applied(tokenizer, tmp_path, options, "encoder.start")
        return
    with pytest.raises(InputError, match=f"`{named}` of tokenizer_config.json differs"):
        applied(tokenizer, tmp_path, options, "encoder.start")


def test_a_vocabulary_alone_is_of_bert(tmp_path):
    check_word_pieces(tmp_path, {"cls_token": {"content": "[CLS]"}, "mask_token": "x"}, "key")
    for options in ({"tokenizer_class": "MPNetTokenizer"}, {"cls_token": "<s>"}):
        with pytest.raises(InputError, match=r"Tokenizer without tokenizer\.json"):
            check_word_pieces(tmp_path, options, "key")


def test_lower_case_of_a_tokenizer_of_sentence_pieces(tmp_path):
    folder = write_sentence_folder(tmp_path / "start", FAMILIES["xlm-roberta"])
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *"abcdefghilmnoprstuv", *"ABCDEFG", "<mask>"]
    XLMRobertaTokenizer(vocab=[(piece, -1.0) for piece in pieces]).save_pretrained(folder)
    edit(folder / LENGTH, do_lower_case=True)
    texts = ["The Model reads", "ABC abc", "<mask> A </s> b"]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert cosines(load_embedder(folder)(texts), expected).min() > 0.9999
    spec, weights = read_encoder(folder)
    (tmp_path / "tokenizer").mkdir()
    copy_tokenizer(folder, tmp_path / "tokenizer", spec.max_length)
    write_encoder(tmp_path / "out", spec, weights, tmp_path / "tokenizer", "")
    written = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    assert cosines(written, expected).min() > 0.9999
    edit(folder / LENGTH, do_lower_case=False)
    assert cosines(load_embedder(folder)(texts), expected).min() < 0.999
