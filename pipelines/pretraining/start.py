"""What an objective with weights of its own needs at the start of a run. Runs on the driver."""

from __future__ import annotations

import logging

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.files.locations import Location
from pipelines.losses.loss import Loss, Reconstruction
from pipelines.models.adaptation import OBJECTIVE
from pipelines.models.architecture import Architecture, architecture_of
from pipelines.models.checkpoint_files import read_checkpoint
from pipelines.models.folder import read_encoder
from pipelines.models.spec import EncoderSpec
from pipelines.models.start import start_architecture
from pipelines.models.weights import Weights, fresh_arrays
from pipelines.pretraining.head import HEAD, stored_head
from pipelines.settings import Config
from pipelines.tokens.start import start_folder
from pipelines.tokens.vocabulary import SpecialIds, read_special_ids

logger = logging.getLogger(__name__)

_STREAM = 1
"""Beside the run's seed, so that the numbers are not those of a random encoder."""


def check_objective(config: Config, tokenizer: Location | None) -> None:
    """Looks at the start for what the objective needs, before anything is prepared.

    Args:
        config: The configuration.
        tokenizer: The folder of the tokenizer that there will be; None if one is to be trained,
            which has a mask token.

    Raises:
        InputError: The objective cannot train this encoder, or needs a mask token.
    """
    loss = _loss(config)
    own = loss.reconstruction
    if own is None:
        return
    _check_architecture(loss.name, own, start_architecture(config))
    folder = start_folder(config)
    if folder is not None:
        own.check_spec(read_encoder(folder)[0])
    if tokenizer is not None:
        special_ids(config, tokenizer)


def objective_weights(config: Config, spec: EncoderSpec) -> Weights:
    """What is trained beside the encoder, with its names in checkpoints; nothing for most losses.

    Args:
        config: The configuration.
        spec: Of the encoder.

    Raises:
        InputError: The objective cannot train this encoder.
    """
    loss = _loss(config)
    own = loss.reconstruction
    if own is None:
        return {}
    _check_architecture(loss.name, own, architecture_of(spec))
    own.check_spec(spec)
    fresh = fresh_weights(own, spec, config.training.seed)
    head = _head_of_start(config, own, spec)
    return fresh | {f"{OBJECTIVE}{name}": value for name, value in head.items()}


def fresh_weights(own: Reconstruction, spec: EncoderSpec, seed: int) -> Weights:
    """What an objective begins with, whatever the start, with its names in checkpoints.

    Args:
        own: What the objective has.
        spec: Of the encoder.
        seed: Of the run.
    """
    arrays = fresh_arrays(dict(own.shapes(spec)), seed, _STREAM)
    return {f"{OBJECTIVE}{name}": value for name, value in arrays.items()}


def _loss(config: Config) -> Loss:
    """What is minimised; of several sources all have the same, if it has weights of its own."""
    loss: Loss = LOSSES.load(config.by_source()[0].objective.name)
    return loss


def _check_architecture(name: str, own: Reconstruction, architecture: Architecture) -> None:
    """Makes sure that an architecture has the form that an objective needs."""
    if own.form not in architecture.forms:
        raise InputError(
            "objective.name",
            f"`{name}` cannot train architecture {architecture.spec.kind}",
            "another loss, or a start of the BERT family",
        )


def _head_of_start(config: Config, own: Reconstruction, spec: EncoderSpec) -> Weights:
    """The prediction head of the checkpoint that training starts from, if it has one."""
    shapes = {name: shape for name, shape in own.shapes(spec).items() if name.startswith(HEAD)}
    if not shapes:
        return {}
    folder = start_folder(config)
    checkpoint = read_checkpoint(folder) if folder is not None else None
    found = stored_head(shapes, checkpoint) if checkpoint else None
    if found is None:
        logger.info("the prediction head begins afresh: the start has none")
        return {}
    logger.info("the prediction head is that of %s", folder)
    return dict(found)


def special_ids(config: Config, folder: Location) -> SpecialIds | None:
    """The ids of the vocabulary that are no words, if the objective asks for them.

    Args:
        config: The configuration.
        folder: Of the tokenizer that the corpus was prepared with.

    Raises:
        InputError: It needs a mask token, and there is none.
    """
    loss = _loss(config)
    own = loss.reconstruction
    if own is None:
        return None
    ids = read_special_ids(folder)
    if own.masks and ids.mask is None:
        raise InputError(
            "tokens.vocabulary",
            f"the tokenizer in {folder} has no mask token, which `{loss.name}` needs",
            "one that has, as BERT's, or objective.name: tsdae",
        )
    return ids
