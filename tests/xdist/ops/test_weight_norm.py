"""Weight norm on the device equals eager torch's, with its gradients; nothing runs on the CPU."""

import pytest
import torch
from devices_agree import served_by_cpu


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("dim", "lengths"), [(0, (4, 1, 1)), (2, (1, 1, 5))])
def test_a_normed_weight_and_its_gradients_equal_eager(dim, lengths, dtype) -> None:
    torch.manual_seed(0)
    v, g = torch.randn(4, 3, 5).to(dtype), torch.rand(lengths).to(dtype)
    assert served_by_cpu(lambda v, g: torch._weight_norm_interface(v, g, dim), v, g) == []


def test_a_weight_normed_layer_trains_without_the_cpu() -> None:
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3))
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def run(x, parameters):
        return torch.func.functional_call(layer, parameters, (x,))

    assert served_by_cpu(run, torch.randn(2, 4), parameters) == []
