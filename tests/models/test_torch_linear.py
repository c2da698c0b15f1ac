"""Products with weights by oneDNN, beside those of PyTorch's own choice."""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from pipelines.models.frameworks import torch as torch_linear
from pipelines.models.frameworks.torch import KEPT_KERNELS, bound_kernel_caches


@pytest.fixture(params=[True, False])
def prefers_onednn(request, monkeypatch):
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this build of torch has no product of oneDNN")
    monkeypatch.setattr(torch_linear, "_prefers_onednn", lambda: request.param)
    return request.param


def slopes(multiply, shape, *, biased):
    generator = torch.Generator().manual_seed(1)
    leaves = [torch.randn(shape, generator=generator), torch.randn(48, 32, generator=generator)]
    if biased:
        leaves.append(torch.randn(48, generator=generator))
    for leaf in leaves:
        leaf.requires_grad_()
    product = multiply(*leaves)
    product.backward(torch.randn(product.shape, generator=generator))
    return [product.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(7, 32), (3, 5, 32), (0, 32)])
def test_it_is_pytorchs_linear(prefers_onednn, shape, biased):
    found = slopes(torch_linear.linear, shape, biased=biased)
    expected = slopes(functional.linear, shape, biased=biased)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_weight_that_is_not_trained_has_no_gradient(prefers_onednn):
    states, weight = torch.ones(2, 8, requires_grad=True), torch.ones(4, 8)
    torch_linear.linear(states, weight).sum().backward()
    assert weight.grad is None
    torch.testing.assert_close(states.grad, torch.full((2, 8), 4.0))


def test_states_are_kept_for_the_gradient_of_a_weight_alone(prefers_onednn):
    states, kept = torch.ones(2, 8, requires_grad=True), []

    def keep(tensor):
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        torch_linear.linear(states, torch.ones(4, 8))
        assert (2, 8) not in kept
        torch_linear.linear(states, torch.ones(4, 8, requires_grad=True))
        assert (2, 8) in kept


def test_a_product_of_transposed_views(prefers_onednn):
    left, right = torch.randn(8, 5).t(), torch.randn(8, 3).t()
    found = torch_linear.multiplied(left, right, torch.ones(3))
    torch.testing.assert_close(found, left @ right.t() + 1, rtol=1e-5, atol=1e-5)


def test_autocast_stays_in_charge(prefers_onednn):
    with torch.autocast("cpu", torch.bfloat16):
        assert torch_linear.linear(torch.ones(2, 8), torch.ones(4, 8)).dtype == torch.bfloat16


def test_kernels_kept_are_bounded_unless_someone_has_said_how_many(monkeypatch):
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    # Set first, so that it is taken back afterwards.
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "")
    monkeypatch.delenv("LRU_CACHE_CAPACITY")
    bound_kernel_caches()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
    assert os.environ["LRU_CACHE_CAPACITY"] == str(KEPT_KERNELS)


# The caches are made, with their bound, when the first product is: in a child each, forked from one
# process that imports the library and computes nothing.
GROWTH = """
import os
import psutil
from pipelines.models.frameworks import torch as torch_linear
from pipelines.models.frameworks.torch import bound_kernel_caches
import torch
torch.set_num_threads(1)

def grow():
    process, weight = psutil.Process(), torch.ones(64, 64)
    for rows in range(1, 400):
        torch_linear._by_onednn(torch.ones(rows, 64), weight)
        if rows == 1:
            before = process.memory_info().rss
    print(process.memory_info().rss - before, flush=True)

for bound in (bound_kernel_caches, lambda: None):
    if not os.fork():
        bound()
        grow()
        os._exit(0)
    assert os.wait()[1] == 0
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_every_number_of_rows():
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this build of torch has no product of oneDNN")

    # Other tests in this process may have bounded them already.
    unset = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], check=True, capture_output=True, timeout=120, env=unset
    )
    bounded, as_they_come = map(int, done.stdout.split())
    assert bounded < 0.5 * as_they_come
