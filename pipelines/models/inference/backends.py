"""The backends that embed token ids, and the choice among them. Runs on an executor or the driver.

A backend's module is imported when it is chosen.
"""

from __future__ import annotations

from typing import Literal

from pipelines.catalog import ARCHITECTURES, BACKENDS
from pipelines.errors import InputError
from pipelines.libraries import EXTRAS, is_installed
from pipelines.models.inference.batches import TokenEmbedder
from pipelines.models.inference.processor import computes_in_bf16
from pipelines.models.lsa.modules import add_terms, without_terms
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import TERMS, Weights

Precision = Literal["auto", "fp32", "bf16"]
"""``auto``: bf16 on a GPU or CPU with instructions for it, otherwise fp32."""

GPU_BACKEND = "torch"
"""The backend for GPUs."""


def token_embedder(
    spec: EncoderSpec,
    weights: Weights,
    *,
    backend: str = "auto",
    threads: int = 1,
    precision: str = "fp32",
    device: str = "cpu",
) -> TokenEmbedder:
    """Return a function over padded batches of token ids. Runs on an executor.

    A backend, of :data:`BACKENDS` or ``auto``, is a function of the same arguments except its name.
    The weights are fp32, in canonical names. Threads count if the backend has not begun in this
    process. For the precision of matrix products see :data:`Precision`. The device is ``cpu``, or a
    GPU of the backend `torch` (``cuda:0``).
    """
    open_backend = BACKENDS.load(choose_backend(backend, spec.kind))
    own_spec, own_weights = without_terms(spec, weights)
    embed = open_backend(
        own_spec,
        own_weights,
        threads=threads,
        precision=choose_precision(precision, device),
        device=device,
    )
    return add_terms(embed, weights[TERMS]) if spec.lsa else embed


def choose_backend(name: str, kind: str | None = None) -> str:
    """Return the named backend; for ``auto`` the first installed one with a form.

    The kind is the model's architecture; None if its fit is known.

    Raises:
        InputError: There is no such backend, it has no form of the architecture, or its package is
            not installed.
    """
    wanted = [*BACKENDS] if name == "auto" else [BACKENDS.check(name)]
    if kind is not None:
        architecture = ARCHITECTURES.load(kind)
        if name != "auto":
            architecture.check_form(name, BACKENDS.key, BACKENDS)
        wanted = [backend for backend in wanted if backend in architecture.forms]
        if not wanted:
            raise InputError(
                BACKENDS.key,
                f"architecture {kind} has no implementation in any backend",
                f"Write one, in {' or '.join(BACKENDS)}",
            )
    for package in wanted:
        if is_installed(package):
            return package
    raise InputError(
        BACKENDS.key,
        f"no {' or '.join(wanted)} is installed here",
        f'Run `pip install "sentence-pipelines[{EXTRAS[wanted[0]]}]"` '
        "on the driver and every executor",
    )


def choose_precision(name: str, device: str = "cpu") -> str:
    """Return the precision of a name on this machine; see :data:`Precision`."""
    if name != "auto":
        return name
    if device == "cpu":
        return "bf16" if computes_in_bf16() else "fp32"
    # Only PyTorch computes on GPUs.
    import torch

    from pipelines.models.frameworks.torch import has_bf16

    return "bf16" if has_bf16(torch.device(device)) else "fp32"
