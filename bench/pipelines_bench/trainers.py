"""One trainer in a process of its own, which makes as many steps as it is told, when it is told.

Several of them can be measured in turn, while the others wait: each order is a number of steps on
standard input, each answer a line of JSON on standard output with what they took.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.catalog import STEPPERS
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest, ragged
from pipelines.lanes.plan import BatchPlan
from pipelines.losses.in_batch_negatives import InBatchNegativesSettings
from pipelines.models.folder import start_encoder
from pipelines.quiet import quiet_import
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.settings import Config
from pipelines.settings.load import load
from pipelines.spark.parquet_parts import read_table
from pipelines.tokens.stage import SIDES
from pipelines.tokens.start import default_start, start_folder
from pipelines.training.collectives.base import Collectives, SingleProcess
from pipelines.training.steppers.base import Stepper, StepperFactory, lane_feed

ENDLESS = 10**6


class Orders:
    """Steps that were ordered, and what they took.

    What libraries print goes to standard error, so that the answers stand alone.
    """

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._steps = self._left = 0
        self._cpu = self._wall = 0.0

    def next(self) -> bool:
        """Waits for an order; whether there is one."""
        line = sys.stdin.readline()
        if not line:
            return False
        self._steps = self._left = int(line)
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return True

    def step_done(self) -> bool:
        """Answers an order whose last step was made, and waits for the next; whether to go on."""
        self._left -= 1
        if self._left:
            return True
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        answer = {"steps": self._steps, "cpu_seconds": cpu, "seconds": wall}
        print(json.dumps(answer), file=self._answers, flush=True)
        return self.next()


def train_here(config: Config, orders: Orders) -> None:
    """This package's step of a framework, on granules read from lane files."""
    lanes = PreparedFolder.of(config).lanes.path
    task = only_worker(config, LaneManifest.load(lanes), lanes)
    stepper = _new_stepper(task)
    if orders.next():
        for work in lane_feed(task):
            stepper.step(work, config.training.learning_rate)
            if not orders.step_done():
                return


def new_stepper(
    config: Config,
    manifest: LaneManifest,
    lanes: Location,
    collectives: Collectives | None = None,
) -> Stepper:
    """This package's step of a framework, for steps of any granules.

    Args:
        config: Names the framework and the encoder.
        manifest: What the lanes hold.
        lanes: Their folder.
        collectives: With other workers; there are none unless given.
    """
    return _new_stepper(only_worker(config, manifest, lanes), collectives)


def only_worker(config: Config, manifest: LaneManifest, lanes: Location) -> WorkerTask:
    """The task of a worker that has all steps of some lanes, a granule each."""
    plan = BatchPlan(
        lanes=manifest.lanes, rows=manifest.rows, granules_per_step=1, seed=config.training.seed
    )
    run = TrainingRun(
        config=config,
        plan=plan,
        manifest=manifest,
        lanes_folder=lanes,
        run_folder=Path(),
        first_step=0,
        last_step=ENDLESS,
    )
    return WorkerTask(run=run, rank=0, workers=1, monitor=("", 0), token="")


def _new_stepper(task: WorkerTask, collectives: Collectives | None = None) -> Stepper:
    config = task.run.config
    with quiet_import():
        factory: StepperFactory[Stepper] = STEPPERS.load(config.training.framework)
    factory.prepare_process(config.training)
    spec, weights = start_encoder(config, task.run.manifest.vocabulary)
    return factory(task, Checkpoint(0, spec, weights, {}), collectives or SingleProcess())


def train_sentence_transformers(config: Config, orders: Orders, *, from_ids: bool = False) -> None:
    """The trainer of sentence-transformers, on random batches of the same pairs.

    Args:
        config: Of the training.
        orders: How many steps it makes.
        from_ids: Whether it gets token ids; by default it is taken as it comes, with texts.
    """
    from sentence_transformers import SentenceTransformer
    from transformers import TrainerCallback

    class Paced(TrainerCallback):  # type: ignore[misc] # the library has no types
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = not orders.step_done()

    model = SentenceTransformer(str(start_folder(config) or default_start()), device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        trainer = sentence_transformers_trainer(
            config, model, folder, from_ids=from_ids, max_steps=ENDLESS, callbacks=[Paced()]
        )
        if orders.next():
            trainer.train()


def sentence_transformers_trainer(
    config: Config,
    model: Any,
    folder: str,
    *,
    from_ids: bool = False,
    callbacks: Sequence[Any] = (),
    **arguments: Any,
) -> Any:
    """A `SentenceTransformerTrainer` on the prepared pairs, with MultipleNegativesRankingLoss.

    Args:
        config: Length, precision, learning rate and seed are its own.
        model: A `SentenceTransformer`.
        folder: What the trainer may write to.
        from_ids: Whether it gets the ids of the tokens stage, and does not tokenise.
        callbacks: Of the trainer.
        arguments: Further ones of `SentenceTransformerTrainingArguments`.
    """
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    prepared, training = PreparedFolder.of(config), config.training
    objective = config.objective
    assert isinstance(objective, InBatchNegativesSettings), "the loss of which theirs is the same"
    pairs = pq.read_table(prepared.corpus.pairs, columns=list(SIDES))
    lanes = LaneManifest.load(prepared.lanes.path)
    model.max_seq_length = lanes.max_length
    return SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=lanes.granule,
            learning_rate=training.learning_rate,
            bf16=training.precision == "bf16",
            use_cpu=True,
            seed=training.seed,
            disable_tqdm=True,
            save_strategy="no",
            report_to="none",
            **{"logging_strategy": "no"} | arguments,
        ),
        train_dataset=Dataset(token_ids(prepared.tokens.examples) if from_ids else pairs),
        data_collator=ids_collator(model.tokenizer.pad_token_id) if from_ids else None,
        loss=MultipleNegativesRankingLoss(model, scale=1 / objective.temperature),
        callbacks=list(callbacks),
    )


def token_ids(examples: Location) -> pa.Table:
    """The ids of the pairs' texts as lists, in the columns `anchor` and `positive`."""
    table = read_table(examples, SIDES)
    return pa.table({name: _lists(table[name].combine_chunks()) for name in SIDES})


def _lists(column: pa.BinaryArray) -> pa.ListArray:
    ids, lengths = ragged(column)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))


def ids_collator(padding: int) -> Any:
    """The library's collator for columns of token ids: it pads them, batch by batch."""
    from sentence_transformers.sentence_transformer.data_collator import (
        SentenceTransformerDataCollator,
    )

    return SentenceTransformerDataCollator(preprocess_fn=partial(_padded, padding=padding))


def _padded(rows: Sequence[Sequence[int]], *, padding: int, **_: Any) -> dict[str, Any]:
    """What the library makes of texts with these ids, at no cost but that of padding."""
    import torch

    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    is_token = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(is_token.shape, padding, np.int64)
    ids[is_token] = np.concatenate(rows)
    return {
        "input_ids": torch.from_numpy(ids),
        "token_type_ids": torch.zeros(ids.shape, dtype=torch.int64),
        "attention_mask": torch.from_numpy(is_token.astype(np.int64)),
        "modality": "text",
    }


TRAINERS: Mapping[str, Callable[[Config, Orders], None]] = {
    "here": train_here,
    "sentence-transformers from ids": partial(train_sentence_transformers, from_ids=True),
    "sentence-transformers from texts": train_sentence_transformers,
}


def main() -> None:
    """Runs the trainer that is named first, with the configuration file that is named second."""
    name, path = sys.argv[1:]
    TRAINERS[name](load(path, ()), Orders())


if __name__ == "__main__":
    main()
