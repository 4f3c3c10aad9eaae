"""torch's exported programs as StableHLO: they compute what the model does, and can be kept."""

import re
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch

import torch_xla
import torch_xla.stablehlo as stablehlo
from torch_xdist.errors import ArgumentError, CheckpointError, NoLoweringError
from torch_xdist.export.bundle import (
    InputLocation,
    StableHLOModelBundle,
    VariableSignature,
    VariableType,
)
from torch_xdist.export.graph_module import StableHLOExportOptions, StableHLOGraphModule
from torch_xdist.export.parameters import numpy_dtype
from torch_xdist.export.programs import (
    exported_program_to_stablehlo,
    flat_arguments,
    save_as_stablehlo,
    save_torch_model_as_stablehlo,
)


def module(function):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    return Module()


def export_of(function, *args, **options):
    program = torch.export.export(module(function), args)
    return exported_program_to_stablehlo(program, StableHLOExportOptions(**options))


def close(results, expected):
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result.cpu(), wanted.detach())


def test_it_computes_what_the_model_does(small, stablehlo):
    model, args, _ = small
    close(stablehlo(*args), model(*args))


def test_it_takes_tensors_of_the_device_and_gives_such(small, stablehlo):
    model, args, _ = small
    results = stablehlo(*(arg.to("xla") for arg in args))
    assert results[0].device.type == "xla"
    close(results, model(*args))


def test_an_array_is_read_at_every_call(small, stablehlo):
    model, args, _ = small
    array = args[0].numpy().copy()
    close(stablehlo(array, None)[:1], model(*args)[:1])
    array[:] = 7
    close(stablehlo(array, None)[:1], model(torch.full((2, 3), 7.0), args[1])[:1])


def test_it_can_be_called_within_a_step_and_its_results_used(small, stablehlo):
    model, args, _ = small
    doubled = stablehlo(*args)[0] * 2
    torch_xla.sync()
    close([doubled], [model(*args)[0] * 2])


def test_a_saved_one_loads_and_computes_the_same(small, stablehlo, tmp_path):
    model, args, _ = small
    stablehlo.save(tmp_path)
    close(StableHLOGraphModule.load(tmp_path)(*args), model(*args))
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {
        "data/layer.weight",
        "data/layer.bias",
        "data/lifted_tensor_0",
        "functions/forward.meta",
        "functions/forward.bytecode",
        "functions/forward.mlir",
    }


def test_a_model_is_saved_by_one_call(small, tmp_path):
    model, args, program = small
    save_torch_model_as_stablehlo(model, args, tmp_path / "model")
    save_as_stablehlo(program, tmp_path / "program")
    for folder in ("model", "program"):
        close(StableHLOGraphModule.load(tmp_path / folder)(*args), model(*args))


def test_without_weights_none_are_written_and_a_call_names_what_is_missing(small, tmp_path):
    _, args, program = small
    save_as_stablehlo(program, tmp_path, StableHLOExportOptions(save_weights=False))
    assert not (tmp_path / "data").exists()
    loaded = StableHLOGraphModule.load(tmp_path)
    with pytest.raises(CheckpointError, match=r"needs the weight '.*', and the bundle has 0 weigh"):
        loaded(*args)


def test_weights_may_be_left_out_of_the_bundle(small):
    options = StableHLOExportOptions(export_weights=False)
    assert exported_program_to_stablehlo(small[2], options)._bundle.state_dict == {}


def test_what_torch_writes_the_meta_of_says_where_each_parameter_comes_from(stablehlo):
    meta = stablehlo._bundle.stablehlo_funcs[0].meta
    assert meta.name == "forward" and re.fullmatch(r"\d+\.\d+\.\d+", meta.stablehlo_version)
    assert InputLocation.input_arg(0) in meta.input_locations
    assert InputLocation.parameter("layer.weight") in meta.input_locations
    assert meta.unused_inputs == [(InputLocation.input_arg(1), VariableSignature([2], "float32"))]
    assert meta.output_signature[0] == VariableSignature([2, 4], "float32")


def test_the_meta_is_the_same_after_it_was_saved(stablehlo, tmp_path):
    stablehlo.save(tmp_path)
    (before,), (after,) = (
        m._bundle.stablehlo_funcs for m in (stablehlo, StableHLOGraphModule.load(tmp_path))
    )
    assert after.meta.input_locations == before.meta.input_locations
    assert after.meta.input_signature == before.meta.input_signature
    assert after.text == before.text and after.bytecode == before.bytecode


def test_the_text_may_be_left_out(small):
    options = StableHLOExportOptions(include_human_readable_text=False)
    without = exported_program_to_stablehlo(small[2], options)
    assert without.get_stablehlo_text() is None
    assert without.get_stablehlo_bytecode("forward").startswith(b"ML")


def test_a_function_it_has_not_is_an_error_that_names_those_it_has(stablehlo):
    with pytest.raises(ArgumentError, match="no function 'backward'; it has forward"):
        stablehlo.get_stablehlo_text("backward")


def test_numbers_are_constants():
    x = torch.arange(6.0).reshape(2, 3)
    made = export_of(lambda x: torch.ops.aten.sub(torch.ops.aten.sub(x, 5), 1), x)
    text = made.get_stablehlo_text()
    assert "dense<5.000000e+00> : tensor<2x3xf32>" in text
    assert not re.search(r"%arg.*tensor<f32>", text)


def test_numbers_may_be_parameters_but_0_and_1():
    x = torch.arange(6.0).reshape(2, 3)
    function = lambda x: torch.ops.aten.sub(torch.ops.aten.sub(x, 5), 1)  # noqa: E731
    made = export_of(function, x, inline_all_constant=False)
    text = made.get_stablehlo_text()
    assert re.search(r"%arg\d: tensor<f32>", text) and "dense<5." not in text
    assert "dense<1.000000e+00>" in text
    close([made(x)], [function(x)])


def test_a_number_before_a_tensor_has_its_shape():
    x = torch.ones(2, 3)
    made = export_of(lambda x: 1.0 - x, x)
    assert re.search(r"stablehlo.constant.* : tensor<2x3xf32>", made.get_stablehlo_text())
    close([made(x)], [1.0 - x])


def test_nested_arguments_and_results_keep_their_structure():
    data = {"x": torch.ones(2), "y": torch.arange(2.0)}
    made = export_of(lambda d: {"sum": d["x"] + d["y"], "both": (d["x"] * d["y"],)}, data)
    found = made(data)
    assert found["sum"].tolist() == [1.0, 2.0] and found["both"][0].tolist() == [0.0, 1.0]


def test_bfloat16_weights_survive_the_disk(tmp_path):
    model, x = torch.nn.Linear(3, 2).bfloat16(), torch.ones(1, 3, dtype=torch.bfloat16)
    save_torch_model_as_stablehlo(model, (x,), tmp_path)
    close([StableHLOGraphModule.load(tmp_path)(x)], [model(x)])


def test_a_tensor_the_model_makes_itself_is_there():
    made = export_of(lambda x: x + torch.arange(3.0) * 2.5, torch.ones(3))
    assert made(torch.ones(3)).tolist() == [1.0, 3.5, 6.0]


def test_what_a_model_writes_into_its_buffers_is_no_result():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x + self.count

    made = exported_program_to_stablehlo(torch.export.export(Counter(), (torch.ones(2),)))
    assert made(torch.ones(2)).tolist() == made(torch.ones(2)).tolist() == [2.0, 2.0]


def test_other_arguments_may_be_given_to_trace_with(small):
    _, args, program = small
    options = StableHLOExportOptions(override_tracing_arguments=(torch.ones(2, 3), args[1]))
    assert [leaf.shape for leaf in flat_arguments(program, options)] == [(2, 3), (2,)]
    assert exported_program_to_stablehlo(program, options)(*args)[0].shape == (2, 4)


def test_an_operator_that_needs_values_is_an_error_that_names_it():
    with pytest.raises(NoLoweringError, match=r"not capturable by Pytorch/XLA: aten\.nonzero"):
        export_of(torch.nonzero, torch.ones(2))


def test_arguments_by_name_are_refused():
    class Scaled(torch.nn.Module):
        def forward(self, x, *, scale):
            return x * scale

    program = torch.export.export(Scaled(), (torch.ones(2),), {"scale": torch.ones(2)})
    with pytest.raises(ArgumentError, match="called with scale by name; export a module"):
        exported_program_to_stablehlo(program)


def test_a_program_without_examples_needs_some():
    program = torch.export.export(module(torch.sin), (torch.ones(2),))
    program._example_inputs = None
    with pytest.raises(ArgumentError, match="or set override_tracing_arguments"):
        flat_arguments(program, StableHLOExportOptions())


def test_a_result_that_is_no_tensor_is_refused():
    with pytest.raises(ArgumentError, match=r"result 1 of the model is 7; a function of StableHLO"):
        export_of(lambda x: (x + 1, 7), torch.ones(2))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no \.meta file; give the folder"):
        StableHLOGraphModule.load(tmp_path)


def test_a_dtype_has_numpys_type():
    assert numpy_dtype(torch.float32) is np.float32 and numpy_dtype(torch.int64) is np.int64
    assert numpy_dtype(torch.bool) is np.bool_ and numpy_dtype(torch.qint8) is None


def edited(folder, name, change):
    (folder / "functions" / name).write_text(change((folder / "functions" / name).read_text()))


def test_files_that_were_changed_are_refused(stablehlo, tmp_path):
    stablehlo.save(tmp_path)
    edited(tmp_path, "forward.meta", lambda text: text.replace('"forward"', '"../forward"'))
    with pytest.raises(
        CheckpointError, match=r"forward.meta does not describe a function 'forward"
    ):
        StableHLOGraphModule.load(tmp_path)
    edited(tmp_path, "forward.meta", lambda text: "{}")
    with pytest.raises(
        CheckpointError, match=r"forward.meta does not describe a function 'forward"
    ):
        StableHLOGraphModule.load(tmp_path)


def test_nothing_in_a_bundle_is_unpickled(stablehlo, tmp_path):
    stablehlo.save(tmp_path)
    with open(tmp_path / "data" / "layer.bias", "wb") as file:
        np.save(file, np.array([print, "harm"], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        StableHLOGraphModule.load(tmp_path)


def test_a_structure_of_results_that_would_import_or_call_something_is_refused(tmp_path):
    made = export_of(lambda x: defaultdict(list, {"x": x * 2}), torch.ones(2))
    assert made(torch.ones(2))["x"].tolist() == [2, 2]
    made.save(tmp_path)
    assert StableHLOGraphModule.load(tmp_path)(torch.ones(2))["none"] == []
    func, constants = made._bundle.stablehlo_funcs[0], made._bundle.additional_constants
    for before, after in (("builtins", "antigravity"), ("list", "exit")):
        spec = func.meta.output_pytree_spec.replace(f'"{before}"', f'"{after}"')
        changed = replace(func, meta=replace(func.meta, output_pytree_spec=spec))
        other = StableHLOGraphModule(StableHLOModelBundle({}, constants, [changed]))
        with pytest.raises(CheckpointError, match=f"its results asks for {after}, and what is in"):
            other(torch.ones(2))


def test_kinds_of_parameters_have_torch_xlas_names():
    assert [kind.value for kind in VariableType] == ["input_arg", "parameter", "constant"]


def test_the_export_leaves_the_users_step_pending(small):
    x = torch.ones(2, device="xla") + 1
    exported_program_to_stablehlo(small[2])
    assert "aten::add" in torch_xla._XLAC._get_xla_tensors_text([x])


def test_an_operator_registered_for_xla_serves_it():
    library = torch.library.Library("export_tests", "DEF")
    library.define("halved(Tensor x) -> Tensor")
    library.impl("halved", torch.empty_like, "Meta")
    library.impl("halved", lambda x: x / 2, "XLA")
    made = export_of(torch.ops.export_tests.halved, torch.ones(2))
    assert made(torch.ones(2)).tolist() == [0.5, 0.5]


def test_checks_that_torch_leaves_beside_a_change_of_dtype_are_passed():
    made = export_of(lambda x: x.ne(1).to(torch.int32), torch.ones(2))
    assert made(torch.tensor([1.0, 2.0])).tolist() == [0, 1]


def test_a_graph_is_recorded_on_the_device_by_its_interpreter():
    class Shifted(torch.nn.Module):
        def forward(self, x):
            return x + torch.arange(3, device="cpu"), x.sum()

    program = torch.export.export(Shifted(), (torch.ones(3),)).run_decompositions({})
    recorder = stablehlo.XLAExportInterpreter(
        program.graph_module, torch.device("xla:0"), set(), None
    )
    shifted, total = recorder.run(torch.full((3,), 2.0).to("xla"))
    assert {shifted.device.type, total.device.type} == {"xla"}
    assert shifted.tolist() == [2, 3, 4] and total.item() == 6


def test_a_bundle_holds_functions_as_bytecode_with_what_they_take():
    module = torch.nn.Linear(2, 3)
    program = torch.export.export(module, (torch.ones(1, 2),))
    bundle = exported_program_to_stablehlo(program)._bundle
    (function,) = bundle.stablehlo_funcs
    assert isinstance(function, stablehlo.StableHLOFunc) and isinstance(function.bytecode, bytes)
    places = function.meta.input_locations
    kinds = stablehlo.VariableType
    assert sorted(p.type_.value for p in places) == ["input_arg", "parameter", "parameter"]
    (given,) = [p for p in places if p.type_ == kinds.INPUT_ARG]
    assert given == stablehlo.InputLocation.input_arg(position=0) and given.position == 0
    assert {p.name for p in places if p.type_ == kinds.PARAMETER} == {"weight", "bias"}
    assert stablehlo.InputLocation.constant(2).type_ == kinds.CONSTANT
    assert function.meta.input_pytree_spec is not None
