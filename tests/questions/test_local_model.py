"""A model folder of `transformers` that writes: order, batches, templates and lengths."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch
from tiny_checkpoints import FAMILIES, edit, write_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from pipelines.errors import InputError
from pipelines.questions import local_model
from pipelines.questions.generator import GeneratorOptions, Reply, Request
from pipelines.questions.local_model import LocalModel

TEMPLATE = "{% for m in messages %}<s> {{ m['content'] }} </s>{% endfor %}<s>"
PROMPTS = [
    "the model reads a text",
    "ten",
    "one two three four five six",
    "words that nobody knows",
]


def write_model(folder: Path, kind: str) -> Path:
    """A language model of a few kilobytes with random weights, and a tokenizer of words."""
    torch.manual_seed(4)
    if kind == "t5":
        size = {"d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 1, "num_heads": 3}
        config = AutoConfig.for_model("t5", vocab_size=48, pad_token_id=1, eos_token_id=2, **size)
        config.decoder_start_token_id = 1
        model = AutoModelForSeq2SeqLM.from_config(config)
    else:
        config = AutoConfig.for_model(
            "llama", **FAMILIES["llama"].config, pad_token_id=1, bos_token_id=0, eos_token_id=2
        )
        model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4).add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(folder)
    write_tokenizer(folder, FAMILIES["llama"], max_length=64)
    if kind == "chat":
        edit(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    return folder


@pytest.fixture(scope="module", params=["plain", "chat", "t5"])
def folder(request, tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("writes") / request.param, request.param)


def options(folder: Path, **changed) -> GeneratorOptions:
    known = {
        "model": folder,
        "address": None,
        "secret": None,
        "requests": 4,
        "max_tokens": 6,
        "temperature": 0.0,
        "timeout": 10.0,
        "retries": 2,
    }
    return GeneratorOptions(**known | changed)


def replies(folder: Path, prompts: list[str], **changed) -> list[Reply]:
    requests = [Request(prompt, 7) for prompt in prompts]
    with closing(LocalModel(options(folder, **changed))) as model:
        found = dict(model.replies(iter(requests)))
    return [found[request] for request in requests]


def alone(folder: Path, prompt: str) -> str:
    """What the library writes after one prompt."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    is_pair = AutoConfig.from_pretrained(folder).is_encoder_decoder
    kind = AutoModelForSeq2SeqLM if is_pair else AutoModelForCausalLM
    model = kind.from_pretrained(folder).eval()
    text, special = prompt, True
    if tokenizer.chat_template:
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        special = False
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=special)
    inputs.pop("token_type_ids", None)
    made = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0]
    start = 0 if is_pair else inputs.input_ids.shape[1]
    return tokenizer.decode(made[start:], skip_special_tokens=True)


def test_replies_are_those_of_each_prompt_alone_whatever_the_batch(folder, monkeypatch):
    monkeypatch.setattr(local_model, "has_bf16", lambda device: False)
    wanted = [alone(folder, prompt) or None for prompt in PROMPTS]
    for tokens in (1, 40, 4096):
        monkeypatch.setitem(local_model._BATCH_TOKENS, "cpu", tokens)
        found = replies(folder, PROMPTS)
        assert [reply.text for reply in found] == wanted
        assert all(reply.prompt_tokens > 0 for reply in found)
        assert all(0 <= reply.reply_tokens <= 7 for reply in found)
    assert len({*wanted}) > 1, "prompts with one reply prove nothing"


def test_the_replies_of_a_batch_come_before_the_next_batch(folder, monkeypatch):
    monkeypatch.setitem(local_model._BATCH_TOKENS, "cpu", 1)
    made: list[int] = []
    generate = LocalModel._generate

    def counted(model: LocalModel, batch: list[Request]) -> list[Reply]:
        made.append(len(batch))
        return generate(model, batch)

    monkeypatch.setattr(LocalModel, "_generate", counted)
    with closing(LocalModel(options(folder))) as model:
        for number, _ in enumerate(model.replies(Request(prompt, 7) for prompt in PROMPTS), 1):
            assert made == [1] * number


def test_random_replies_follow_from_the_seed(folder):
    first = replies(folder, PROMPTS[:1], temperature=1.5)
    assert replies(folder, PROMPTS[:1], temperature=1.5) == first


def test_a_prompt_beyond_the_positions_is_no_request(tmp_path):
    folder = write_model(tmp_path / "plain", "plain")
    long, short = " ".join(["one"] * 70), "ten"
    found = replies(folder, [long, short])
    assert found[0].problem.startswith("too long: 7")
    assert found[0].tokens == 0
    assert found[1].problem in (None, "empty")


def test_replies_that_leave_no_room_for_a_prompt_are_refused(tmp_path):
    folder = write_model(tmp_path / "plain", "plain")
    with pytest.raises(InputError, match=r"^questions\.max_tokens: replies of 4,000 tokens leave"):
        LocalModel(options(folder, max_tokens=4000))


def test_a_reply_that_ends_at_the_limit_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(local_model, "has_bf16", lambda device: False)
    folder = write_model(tmp_path / "plain", "plain")
    (whole,) = replies(folder, PROMPTS[:1], max_tokens=40)
    (cut,) = replies(folder, PROMPTS[:1], max_tokens=3)
    assert cut.problem == "cut off"
    assert whole.text.startswith(cut.text)


def test_a_model_beside_others_that_does_not_fit_names_the_setting(folder, monkeypatch):
    def generate(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    with closing(LocalModel(options(folder))) as model:
        monkeypatch.setattr(model._model, "generate", generate)
        with pytest.raises(InputError, match=r"\(CUDA out of memory\)\. Give each task a GPU"):
            next(model.replies([Request(PROMPTS[0], 7)]))


def test_a_folder_that_does_not_write_is_refused(tmp_path):
    folder = write_model(tmp_path / "plain", "plain")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"^questions\.model: .* cannot be loaded \(.+\)\. Name a"):
        LocalModel(options(folder))
