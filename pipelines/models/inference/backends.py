"""The backends that embed token ids, and the choice among them. Runs on an executor or the driver.

A backend's module is imported when it is chosen.
"""

from __future__ import annotations

from typing import Literal

from pipelines.catalog import ARCHITECTURES, BACKENDS
from pipelines.errors import InputError
from pipelines.libraries import EXTRAS, is_installed
from pipelines.models.architecture import architecture_of
from pipelines.models.inference.batches import TokenEmbedder
from pipelines.models.inference.processor import computes_in_bf16, multiplies_in_int8
from pipelines.models.lsa.modules import add_terms, without_terms
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import TERMS, WORDS, Weights

Precision = Literal["auto", "fp32", "bf16", "int8"]
"""``auto``: bf16 on a GPU or CPU with instructions for it, otherwise fp32. ``int8`` needs a
calibration."""

INT8 = "int8"
INT8_BACKEND = "openvino"
"""The backend for int8 matrix products."""
PRECISION = "embedding.precision"

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
    calibration: bytes | None = None,
) -> TokenEmbedder:
    """Return a function over padded batches of token ids. Runs on an executor.

    A backend, of :data:`BACKENDS` or ``auto``, is a function of the same arguments except its name.
    The weights are fp32, in canonical names. Threads count if the backend has not begun in this
    process. For the precision of matrix products see :data:`Precision`. The device is ``cpu``, or a
    GPU of the backend `torch` (``cuda:0``). The calibration, for ``int8`` alone, is the content of
    a file of :mod:`pipelines.models.frameworks.openvino_int8`.

    Raises:
        InputError: See :func:`choose_backend` and :func:`check_int8_here`.
    """
    own_spec, own_weights = without_terms(spec, weights)
    if precision == INT8:
        assert calibration is not None, "int8 products need a calibration"
        check_int8_here()
        from pipelines.models.frameworks import openvino_int8

        embed = openvino_int8.open_int8_backend(
            own_spec, own_weights, openvino_int8.unpacked(calibration), threads=threads
        )
    else:
        open_backend = BACKENDS.load(choose_backend(backend, spec.kind))
        embed = open_backend(
            own_spec,
            own_weights,
            threads=threads,
            precision=choose_precision(precision, device),
            device=device,
        )
    return add_terms(embed, weights[TERMS]) if spec.lsa else embed


def backend_of_int8(name: str, spec: EncoderSpec) -> str:
    """Return the backend of int8 matrix products, if a model has such products.

    Raises:
        InputError: Another backend is named, the model has no form in this one, or no products, or
            the backend is not installed.
    """
    remedy = "Set embedding.precision=auto"
    if name not in ("auto", INT8_BACKEND):
        problem = f"`int8` is for the backend `{INT8_BACKEND}`, not `{name}`"
        raise InputError(PRECISION, problem, f"{remedy}, or embedding.backend={INT8_BACKEND}")
    architecture = architecture_of(spec)
    if INT8_BACKEND not in architecture.forms:
        problem = f"architecture {spec.kind} has no form in `{INT8_BACKEND}`, which `int8` needs"
        raise InputError(PRECISION, problem, remedy)
    if architecture.weight_shapes(spec).keys() <= {WORDS}:
        problem = f"architecture {spec.kind} has no matrix products to compute in int8"
        raise InputError(PRECISION, problem, remedy)
    return choose_backend(INT8_BACKEND, spec.kind)


def check_int8_here() -> None:
    """Refuse a processor on which int8 products would be slow, and could overflow.

    Raises:
        InputError: This processor is unknown, or lacks the instructions.
    """
    if not multiplies_in_int8():
        raise InputError(
            PRECISION,
            "a processor lacks the instructions of `int8` (AVX512-VNNI, AVX-VNNI or AMX)",
            "Set embedding.precision=auto",
        )


def choose_backend(name: str, *kinds: str) -> str:
    """Return the named backend; for ``auto`` the first installed one with a form.

    The kinds are the architectures of the model's encoders; none if their fit is known.

    Raises:
        InputError: There is no such backend, it has no form of the architecture, or its package is
            not installed.
    """
    wanted = [*BACKENDS] if name == "auto" else [BACKENDS.check(name)]
    for kind in kinds:
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
