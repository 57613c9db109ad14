from __future__ import annotations

import pytest
import torch

from servelib.model.linear import MANY, linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (1, MANY - 1), (1, MANY), (2, MANY), (300,), (0,)])
@pytest.mark.parametrize("by_column", [False, True])
def test_every_size_layout_and_format_is_the_matrix_product(
    shape: tuple[int, ...], dtype: torch.dtype, by_column: bool
):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*shape, 48, generator=generator).to(dtype)
    weight = torch.randn(20, 48, generator=generator).to(dtype)
    found = linear(x, weight.t().contiguous().t() if by_column else weight)
    assert found.dtype is dtype
    assert found.shape == (*shape, 20)
    expected = x.double() @ weight.double().t()
    assert torch.allclose(found.double(), expected, atol=0.3 if dtype is torch.bfloat16 else 1e-4)


def test_it_follows_the_device():
    assert linear(torch.empty(8, 4, device="meta"), torch.empty(3, 4, device="meta")).device.type == "meta"
