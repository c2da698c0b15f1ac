"""Compiled layers give the loss and the gradients of the others, in fewer kernels."""

import re
from collections import Counter

import pytest
import torch
from steppers import DEEP, SPEC, STATIC, granule, random_weights, stepper, work
from torch._dynamo import config as tracing
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch.profiler import ProfilerActivity, profile

from pipelines.errors import InputError
from pipelines.models.architecture import architecture_of, check_framework
from pipelines.models.bert import torch as bert
from pipelines.models.frameworks import torch_batch, torch_compile
from pipelines.settings.load import parse

pytestmark = pytest.mark.slow


@pytest.fixture
def compiling():
    """Switches the compiler on and off, and leaves it off."""
    torch._dynamo.reset()
    counters.clear()
    yield torch_compile.set_compiling
    torch_compile.set_compiling(False)


@pytest.fixture
def at_once(monkeypatch):
    """As a GPU computes: attention in one rectangle, noise by a hash."""
    monkeypatch.setattr(torch_batch, "BY_SEGMENT", frozenset())


def both(compiling, training, numbers):
    """Loss and gradients, without the compiler and with it."""
    each = stepper("torch", {}, {"clip_norm": 0.0} | training, spec=SPEC)
    parts, start = work(0, *map(granule, numbers)), random_weights(SPEC, 3)
    found = []
    for on in (False, True):
        compiling(on)
        found.append(each.gradients(parts, start))
    return found


def assert_same(expected, found, share):
    assert found[0] == pytest.approx(expected[0], rel=share)
    most = max(abs(gradient).max() for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        assert abs(found[1][name] - gradient).max() <= share * most, name


@pytest.mark.parametrize(
    ("precision", "dropout", "more"),
    [
        ("bf16", 0.2, {}),
        pytest.param("fp32", 0.2, {"activation_checkpointing": True}, marks=pytest.mark.matrix),
        pytest.param("fp32", 0.0, {}, marks=pytest.mark.matrix),
    ],
)
def test_compiled_layers_have_the_same_gradients_at_any_length(
    compiling, at_once, precision, dropout, more
):
    training = {"precision": precision, "dropout": dropout, **more}
    share = 2e-6 if precision == "fp32" else 1e-4
    assert_same(*both(compiling, training, range(2)), share)
    assert counters["stats"]["unique_graphs"]
    # The same code takes steps of other lengths.
    with tracing.patch(error_on_recompile=True):
        assert_same(*both(compiling, training, range(5)), share)
        assert_same(*both(compiling, training, range(6, 7)), share)
    assert not counters["graph_break"]


@pytest.mark.matrix
def test_masks_of_a_cpu_are_the_same_in_compiled_layers(compiling):
    assert_same(*both(compiling, {"dropout": 0.2}, range(2)), 2e-6)
    assert counters["stats"]["unique_graphs"]


def test_passes_without_a_gradient_are_not_compiled(compiling):
    compiling(True)
    each = stepper("torch", {"negatives": "step"}, {"compile": True})
    with torch.no_grad():
        (objective,) = each._objectives
        each._embed(each._texts(work(0, granule(1)), objective)[0])
    assert not counters["stats"]


@pytest.mark.matrix
def test_compiled_layers_start_fewer_kernels(compiling, at_once, monkeypatch):
    # A CPU's attention has other operations than a GPU's.
    monkeypatch.setattr(bert, "attend", lambda qkv, *_: qkv[:, : SPEC.hidden].contiguous())
    counts = {}
    for on in (False, True):
        with inductor.patch({"cpp.enable_kernel_profile": True}):
            of_layers = [kernels(spec, on) for spec in (SPEC, DEEP)]
        counts[on] = (of_layers[1] - of_layers[0]).total() / (DEEP.layers - SPEC.layers)
    assert counts[False] - counts[True] >= 20, counts


def kernels(spec, compiled):
    """Operations of a forward pass and its backward pass that compute something, by name."""
    each = stepper(
        "torch", {}, {"precision": "bf16", "dropout": 0.1, "compile": compiled}, spec=spec
    )
    parts = work(0, granule(1), granule(2))
    each.gradients(parts, random_weights(spec, 3))
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        each.gradients(parts, random_weights(spec, 3))

    def computes(event):
        return event.name.startswith("aten::") and not VIEWS.fullmatch(event.name)

    return Counter(
        event.name
        for event in seen.events()
        if "cpp_fused" in event.name
        or (computes(event) and not any(computes(child) for child in event.cpu_children))
    )


VIEWS = re.compile(
    r"aten::(view|as_strided|transpose|t|permute|expand|reshape|slice|select|narrow|split|unbind"
    r"|split_with_sizes|detach|alias|unsqueeze|squeeze|empty|empty_like|empty_strided|new_empty"
    r"|resize_|view_as|expand_as|_unsafe_view|resolve_conj|to|item|_local_scalar_dense|numpy_T"
    r"|lift_fresh|result_type|is_nonzero)"
)
"""Operations that start no kernel."""


def test_a_worker_without_a_compiler_says_so():
    refused = pytest.raises(InputError, match=r"training\.compile: .*no C\+\+ compiler.* Install")
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}), refused:
        stepper("torch", {}, {"compile": True})


def test_encoders_without_parts_to_compile_are_refused():
    config = parse({"training": {"framework": "torch", "compile": True}})
    check_framework(architecture_of(SPEC), config)
    with pytest.raises(InputError, match=r"training\.compile: architecture static has no parts"):
        check_framework(architecture_of(STATIC), config)
