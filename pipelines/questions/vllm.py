"""Replies by a model folder in vLLM without a server, for GPUs that Spark gives to the tasks.

Source: https://docs.vllm.ai/en/latest/serving/offline_inference. vLLM batches requests itself. Each
has the seed of its own reply.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

_VARIABLES = {
    # A process of its own would hide the cause of an error, and could outlive a killed task.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # vLLM would report its use over the network.
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
# vLLM reads some of them only when it is imported.
for _name, _value in _VARIABLES.items():
    os.environ.setdefault(_name, _value)

from vllm import LLM, SamplingParams  # noqa: E402
from vllm.distributed import cleanup_dist_env_and_memory  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

from pipelines.errors import InputError  # noqa: E402
from pipelines.files.copies import local_folder  # noqa: E402
from pipelines.files.locations import Location  # noqa: E402
from pipelines.questions.generator import (  # noqa: E402
    WITHOUT_THOUGHTS,
    GeneratorOptions,
    Reply,
    Request,
    longest_prompt,
)
from pipelines.training.devices import gpus_given_by_spark, show_one_gpu  # noqa: E402

MODEL = "questions.model"
_OF_A_CPU: dict[str, Any] = {"enforce_eager": True, "kv_cache_memory_bytes": 1 << 30}
"""Options on a CPU: compiling takes a minute, and vLLM would reserve most of the memory."""
_READ_AHEAD = 256
"""Requests given to vLLM at once."""


class VllmModel:
    """A causal model; see :class:`~pipelines.questions.generator.Generator`."""

    def __init__(self, options: GeneratorOptions) -> None:
        assert not isinstance(options.model, str), "the job names a folder"
        self._options = options
        for given in gpus_given_by_spark()[:1]:
            show_one_gpu(given)
        self._model = _loaded(options.model, str(local_folder(options.model)))
        self._tokenizer: Any = self._model.get_tokenizer()
        self._is_chat = bool(self._tokenizer.chat_template)
        try:
            self._longest = longest_prompt(self._model.model_config.max_model_len, options)
        except InputError:
            self.close()
            raise

    def replies(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        """Generate group by group; see the interface."""
        asked, longest = iter(requests), self._longest
        while group := list(islice(asked, _READ_AHEAD)):
            prompts = [self._tokens(request) for request in group]
            fitting = [place for place, ids in enumerate(prompts) if len(ids) <= longest]
            made = self._model.generate(
                [{"prompt_token_ids": prompts[place]} for place in fitting],
                [self._sampling(group[place]) for place in fitting],
                use_tqdm=False,
            )
            found = dict(zip(fitting, map(_reply, made), strict=True))
            for place, ids in enumerate(prompts):
                problem = f"too long: {len(ids)} of {longest} tokens"
                yield group[place], found.get(place) or Reply(None, 0, 0, problem)

    def close(self) -> None:
        """Free the memory of the model, which the next task of this process needs."""
        del self._model
        cleanup_dist_env_and_memory()

    def _tokens(self, request: Request) -> list[int]:
        """Return a prompt as tokens; chat models get it in their own template."""
        text = request.prompt
        if self._is_chat:
            message = [{"role": "user", "content": text}]
            text = self._tokenizer.apply_chat_template(
                message, tokenize=False, add_generation_prompt=True, **WITHOUT_THOUGHTS
            )
        return list(self._tokenizer(text, add_special_tokens=not self._is_chat).input_ids)

    def _sampling(self, request: Request) -> SamplingParams:
        """Return the model's own sampling, with the settings in place of its values."""
        sampling = self._model.get_default_sampling_params()
        sampling.seed, sampling.max_tokens = request.seed, self._options.max_tokens
        if self._options.temperature is not None:
            sampling.temperature = self._options.temperature
        return sampling


def _reply(made: Any) -> Reply:
    """Return the reply of an output of vLLM."""
    (written,) = made.outputs
    read, tokens = len(made.prompt_token_ids), len(written.token_ids)
    return Reply.of(written.text, read, tokens, is_cut=written.finish_reason == "length")


def _loaded(named: Location, folder: str) -> LLM:
    """Load a folder.

    Raises:
        InputError: It holds no model that vLLM generates text with, or the memory is too small.
    """
    options = _OF_A_CPU if current_platform.is_cpu() else {}
    try:
        # As long as memory allows: a context of 128,000 tokens would not fit on many GPUs.
        return LLM(folder, max_model_len=-1, distributed_executor_backend="uni", **options)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            MODEL,
            f"{named} cannot be loaded ({reason})",
            "Name a folder of a model that vLLM writes with, and give each task a GPU of its own",
        ) from None
