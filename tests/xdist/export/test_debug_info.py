"""Text at the operations of a graph."""

import re

import torch

import torch_xla.experimental.xla_mlir_debuginfo as debuginfo
from torch_xdist.export.debug_info import write_mlir_debuginfo
from torch_xdist.export.graph_module import StableHLOExportOptions
from torch_xdist.export.pending import get_stablehlo
from torch_xdist.export.programs import exported_program_to_stablehlo


def test_the_text_is_the_location_of_the_operation():
    x = torch.ones(3).to("xla")
    y = write_mlir_debuginfo(x + x, "MY_ADD")
    z = write_mlir_debuginfo(y * x, 'MY "MUL"')
    text = get_stablehlo([z])
    assert re.search(r'stablehlo.add.+"MY_ADD"', text)
    assert re.search(r"stablehlo.multiply.+MY .+MUL", text)
    assert z.tolist() == [2.0] * 3


def test_gradients_pass_and_elsewhere_it_is_nothing():
    x = torch.ones(2, device="xla", requires_grad=True)
    write_mlir_debuginfo(x * 2, "text").sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    assert write_mlir_debuginfo(torch.ones(2), "text").tolist() == [1.0, 1.0]


def test_what_torch_knows_of_the_nodes_can_be_written():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def forward(self, x):
            return torch.relu(self.layer(x))

    program = torch.export.export(Model(), (torch.ones(1, 4),))
    options = StableHLOExportOptions(export_node_metadata=True)
    text = exported_program_to_stablehlo(program, options).get_stablehlo_text()
    for told in ("stack_trace", "nn_module_stack", "source_fn_stack", "test_debug_info.py"):
        assert told in text


def test_elsewhere_than_on_the_device_a_location_changes_nothing():
    x = torch.ones(2, 3)
    assert debuginfo.write_mlir_debuginfo_tensor(x, "somewhere") is x
    empty = debuginfo.write_mlir_debuginfo_meta(x.half().to("meta"), "somewhere")
    assert (empty.shape, empty.dtype, empty.device.type) == ((2, 3), torch.float16, "meta")
