"""Compiled layers give the loss and the gradients of the others, in fewer kernels."""

import json
import re
import subprocess
import sys
import sysconfig
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


@pytest.fixture(autouse=True)
def fresh_compiler(tmp_path_factory, monkeypatch):
    """A compiler that has compiled nothing, and that is switched off at the end."""
    # All tests of this process share what takes a compiler long: its own headers.
    folder = tmp_path_factory.getbasetemp() / "compiled"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    torch._dynamo.reset()
    counters.clear()
    yield
    torch_compile.compile_nothing()


@pytest.fixture
def at_once(monkeypatch):
    """As a GPU computes: attention in one rectangle, noise by a hash."""
    monkeypatch.setattr(torch_batch, "BY_SEGMENT", frozenset())


def both(training, numbers):
    """Loss and gradients, without the compiler and with it."""
    parts, start = work(0, *map(granule, numbers)), random_weights(SPEC, 3)
    return [
        stepper("torch", {}, {"clip_norm": 0.0, "compile": on} | training).gradients(parts, start)
        for on in (False, True)
    ]


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
def test_compiled_layers_have_the_same_gradients_at_any_length(at_once, precision, dropout, more):
    training = {"precision": precision, "dropout": dropout, **more}
    share = 2e-6 if precision == "fp32" else 1e-4
    assert_same(*both(training, range(2)), share)
    assert counters["stats"]["unique_graphs"]
    # The same code takes steps of other lengths.
    with tracing.patch(error_on_recompile=True):
        assert_same(*both(training, range(5)), share)
        assert_same(*both(training, range(6, 7)), share)
    assert not counters["graph_break"]


@pytest.mark.matrix
def test_masks_of_a_cpu_are_the_same_in_compiled_layers():
    assert_same(*both({"dropout": 0.2}, range(2)), 2e-6)
    assert counters["stats"]["unique_graphs"]


def test_passes_without_a_gradient_are_not_compiled():
    each = stepper("torch", {"negatives": "step"}, {"compile": True})
    with torch.no_grad():
        (objective,) = each._objectives
        each._embed(each._texts(work(0, granule(1)), objective)[0])
    assert not counters["stats"]


@pytest.mark.matrix
def test_compiled_layers_start_fewer_kernels(at_once, monkeypatch):
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
    refused = pytest.raises(InputError, match=r"training\.compile: .*without a C\+\+ compiler")
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}), refused:
        stepper("torch", {}, {"compile": True})
    assert not torch_compile.compiles()


def test_a_worker_without_the_headers_of_python_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(
        InputError, match=r"training\.compile: .*without the header files of Python"
    ):
        stepper("torch", {}, {"compile": True})


def test_steps_that_are_not_compiled_do_not_load_the_compiler():
    script = """
import sys
sys.path[:] = json.loads(sys.argv[1])
from steppers import granule, random_weights, stepper, SPEC, work
from pipelines.models.frameworks import torch_batch
torch_batch.BY_SEGMENT = frozenset()
each = stepper("torch", {}, {"dropout": 0.2})
each.gradients(work(0, granule(1)), random_weights(SPEC, 3))
assert "torch._dynamo" not in sys.modules, "the compiler is loaded"
"""
    command = [sys.executable, "-c", f"import json{script}", json.dumps(sys.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_encoders_without_parts_to_compile_are_refused():
    config = parse({"training": {"framework": "torch", "compile": True}})
    check_framework(architecture_of(SPEC), config)
    with pytest.raises(InputError, match=r"training\.compile: architecture static has no parts"):
        check_framework(architecture_of(STATIC), config)
