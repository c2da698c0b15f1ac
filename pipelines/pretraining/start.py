"""The noise of reconstruction objectives, and their weights at the start.

The prediction head is BERT's, RoBERTa's and ELECTRA's: a dense layer with GELU and a layer norm
lead to the width of the word embedding. This is the output matrix too; a bias of each word follows.

Masking, replacement and deletion depend only on (seed, epoch, granule), by numpy's Philox, a
generator specified to the bit. So noise is the same on any number of workers, on any machine, and
in a repeated step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location
from pipelines.lanes.files import Side
from pipelines.lanes.plan import noise_seed
from pipelines.losses.loss import Loss, TokenLoss
from pipelines.models.adaptation import OBJECTIVE
from pipelines.models.architecture import Architecture, Shapes, architecture_of
from pipelines.models.checkpoint_files import read_checkpoint
from pipelines.models.folder import read_encoder, with_output
from pipelines.models.spec import EncoderSpec
from pipelines.models.start import start_architecture
from pipelines.models.weights import WORDS, Weights, fresh_arrays, weight_shapes
from pipelines.settings import Config
from pipelines.tokens.start import start_folder
from pipelines.tokens.vocabulary import SpecialIds, checked_ends, read_special_ids

HEAD = "head."
"""The prefix of the head's weights."""
STORED: Mapping[str, tuple[str, ...]] = {
    f"{HEAD}dense.weight": (
        "cls.predictions.transform.dense.weight",
        "lm_head.dense.weight",
        "vocab_transform.weight",
    ),
    f"{HEAD}dense.bias": (
        "cls.predictions.transform.dense.bias",
        "lm_head.dense.bias",
        "vocab_transform.bias",
    ),
    f"{HEAD}LayerNorm.weight": (
        "cls.predictions.transform.LayerNorm.weight",
        "cls.predictions.transform.LayerNorm.gamma",
        "lm_head.layer_norm.weight",
        "vocab_layer_norm.weight",
    ),
    f"{HEAD}LayerNorm.bias": (
        "cls.predictions.transform.LayerNorm.bias",
        "cls.predictions.transform.LayerNorm.beta",
        "lm_head.layer_norm.bias",
        "vocab_layer_norm.bias",
    ),
    f"{HEAD}bias": ("cls.predictions.bias", "lm_head.bias", "vocab_projector.bias"),
}
"""The head's names in checkpoints of BERT (some with TensorFlow's names), of RoBERTa and MPNet, and
of DistilBERT."""


def head_shapes(spec: EncoderSpec) -> Shapes:
    """Return the shapes of the prediction head's weights."""
    _, word_width = weight_shapes(spec)[WORDS]
    return {
        f"{HEAD}dense.weight": (word_width, spec.hidden),
        f"{HEAD}dense.bias": (word_width,),
        f"{HEAD}LayerNorm.weight": (word_width,),
        f"{HEAD}LayerNorm.bias": (word_width,),
        f"{HEAD}bias": (spec.vocabulary,),
    }


def stored_head(
    shapes: Shapes, checkpoint: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray] | None:
    """Return the head among the arrays of a checkpoint; None unless it is whole and fits."""
    found = {}
    for name, known in STORED.items():
        arrays = (checkpoint[stored] for stored in known if stored in checkpoint)
        array = next((candidate for candidate in arrays if candidate.shape == shapes[name]), None)
        if array is None:
            return None
        found[name] = np.ascontiguousarray(array, dtype=np.float32)
    return found


_SITE = 1 << 20
"""Separates this noise from that of dropout, which has a site for each side of an example."""
_AT_ONCE = 1 << 18
"""Elements for which :func:`some_of` holds keys and ranks at once, about."""
MASKED, REPLACED = 0.8, 0.1
"""Shares of the tokens to predict that become the mask token, and that become any other token. The
rest stay, so that the encoder cannot tell which tokens are original. Source: Devlin et al.,
arXiv:1810.04805, section 3.1."""


def generator(seed: int, epoch: int, granule: int) -> np.random.Generator:
    """Return the generator of all noise in a granule of an epoch."""
    return np.random.Generator(np.random.Philox(noise_seed(seed, epoch, granule, _SITE)))


def is_token(side: Side) -> np.ndarray:
    """Return bool [texts, width], false for padding."""
    found: np.ndarray = np.arange(side.token_ids.shape[1]) < side.lengths[:, None]
    return found


def are_words(side: Side, ids: SpecialIds) -> np.ndarray:
    """Return bool [texts, width], true for tokens that are neither padding nor special."""
    return is_token(side) & ~np.isin(side.token_ids, ids.special)


def some_of(candidates: np.ndarray, share: float, draw: np.random.Generator) -> np.ndarray:
    """Choose a share of the true values in each row, bool [..., width]; at least one if any."""
    # Keys and ranks take 24 times the memory of the result. The generator draws in the order of the
    # rows, so part after part gives the same numbers as all at once.
    rows = max(1, _AT_ONCE // max(1, math.prod(candidates.shape[1:])))
    chosen = np.empty(candidates.shape, bool)
    for first in range(0, len(candidates), rows):
        part = slice(first, first + rows)
        chosen[part] = _chosen(candidates[part], share, draw)
    return chosen


def _chosen(candidates: np.ndarray, share: float, draw: np.random.Generator) -> np.ndarray:
    keys = np.where(candidates, draw.random(candidates.shape), np.inf)
    # Stable: of equal keys the first place wins on every machine.
    ranks = keys.argsort(axis=-1, kind="stable").argsort(axis=-1, kind="stable")
    count = candidates.sum(axis=-1, keepdims=True)
    wanted = np.minimum(np.maximum(np.rint(share * count), 1), count)
    chosen: np.ndarray = ranks < wanted
    return chosen


def masked(
    side: Side, chosen: np.ndarray, ids: SpecialIds, draw: np.random.Generator
) -> np.ndarray:
    """Return token ids [texts, width] with chosen ones masked, replaced or left."""
    assert ids.mask is not None, "the driver has checked for one"
    fates = draw.random(chosen.shape)
    random_ids = draw.integers(0, ids.vocabulary, chosen.shape, np.int32)
    hidden = np.where(fates < MASKED, np.int32(ids.mask), side.token_ids)
    replaced = (fates >= MASKED) & (fates < MASKED + REPLACED)
    return np.where(chosen, np.where(replaced, random_ids, hidden), side.token_ids)


def kept(side: Side, stays: np.ndarray) -> Side:
    """Return texts without the other tokens; at least one stays in each."""
    lengths = stays.sum(axis=1).astype(np.int32)
    token_ids = np.zeros_like(side.token_ids)
    token_ids[np.arange(token_ids.shape[1]) < lengths[:, None]] = side.token_ids[stays]
    return Side(token_ids, lengths)


def following(tokens: np.ndarray) -> np.ndarray:
    """Return the successor at each place of [texts, width]; 0 or false at the last."""
    found = np.zeros_like(tokens)
    found[:, :-1] = tokens[:, 1:]
    return found


def repeated(tokens: np.ndarray, count: int) -> np.ndarray:
    """Repeat rows [texts, width] ``count`` times: [texts, count, width], a read-only view."""
    texts, width = tokens.shape
    return np.broadcast_to(tokens[:, None], (texts, count, width))


def shares(chosen: np.ndarray) -> np.ndarray:
    """Return each prediction's weight in a mean over all chosen ones, fp32, 0 for others."""
    return chosen.astype(np.float32) / np.float32(max(int(chosen.sum()), 1))


logger = logging.getLogger(__name__)

_STREAM = 1
"""Beside the run's seed: the draws differ from those of a random encoder."""


def check_objective(config: Config, tokenizer: Location | None) -> None:
    """Check the start for the objective's needs, before anything is prepared.

    A tokenizer of None is yet to train, with a mask token.

    Raises:
        InputError: The objective cannot train this encoder, or needs a mask token.
    """
    loss = _loss(config)
    token_loss = loss.token_loss
    if token_loss is None:
        return
    _check_architecture(loss.name, token_loss, start_architecture(config))
    folder = start_folder(config)
    if folder is not None:
        token_loss.check_spec(with_output(config.encoder, read_encoder(folder)[0]))
    if tokenizer is not None:
        special_ids(config, tokenizer)


def objective_weights(config: Config, spec: EncoderSpec) -> Weights:
    """Return the weights of the objective by their names in checkpoints; empty without any.

    A prediction head comes from the start, if it has one.

    Raises:
        InputError: The objective cannot train this encoder.
    """
    loss = _loss(config)
    token_loss = loss.token_loss
    if token_loss is None:
        return {}
    _check_architecture(loss.name, token_loss, architecture_of(spec))
    token_loss.check_spec(spec)
    fresh = fresh_weights(token_loss, spec, config.training.seed)
    head = _head_of_start(config, token_loss, spec)
    return fresh | {f"{OBJECTIVE}{name}": value for name, value in head.items()}


def fresh_weights(token_loss: TokenLoss, spec: EncoderSpec, seed: int) -> Weights:
    """Return an objective's fresh weights, for any start, by their names in checkpoints."""
    arrays = fresh_arrays(dict(token_loss.shapes(spec)), seed, _STREAM)
    return {f"{OBJECTIVE}{name}": value for name, value in arrays.items()}


def _loss(config: Config) -> Loss:
    """Return the loss; several sources share it if it has weights of its own."""
    loss: Loss = LOSSES.load(config.by_source()[0].objective.name)
    return loss


def _check_architecture(name: str, token_loss: TokenLoss, architecture: Architecture) -> None:
    """Refuse an architecture without an objective's needs."""
    if token_loss.uses not in architecture.token_losses:
        raise InputError(
            "objective.name",
            f"`{name}` cannot train architecture {architecture.spec.kind}",
            "Choose another loss, or a start of the BERT family",
        )


def _head_of_start(config: Config, token_loss: TokenLoss, spec: EncoderSpec) -> Weights:
    """Return the prediction head of the start; empty without one."""
    shapes = {
        name: shape for name, shape in token_loss.shapes(spec).items() if name.startswith(HEAD)
    }
    if not shapes:
        return {}
    folder = start_folder(config)
    checkpoint = read_checkpoint(folder) if folder is not None else None
    found = stored_head(shapes, checkpoint) if checkpoint else None
    if found is None:
        logger.info("the start has no prediction head, so a new one starts at random")
        return {}
    logger.info("the prediction head comes from %s", folder)
    return dict(found)


def special_ids(config: Config, folder: Location) -> SpecialIds | None:
    """Return a vocabulary's special ids, if the objective needs them.

    Raises:
        InputError: The objective needs a mask token, and there is none.
    """
    loss = _loss(config)
    token_loss = loss.token_loss
    if token_loss is None:
        return None
    ids = read_special_ids(folder)
    if token_loss.scores_pairs and checked_ends("tokens.vocabulary", local_folder(folder)) != (
        1,
        1,
    ):
        raise InputError(
            "tokens.vocabulary",
            f"the tokenizer in {folder} does not put one special token before and after a text",
            "Name one that does, such as BERT's",
        )
    if token_loss.masks and ids.mask is None:
        raise InputError(
            "tokens.vocabulary",
            f"the tokenizer in {folder} has no mask token, which `{loss.name}` needs",
            "Name a tokenizer with one, such as BERT's, or set objective.name to tsdae",
        )
    return ids
