"""Replies by a model folder of `transformers`, in batches, on a GPU where the task has one.

Chat models get the prompt in their own template. Encoder-decoder models, such as T5 trained to ask
questions (doc2query), get it as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from pipelines.errors import InputError
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location
from pipelines.models.frameworks.torch import has_bf16
from pipelines.questions.generator import (
    WITHOUT_THOUGHTS,
    GeneratorOptions,
    Reply,
    Request,
    longest_prompt,
)
from pipelines.training.devices import worker_device

MODEL = "questions.model"
_BATCH_TOKENS = {"cpu": 8192, "cuda": 65_536}
"""Tokens of a batch, prompts and replies, by kind of device."""
_READ_AHEAD = 64
"""Requests sorted by length before they are cut into batches."""


class LocalModel:
    """A causal or encoder-decoder model; see :class:`~pipelines.questions.generator.Generator`."""

    def __init__(self, options: GeneratorOptions) -> None:
        torch.set_num_threads(options.threads)
        assert not isinstance(options.model, str), "the job names a folder"
        folder = local_folder(options.model)
        self._options = options
        self._device = worker_device()
        self._tokenizer, self._model = _loaded(options.model, str(folder))
        kind = torch.bfloat16 if has_bf16(self._device) else torch.float32
        with _memory_told(options.model):
            self._model.to(self._device, kind).eval()
        self._reads_apart = bool(self._model.config.is_encoder_decoder)
        self._longest = self._longest_prompt()
        ends = self._model.generation_config.eos_token_id
        # Shorter texts of a batch are padded behind their end.
        self._ends = {self._tokenizer.pad_token_id, *(ends if isinstance(ends, list) else [ends])}

    def replies(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        """Generate batch by batch; see the interface."""
        unread = iter(requests)
        while group := list(islice(unread, _READ_AHEAD)):
            lengths, longest = self._lengths(group), self._longest
            fitting = []
            for number, length in enumerate(lengths):
                if longest is not None and length > longest:
                    problem = f"too long: {length} of {longest} tokens"
                    yield group[number], Reply(None, 0, 0, problem)
                else:
                    fitting.append(number)
            for numbers in self._batches(fitting, lengths):
                batch = [group[number] for number in numbers]
                with _memory_told(self._options.model):
                    found = self._generate(batch)
                yield from zip(batch, found, strict=True)

    def close(self) -> None:
        """Free the memory of the model."""
        del self._model

    def _batches(self, numbers: list[int], lengths: list[int]) -> Iterator[list[int]]:
        """Yield the places of requests of similar length, as many as fit into a batch."""
        order = sorted(numbers, key=lambda number: -lengths[number])
        most = _BATCH_TOKENS[self._device.type]
        while order:
            size = max(1, most // (lengths[order[0]] + self._options.max_tokens))
            yield order[:size]
            del order[:size]

    def _lengths(self, group: list[Request]) -> list[int]:
        """Return the tokens of prompts."""
        texts = [self._text(request) for request in group]
        encoded = self._tokenizer(texts, add_special_tokens=not self._is_chat)
        return [len(ids) for ids in encoded.input_ids]

    @property
    def _is_chat(self) -> bool:
        """Whether prompts get a template, which begins with its own special tokens."""
        return not self._reads_apart and bool(self._tokenizer.chat_template)

    def _text(self, request: Request) -> str:
        if not self._is_chat:
            return request.prompt
        message = [{"role": "user", "content": request.prompt}]
        return str(
            self._tokenizer.apply_chat_template(
                message, tokenize=False, add_generation_prompt=True, **WITHOUT_THOUGHTS
            )
        )

    @torch.inference_mode()  # type: ignore[untyped-decorator] # as torch has it
    def _generate(self, batch: list[Request]) -> list[Reply]:
        options, tokenizer = self._options, self._tokenizer
        inputs = tokenizer(
            [self._text(request) for request in batch],
            return_tensors="pt",
            padding=True,
            add_special_tokens=not self._is_chat,
        ).to(self._device)
        torch.manual_seed(batch[0].seed)
        temperature = options.temperature
        sampling: dict[str, Any] = {
            "do_sample": False,
            "temperature": None,
            "top_p": None,
            "top_k": None,
        }
        if temperature is None:
            sampling = {}
        elif temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature}
        made = self._model.generate(
            **inputs,
            max_new_tokens=options.max_tokens,
            pad_token_id=tokenizer.pad_token_id,
            **sampling,
        )
        start = 0 if self._reads_apart else inputs.input_ids.shape[1]
        texts = tokenizer.batch_decode(made[:, start:], skip_special_tokens=True)
        read = inputs.attention_mask.sum(1).tolist()
        written = (made[:, start:] != tokenizer.pad_token_id).sum(1).tolist()
        cut = (last not in self._ends for last in made[:, -1].tolist())
        return [
            Reply.of(text, int(prompt), int(reply), is_cut=is_cut)
            for text, prompt, reply, is_cut in zip(texts, read, written, cut, strict=True)
        ]

    def _longest_prompt(self) -> int | None:
        """Return the most tokens of a prompt, None if the model does not say.

        Raises:
            InputError: Replies leave no room for a prompt.
        """
        positions = getattr(self._model.config, "max_position_embeddings", None)
        if positions is None:
            return None
        return int(positions) if self._reads_apart else longest_prompt(positions, self._options)


@contextmanager
def _memory_told(named: str | Location) -> Iterator[None]:
    """Name the setting where the memory of a GPU is too small for a model.

    Raises:
        InputError: Several tasks have loaded it, or it is too large.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).partition(".")[0]
        raise InputError(
            MODEL,
            f"{named} does not fit into memory beside the other tasks ({reason})",
            "Give each task a GPU of its own (spark.task.resource.gpu.amount=1), or all cores "
            "(spark.task.cpus)",
        ) from None


def _loaded(named: Location, folder: str) -> tuple[PreTrainedTokenizerBase, Any]:
    """Load tokenizer and model of a folder.

    Raises:
        InputError: It holds no model that generates text.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, padding_side="left"
        )
        model = kind.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            MODEL, f"{named} cannot be loaded ({reason})", "Name a folder of a model that writes"
        ) from None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, model
