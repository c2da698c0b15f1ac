"""Replies of `generator: vllm`, in a process of an environment that has vLLM and not this package.

    PYTHON vllm_replies.py SITE_PACKAGES < options and prompts > replies, as JSON

``SITE_PACKAGES`` are those of the tests. They come last: vLLM has other releases of what both need.
"""

from __future__ import annotations

import json
import os
import site
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path


def main() -> None:
    """Ask about all prompts in each of some rounds, and write all replies."""
    site.addsitedir(sys.argv[1])
    asked = json.load(sys.stdin)
    # The library writes to standard output too.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from pipelines.errors import InputError
    from pipelines.questions.generator import GeneratorOptions, Request
    from pipelines.questions.vllm import VllmModel

    rounds = []
    for options in asked["rounds"]:
        opening = GeneratorOptions(**options | {"model": Path(options["model"])})
        try:
            with closing(VllmModel(opening)) as model:
                requests = [Request(prompt, seed) for prompt, seed in asked["requests"]]
                found = dict(model.replies(requests))
                rounds.append([asdict(found[request]) for request in requests])
        except InputError as error:
            rounds.append(str(error))
    json.dump(rounds, told)
    told.flush()


if __name__ == "__main__":
    main()
