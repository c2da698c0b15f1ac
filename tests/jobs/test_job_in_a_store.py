"""The main job with all of its folders in an object store, from texts to the model in service."""

from __future__ import annotations

import json
import threading
from itertools import count
from pathlib import Path

import pytest
from corpus_factory import only_retrieval, small_config, write_docstrings
from object_stores import Bucket
from store_proxies import BUSY, EXPIRED, PASS, SLOW, store_proxy

import pipelines
from pipelines.errors import PipelineError
from pipelines.files.locations import RemotePath
from pipelines.files.run_folder import RunFolder
from pipelines.files.storage import read_json
from pipelines.files.versions import POINTER, put_file
from pipelines.models.identity import CARD_FILE
from pipelines.promotion import current
from pipelines.runs.checkpoint import checkpoint_steps
from pipelines.settings import Config

pytestmark = pytest.mark.matrix

STEPS = 4


def job_in(bucket: Bucket, tmp_path: Path) -> Config:
    """Four steps of the local engine, with texts that are put there."""
    write_docstrings(tmp_path / "docstrings.jsonl")
    put_file(tmp_path / "docstrings.jsonl", bucket.root / "docstrings.jsonl")
    training = {"engine": "local", "framework": "torch", "workers": 1, "max_steps": STEPS}
    config = only_retrieval(small_config(tmp_path, **training))
    places = {
        "corpus": {"inputs": (f"{bucket.address}/docstrings.jsonl",)},
        "prepared": {"folder": f"{bucket.address}/prepared"},
        "run": {"folder": f"{bucket.address}/run"},
        "promotion": {"target": f"{bucket.address}/served"},
    }
    stores = bucket.options.model_copy(update={"cache_folder": str(tmp_path / "cache")})
    for section, place in places.items():
        config = config.changed(section, **place)
    return config.model_copy(update={"storage": stores})


def leftovers(root: RemotePath) -> list[str]:
    """Versions of folders that none of their pointers names, locks, and trials."""
    names = [name for name, status in root.entries() if status is not None]
    pointers = [name for name in names if name.endswith(f"/{POINTER}")]
    known = {
        f"{name.removesuffix(POINTER)}{version}/"
        for name in pointers
        for version in json.loads((root / name).read_text())
    }
    places = tuple(name.removesuffix(POINTER) for name in pointers)
    left = [
        name
        for name in names
        if name.startswith(places) and name not in pointers and not name.startswith(tuple(known))
    ]
    return left + [name for name in names if ".lock" in name or ".probe" in name]


@pytest.mark.usefixtures("spark")
def test_the_whole_job(any_bucket, tmp_path):
    config = job_in(any_bucket, tmp_path)
    pipelines.prepare(config)
    pipelines.train(config)
    pipelines.evaluate(config)
    promotion = pipelines.promote(config)
    folder = RunFolder.of(config)
    assert read_json(folder.metrics)["training"]["steps"] == STEPS
    served = current(config.promotion.target, config.storage)
    assert served.is_relative_to(tmp_path / "cache")
    assert (served / "modules.json").is_file()
    card = (served / CARD_FILE).read_text()
    assert "model-index:" in card, "the card of before the evaluation"
    assert 'SentenceTransformer(".")' in card
    assert promotion.version.name == "00001"
    assert leftovers(any_bucket.root) == []


@pytest.mark.usefixtures("spark")
def test_the_whole_job_while_the_store_is_busy_and_credentials_end(s3_bucket, tmp_path):
    turns, turn = count(), threading.Lock()
    ended = threading.Event()

    def now_and_then(_method: str, _path: str) -> str:
        with turn:
            return {0: BUSY, 3: SLOW, 5: SLOW}.get(next(turns) % 9, PASS)

    def until_a_checkpoint(method: str, path: str) -> str:
        if method == "PUT" and f"/checkpoints/step-{STEPS // 2:08d}" in path:
            ended.set()
        return EXPIRED if ended.is_set() else PASS

    with store_proxy(s3_bucket.options.s3_endpoint) as traffic:
        changed = {"s3_endpoint": traffic.endpoint, "retry_seconds": 120.0}
        bucket = Bucket(s3_bucket.address, s3_bucket.options.model_copy(update=changed))
        config = job_in(bucket, tmp_path)
        config = config.changed("training", checkpoint_every=STEPS // 2)
        traffic.decide = now_and_then
        pipelines.prepare(config)
        traffic.decide = until_a_checkpoint
        with pytest.raises(PipelineError) as ending:
            pipelines.train(config)
        said = str(ending.value)
        assert "\n" not in said
        assert "; renew the store's credentials, or let them read and write there" in said
        # As another shell with new ones does.
        traffic.decide = now_and_then
        assert checkpoint_steps(RunFolder.of(config).path) == [0]
        config = config.changed("training", resume=True)
        pipelines.train(config)
        pipelines.evaluate(config)
        assert pipelines.promote(config).version.name == "00001"
        assert traffic.struck > 9
        assert (current(config.promotion.target, config.storage) / "modules.json").is_file()
