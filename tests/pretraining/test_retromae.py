"""RetroMAE against the equations of the paper, in PyTorch's own modules, text by text."""

import numpy as np
import pytest
import torch
from reconstruction_cases import SPEC, compare, loss_and_gradients, noised, texts, weights_of
from torch import nn
from torch.nn.functional import cross_entropy, gelu, linear

from pipelines.errors import InputError
from pipelines.models.bert.spec import BertSpec
from pipelines.models.spec import Dense
from pipelines.pretraining.objectives import MOST_CHOICES, check_retromae

EPSILON = SPEC.layer_norm_epsilon


class Reference:
    """The encoder and the decoder of the paper.

    Each leaf is kept by its name: modules are given what they compute with for each call.
    """

    def __init__(self, weights, own) -> None:
        self.leaves = {
            name: torch.tensor(value, requires_grad=True)
            for name, value in {
                **weights,
                **{f"own.{key}": one for key, one in own.items()},
            }.items()
        }

    def norm(self, prefix: str, states: torch.Tensor) -> torch.Tensor:
        leaves = [self.leaves[f"{prefix}LayerNorm.{part}"] for part in ("weight", "bias")]
        return nn.functional.layer_norm(states, states.shape[-1:], *leaves, EPSILON)

    def dense(self, prefix: str, states: torch.Tensor) -> torch.Tensor:
        return linear(states, self.leaves[f"{prefix}.weight"], self.leaves[f"{prefix}.bias"])

    def embedded(self, words: torch.Tensor) -> torch.Tensor:
        """Words, or what stands in their place, with positions and the first segment."""
        positions = self.leaves["embeddings.position_embeddings.weight"][: len(words)]
        segment = self.leaves["embeddings.token_type_embeddings.weight"][0]
        return self.norm("embeddings.", words + positions + segment)

    def attention(self, prefix, queries, keys, hidden=None) -> torch.Tensor:
        """What `nn.MultiheadAttention` gives; ``hidden`` is true where nothing is seen."""
        module = nn.MultiheadAttention(SPEC.hidden, SPEC.heads, batch_first=True)
        three = [f"{prefix}attention.self.{name}" for name in ("query", "key", "value")]
        given = {
            "in_proj_weight": torch.cat([self.leaves[f"{name}.weight"] for name in three]),
            "in_proj_bias": torch.cat([self.leaves[f"{name}.bias"] for name in three]),
            "out_proj.weight": self.leaves[f"{prefix}attention.output.dense.weight"],
            "out_proj.bias": self.leaves[f"{prefix}attention.output.dense.bias"],
        }
        arguments = (queries[None], keys[None], keys[None])
        found, _ = torch.func.functional_call(module, given, arguments, {"attn_mask": hidden})
        return found[0]

    def layer(self, prefix, queries, keys, hidden=None) -> torch.Tensor:
        """A layer of a transformer, with what is added to the queries."""
        states = queries + self.attention(prefix, queries, keys, hidden)
        states = self.norm(f"{prefix}attention.output.", states)
        inner = gelu(self.dense(f"{prefix}intermediate.dense", states))
        return self.norm(f"{prefix}output.", states + self.dense(f"{prefix}output.dense", inner))

    def losses(self, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The cross entropy of each token."""
        inner = self.norm("own.head.", gelu(self.dense("own.head.dense", states)))
        words = self.leaves["embeddings.word_embeddings.weight"]
        return cross_entropy(
            inner @ words.T + self.leaves["own.head.bias"], targets, reduction="none"
        )

    def of_text(self, masked, original, missing) -> tuple[torch.Tensor, torch.Tensor]:
        """The cross entropies of a text's tokens, by the encoder and by the decoder.

        Args:
            masked: Ids that the encoder gets.
            original: The text's.
            missing: Bool [tokens, tokens], what the decoder misses for each.
        """
        words = self.leaves["embeddings.word_embeddings.weight"]
        states = self.embedded(words[masked])
        for number in range(SPEC.layers):
            states = self.layer(f"encoder.layer.{number}.", states, states)
        vector = states.mean(0)
        # H_1 and H_2 of the paper's equations 4 and 5.
        queries = self.embedded(vector.expand(len(original), -1))
        keys = torch.cat([vector[None], self.embedded(words[original])[1:]])
        hidden = missing | torch.eye(len(original), dtype=bool)
        hidden[:, 0] = False
        decoded = self.layer("own.decoder.", queries, keys, hidden)
        return self.losses(states, original), self.losses(decoded, original)


def test_value_and_gradients_are_those_of_the_paper():
    (weights, own), side = weights_of("retromae"), texts()
    inputs = noised("retromae", side)
    found, ours, ours_own = loss_and_gradients("retromae", inputs, weights, own)

    reference, expected = Reference(weights, own), torch.zeros(())
    predicted = (inputs["encoder_shares"] > 0, inputs["decoder_shares"] > 0)
    for text, length in enumerate(side.lengths):
        masked, original = (
            torch.from_numpy(ids[text, :length]).long()
            for ids in (inputs["token_ids"], side.token_ids)
        )
        of_token = inputs["missing"][text][inputs["choices"][text]][:length, :length]
        for losses, wanted in zip(
            reference.of_text(masked, original, torch.from_numpy(of_token)), predicted, strict=True
        ):
            chosen = torch.from_numpy(wanted[text, :length])
            expected = expected + losses[chosen].sum() / wanted.sum().item()
    expected.backward()
    theirs = {name: leaf.grad.numpy() for name, leaf in reference.leaves.items()}
    compare("retromae: encoder", found, expected.item(), ours, theirs)
    ours = {f"own.{name}": one for name, one in ours_own.items()}
    compare("retromae: own", found, expected.item(), ours, theirs)


def test_the_decoder_finds_all_words_from_choices_of_half_of_the_others():
    side = texts(200)
    inputs = noised("retromae", side, encoder_mask_ratio=0.3, decoder_mask_ratio=0.5)
    words = side.lengths - 2
    assert (inputs["decoder_shares"] > 0).sum() == words.sum()
    expected = np.where(words > 0, np.maximum(np.rint(0.3 * words), 1), 0)
    np.testing.assert_array_equal((inputs["encoder_shares"] > 0).sum(1), expected)
    halves = np.where(words > 0, np.maximum(np.rint(0.5 * words), 1), 0)
    missing = inputs["missing"]
    np.testing.assert_array_equal(
        missing.sum(2), np.broadcast_to(halves[:, None], missing.shape[:2])
    )
    # Tokens of a long text have choices of their own.
    long = missing[side.lengths.argmax()]
    assert len(np.unique(long, axis=0)) > len(long) / 2


def test_choices_do_not_grow_with_the_square_of_a_text():
    inputs = noised("retromae", texts(2, 400))
    assert inputs["missing"].shape == (2, MOST_CHOICES, 400)


@pytest.mark.parametrize(
    "changed",
    [{"dense": (Dense(width=12),)}, {"embedding_size": 12}],
    ids=lambda one: next(iter(one)),
)
def test_a_vector_that_cannot_stand_among_words_is_refused(changed):
    with pytest.raises(InputError, match=r"^objective\.name: `retromae` needs one width for all"):
        check_retromae(BertSpec(**{**vars(SPEC), **changed}))
