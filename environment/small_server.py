"""Serves the language model of `make generator` by llama.cpp, with OpenAI's API.

    .venv-generator/bin/python environment/small_server.py --port 8000

It answers at http://127.0.0.1:8000/v1, to any name of a model and without a key, until it is ended.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

MODEL = Path(sys.prefix, "smollm2.gguf")
NAME = "smollm2"


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until a signal ends the process."""
    asked = parser().parse_args(arguments)
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = str(MODEL)
    options.model_alias = {NAME}
    options.hostnames = ["127.0.0.1"]
    options.port = asked.port
    options.api_keys = [] if asked.key is None else [asked.key]
    options.n_parallel = asked.parallel
    # Of all requests at a time together.
    options.n_ctx = asked.context * asked.parallel
    # A second thread waits for the first one most of the time, with so small a model.
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = asked.threads
    options.n_gpu_layers = 0
    options.warmup = False
    options.endpoint_metrics = options.endpoint_slots = True
    try:
        server = xllamacpp.Server(options)
    except RuntimeError:
        # The library prints the reason itself.
        sys.exit("The server did not start; see above. Name another --port if it is taken.")
    print(f"{NAME} at {server.listening_address}/v1", flush=True)
    signal.pause()


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(description="Serves SmolLM2-135M-Instruct, with OpenAI's API.")
    made.add_argument("--port", type=int, default=8000, help="8000 by default")
    made.add_argument("--parallel", type=int, default=4, help="requests at a time")
    made.add_argument("--context", type=int, default=4096, help="tokens of a prompt and its reply")
    made.add_argument("--threads", type=int, default=1, help="threads of computation")
    made.add_argument("--key", help="API key that requests need; none by default")
    return made


if __name__ == "__main__":
    main()
