"""A model folder in vLLM: the library itself, in the environment of `make compatibility`."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from small_server import CONTEXT, FOLDER, KEY, MODEL, NEEDS_MODEL, ROOT, SmallServer
from transformers import AutoTokenizer

from pipelines.errors import InputError
from pipelines.questions.endpoint import Endpoint
from pipelines.questions.generator import GeneratorOptions, Reply, Request

PYTHON = ROOT / "build/compatibility/environments/vllm/bin/python"
SCRIPT = ROOT / "tests/support/vllm_replies.py"
SERVER = (
    *(str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(FOLDER)),
    *("--served-model-name", MODEL, "--api-key", KEY, "--max-model-len", str(CONTEXT)),
    *("--enforce-eager", "--kv-cache-memory-bytes", str(1 << 29), "--host", "127.0.0.1"),
)
SECONDS = 500.0
QUESTION = "What is the capital of France?"
NEEDS_VLLM = pytest.mark.skipif(
    not PYTHON.is_file(), reason='there is no vLLM: make compatibility ARGS="--reader vLLM"'
)


def rounds(folder: Path, asked: list[tuple[str, int]], *changes: dict[str, Any]) -> list[Any]:
    """The replies of each round, with changed options, or the error; all in one process."""
    known = {
        "model": str(folder),
        "address": None,
        "secret": None,
        "requests": 4,
        "max_tokens": 24,
        "temperature": 0.0,
        "timeout": 10.0,
        "retries": 0,
    }
    given = {"rounds": [known | change for change in changes], "requests": asked}
    command = [str(PYTHON), str(SCRIPT), sysconfig.get_path("purelib")]
    done = subprocess.run(
        command,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[Any] = json.loads(done.stdout)
    return found


# They take minutes: vLLM starts slowly on a CPU.
pytestmark = [pytest.mark.matrix, NEEDS_MODEL, NEEDS_VLLM]


def test_replies_of_vllm(tmp_path):
    asked = [(QUESTION, 1), (QUESTION, 1), (QUESTION, 2), ("word " * 8200, 3), ("Bees?", 4)]
    changes = [{"temperature": 0.9}, {"max_tokens": 8192}, {}, {"model": str(tmp_path)}]
    sampled, endless, greedy, wrong = rounds(FOLDER, asked, *changes)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    for replies in (sampled, greedy):
        problems = [reply["problem"] for reply in replies]
        assert problems[3].startswith("too long: 82")
        assert {*problems[:3], *problems[4:]} <= {None, "cut off"}
        for (prompt, _), reply in zip(asked, replies, strict=True):
            if reply["text"] is not None:
                message = [{"role": "user", "content": prompt}]
                ids = tokenizer.apply_chat_template(
                    message, add_generation_prompt=True, return_dict=False
                )
                assert reply["prompt_tokens"] == len(ids)
                assert 1 <= reply["reply_tokens"] <= 24
    # Each reply follows from its own seed.
    assert sampled[0] == sampled[1] != sampled[2]
    assert greedy[0] == greedy[1] == greedy[2]
    assert "Paris" in greedy[0]["text"]
    assert endless.startswith("questions.max_tokens: replies of 8,192 tokens leave no room")
    assert wrong.startswith(f"questions.model: {tmp_path} cannot be loaded (")
    assert "\n" not in wrong


def test_the_endpoint_with_the_server_of_vllm(tmp_path):
    server = SmallServer(tmp_path / "log", SERVER)

    def replies(prompts: list[str], model: str = MODEL) -> list[Reply]:
        options = GeneratorOptions(
            model=model,
            address=server.address,
            secret=KEY,
            requests=4,
            max_tokens=16,
            temperature=0.0,
            timeout=60.0,
            retries=1,
        )
        with closing(Endpoint(options)) as endpoint:
            requests = [Request(prompt, 7) for prompt in prompts]
            found = dict(endpoint.replies(requests))
        return [found[request] for request in requests]

    try:
        server.start()
        paris, long, *others = replies([QUESTION, "word " * CONTEXT, *["Bees?"] * 6])
        assert "Paris" in paris.text
        assert long.problem.startswith("refused: Error code: 400 - This model's maximum context")
        assert {reply.prompt_tokens for reply in others} == {33}
        with pytest.raises(
            InputError, match=r"^questions\.model: http.* does not know `no-such"
        ) as no:
            replies([QUESTION], "no-such-model")
        assert "The model `no-such-model` does not exist" in str(no.value)
    finally:
        server.kill()
