"""Embeds texts by one reader, in the reader's own environment.

    python probe.py READER REQUEST RESULTS

`REQUEST` is a JSON file: a list of models, each with `model` (a name), `folder`, `prompts` (prompt
by name) and `texts` (texts by the name of their prompt, `""` for none). `RESULTS` gets a line of
JSON for each model: `vectors`, or `error`. This file imports nothing of this project, except for
the reader MLflow, whose environment is the project's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Prompts = Mapping[str, str]
Embed = Callable[[list[str], str], Any]
"""Embeds texts with the prompt of a name, `""` for none."""
Open = Callable[[str, Prompts], contextlib.AbstractContextManager[Embed]]
STARTED_SECONDS = 240.0
ERROR_LENGTH = 300


@contextlib.contextmanager
def sentence_transformers(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Open a folder by sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu")
    yield lambda texts, name: model.encode(texts, prompt_name=name or None)


@contextlib.contextmanager
def sentence_transformers_onnx(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Open a folder by sentence-transformers with ONNX Runtime."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu", backend="onnx")
    yield lambda texts, name: model.encode(texts, prompt_name=name or None)


@contextlib.contextmanager
def auto_model(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Open a folder by `transformers`, and pool as its files say."""
    from transformers import AutoModel

    with pooled(folder, prompts, AutoModel.from_pretrained(folder).eval()) as embed:
        yield embed


@contextlib.contextmanager
def ort_model(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Open a folder by optimum, which exports it to ONNX, and pool as its files say."""
    from optimum.onnxruntime import ORTModelForFeatureExtraction

    model = ORTModelForFeatureExtraction.from_pretrained(folder, export=True)
    with pooled(folder, prompts, model) as embed:
        yield embed


@contextlib.contextmanager
def pooled(folder: str, prompts: Prompts, model: Any) -> Iterator[Embed]:
    """Pool the hidden states of a transformer, as the serving guide does.

    Raises:
        ValueError: The folder has more modules than a transformer, its pooling and Normalize.
    """
    import torch
    from transformers import AutoTokenizer

    modules = json.loads(Path(folder, "modules.json").read_text())
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(f"the folder has the modules {', '.join(kinds)}")
    pooling = json.loads(Path(folder, modules[1]["path"], "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def embed(texts: list[str], name: str) -> Any:
        given = [prompts.get(name, "") + text for text in texts]
        tokens = tokenizer(given, padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad():
            states = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        if pooling["pooling_mode_mean_tokens"]:
            found = (states * mask).sum(1) / mask.sum(1)
        elif pooling["pooling_mode_cls_token"]:
            found = states[:, 0]
        elif pooling["pooling_mode_lasttoken"]:
            places = torch.arange(states.shape[1]) * tokens["attention_mask"]
            found = states[torch.arange(len(given)), places.argmax(1)]
        else:
            raise ValueError("the folder pools in another way")
        return torch.nn.functional.normalize(found) if kinds[-1] == "Normalize" else found

    yield embed


@contextlib.contextmanager
def infinity(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Open a folder by infinity's engine, which its server runs as well."""
    from infinity_emb import AsyncEmbeddingEngine, EngineArgs

    engine = AsyncEmbeddingEngine.from_args(
        EngineArgs(
            model_name_or_path=folder,
            engine="torch",
            device="cpu",
            dtype="float32",
            bettertransformer=False,
            model_warmup=False,
        )
    )

    async def run(texts: list[str]) -> Any:
        async with engine:
            return (await engine.embed(sentences=texts))[0]

    yield lambda texts, name: asyncio.run(run([prompts.get(name, "") + text for text in texts]))


@contextlib.contextmanager
def vllm(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Open a folder by vLLM's Python call."""
    # In this process, whose error is then the cause and not that a process has ended.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    model = LLM(
        model=folder,
        runner="pooling",
        dtype="float32",
        enforce_eager=True,
        gpu_memory_utilization=0.1,
        distributed_executor_backend="uni",
    )

    def embed(texts: list[str], name: str) -> Any:
        given = [prompts.get(name, "") + text for text in texts]
        cut = {"truncate_prompt_tokens": -1}
        return [found.outputs.embedding for found in model.embed(given, tokenization_kwargs=cut)]

    yield embed


@contextlib.contextmanager
def langchain(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Open a folder by LangChain."""
    from langchain_huggingface import HuggingFaceEmbeddings

    named = {}
    if prompts:
        named = {
            "encode_kwargs": {"prompt_name": "document"},
            "query_encode_kwargs": {"prompt_name": "query"},
        }
    model = HuggingFaceEmbeddings(model_name=folder, **named)

    def embed(texts: list[str], name: str) -> Any:
        if name == "query":
            return [model.embed_query(text) for text in texts]
        return model.embed_documents(texts)

    yield embed


@contextlib.contextmanager
def llama_index(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Open a folder by LlamaIndex."""
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    model = HuggingFaceEmbedding(
        model_name=folder,
        query_instruction=prompts.get("query"),
        text_instruction=prompts.get("document"),
    )

    def embed(texts: list[str], name: str) -> Any:
        if name == "query":
            return [model.get_query_embedding(text) for text in texts]
        return model.get_text_embedding_batch(texts)

    yield embed


@contextlib.contextmanager
def haystack(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Open a folder by Haystack."""
    from haystack import Document
    from haystack_integrations.components.embedders.sentence_transformers import (
        SentenceTransformersDocumentEmbedder,
        SentenceTransformersTextEmbedder,
    )

    def embed(texts: list[str], name: str) -> Any:
        prefix = prompts.get(name, "")
        if name == "query":
            queries = SentenceTransformersTextEmbedder(model=folder, prefix=prefix)
            queries.warm_up()
            return [queries.run(text=text)["embedding"] for text in texts]
        documents = SentenceTransformersDocumentEmbedder(model=folder, prefix=prefix)
        documents.warm_up()
        found = documents.run(documents=[Document(content=text) for text in texts])["documents"]
        return [document.embedding for document in found]

    yield embed


@contextlib.contextmanager
def model2vec(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Open a folder by model2vec."""
    from model2vec import StaticModel

    model = StaticModel.from_pretrained(folder)
    yield lambda texts, name: model.encode([prompts.get(name, "") + text for text in texts])


@contextlib.contextmanager
def model2vec_export(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Open an export for model2vec as its README does."""
    from model2vec import StaticModel

    model = StaticModel.from_pretrained(folder)
    # It would leave unknown words out, and cut long texts by their characters.
    model.unk_token_id = None
    model.median_token_length = 10**6
    yield lambda texts, name: model.encode([prompts.get(name, "") + text for text in texts])


@contextlib.contextmanager
def fastembed(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Open a folder with an ONNX file by fastembed, as its final embedding."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    file = onnx_file(folder)
    name = f"own/{Path(folder).name}"
    TextEmbedding.add_custom_model(
        model=name,
        pooling=PoolingType.DISABLED,
        normalization=False,
        sources=ModelSource(hf=name),
        dim=0,
        model_file=file,
        output_name="sentence_embedding",
    )
    model = TextEmbedding(name, specific_model_path=folder)
    yield lambda texts, prompt: list(
        model.embed([prompts.get(prompt, "") + text for text in texts])
    )


@contextlib.contextmanager
def onnxruntime(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Open a folder with an ONNX file by ONNX Runtime and `tokenizers`."""
    import numpy as np
    import onnxruntime as runtime
    from tokenizers import Tokenizer

    session = runtime.InferenceSession(Path(folder, onnx_file(folder)))
    wanted = {node.name for node in session.get_inputs()}
    options = json.loads(Path(folder, "tokenizer_config.json").read_text())
    tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
    if tokenizer.truncation is None:
        tokenizer.enable_truncation(options["model_max_length"])
    if tokenizer.padding is None:
        pad = options.get("pad_token") or "[PAD]"
        tokenizer.enable_padding(pad_token=pad, pad_id=tokenizer.token_to_id(pad) or 0)

    def embed(texts: list[str], name: str) -> Any:
        read = tokenizer.encode_batch([prompts.get(name, "") + text for text in texts])
        given = {
            "input_ids": np.array([one.ids for one in read], np.int64),
            "attention_mask": np.array([one.attention_mask for one in read], np.int64),
            "token_type_ids": np.array([one.type_ids for one in read], np.int64),
        }
        shown = {key: value for key, value in given.items() if key in wanted}
        return session.run(["sentence_embedding"], shown)[0]

    yield embed


def onnx_file(folder: str) -> str:
    """Return the path of a folder's ONNX file, in the folder.

    Raises:
        FileNotFoundError: It has none.
    """
    for name in ("onnx/model.onnx", "model.onnx"):
        if Path(folder, name).is_file():
            return name
    raise FileNotFoundError("the folder has no ONNX file")


@contextlib.contextmanager
def mlflow(folder: str, prompts: Prompts) -> Iterator[Embed]:
    """Log a folder as a run does, and serve it by `mlflow models serve`."""
    import mlflow as library

    from pipelines.tracking.mlflow import log_model

    with tempfile.TemporaryDirectory() as home, socket.socket() as free:
        library.set_tracking_uri(f"sqlite:///{home}/mlflow.db")
        library.create_experiment("probe", artifact_location=Path(home, "artifacts").as_uri())
        library.set_experiment("probe")
        with library.start_run() as run:
            log_model(Path(folder), 0, None)
        model = library.search_logged_models(
            filter_string=f"source_run_id = '{run.info.run_id}'", output_format="list"
        )[0]
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local"]
        command += ["--model-uri", str(model.artifact_location), "--port", str(port)]
        command += ["--workers", "1"]
        # As in an activated environment: the command starts `uvicorn` by its name.
        places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        with Path(home, "log").open("w") as log:
            server = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "PATH": places}
            )
        try:
            yield served(f"http://127.0.0.1:{port}", server, Path(home, "log"))
        finally:
            server.terminate()
            server.wait(60)


def served(address: str, server: subprocess.Popen[bytes], log: Path) -> Embed:
    """Wait for a model server of MLflow; return what asks it.

    Args:
        address: Of the server.
        server: Its process.
        log: What it has said.

    Raises:
        TimeoutError: It does not answer in time.
    """
    deadline = time.monotonic() + STARTED_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{address}/ping", timeout=5):
                break
        except (urllib.error.URLError, OSError):
            if server.poll() is not None or time.monotonic() > deadline:
                last = (log.read_text().splitlines() or [""])[-1]
                raise TimeoutError(f"the server has not started: {last}") from None
            time.sleep(0.5)

    def embed(texts: list[str], name: str) -> Any:
        body = {"inputs": texts} | ({"params": {"prompt_name": name}} if name else {})
        request = urllib.request.Request(
            f"{address}/invocations",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["predictions"]

    return embed


PROBES: Mapping[str, Open] = {
    probe.__name__: probe
    for probe in (
        sentence_transformers,
        sentence_transformers_onnx,
        auto_model,
        ort_model,
        infinity,
        vllm,
        langchain,
        llama_index,
        haystack,
        model2vec,
        model2vec_export,
        fastembed,
        onnxruntime,
        mlflow,
    )
}


def probed(probe: Open, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vectors that a reader computes of a model's texts, or its error."""
    try:
        with probe(asked["folder"], asked["prompts"]) as embed:
            found = {
                name: [[float(value) for value in vector] for vector in embed(texts, name)]
                for name, texts in asked["texts"].items()
            }
    except Exception as error:  # noqa: BLE001 - whatever a reader raises is its answer
        return {"error": said(error)}
    return {"vectors": found}


def said(error: BaseException) -> str:
    """Return the class and the first lines of an error."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:ERROR_LENGTH]


def main(arguments: Sequence[str]) -> None:
    """Probe the models of a request."""
    reader, request, results = arguments
    for asked in json.loads(Path(request).read_text()):
        found = {"model": asked["model"], **probed(PROBES[reader], asked)}
        with Path(results).open("a") as file:
            file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
