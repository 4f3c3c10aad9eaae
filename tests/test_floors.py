"""Which file may import which: the floors of docs/architecture.md, read from the source."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Import root of each folder, ground floor first.
FLOORS = {
    "xdist/system": "torch_xdist.system",
    "collectives": "torch_xdist.collectives",
    "xdist": "torch_xdist",
    "loaders": "torch_xdist.loaders",
    "launcher": "torch_xdist.launcher",
    "torch_xla": "torch_xla",
}
# What needs neither torch nor jax, so that the launcher may use it.
LIGHT = {
    "torch_xdist",
    "torch_xdist.platforms",
    "torch_xdist.settings",
    "torch_xdist.world",
    "torch_xdist.progress",
}
# The folders of xdist/, ground first; the modules beside them are the ground.
ROOMS = [
    "releases",
    "ops",
    "core",
    "builder",
    "torch_xla_compat",
    "files",
    "ranks",
    "spmd",
    "kernels",
    "debug",
    "replay",
    "training",
    "dynamo",
    "export",
    "ahead",
    "checkpoint",
    "sharded_checkpoint",
    "doctor",
    "surface",
]
# The folders of xdist/core/, ground first.
CORE = [
    "trace",
    "sharding",
    "disk_cache",
    "kept",
    "rows",
    "early",
    "programs",
    "tapes",
    "run",
    "devices",
    "alias",
    "record",
    "jax_side",
    "composites",
    "unimported",
    "torch_side",
]
HEAVY = {"torch", "jax", "jaxlib"}
# Imports inside functions: optional packages, and the parts a process may not need.
LATE = {
    "xdist/torch_xla_compat/jax_imports.py": {"torchax"},
    "xdist/debug/metrics_files.py": {
        "matplotlib.backends.backend_agg",
        "matplotlib.figure",
        "tensorboardX",
    },
    "xdist/debug/training_log.py": {"tensorboardX"},
    "xdist/debug/native_profiler.py": {"grpc", "torch._dynamo"},
    "xdist/debug/remote_profile.py": {"grpc"},
    "xdist/world.py": {"torch_xdist.collectives"},
    "xdist/ahead/environment.py": {"torch_xdist.ahead.rehearsal"},
    "xdist/dynamo/flex_attention.py": {"torch._dynamo"},
    "xdist/ops/splash.py": {"jax.experimental.pallas.ops.tpu.splash_attention"},
    "loaders/sharing.py": {"torch_xdist.collectives"},
    "xdist/ranks/c10d/device_mesh.py": {"torch_xdist.ranks.c10d.dtensors"},
}


def module_name(file: Path) -> str:
    relative = file.relative_to(ROOT).with_suffix("")
    folder = max((f for f in FLOORS if relative.is_relative_to(f)), key=len)
    parts = [p for p in relative.relative_to(folder).parts if p != "__init__"]
    return ".".join([FLOORS[folder], *parts])


FILES = {
    module_name(file): file
    for folder in FLOORS
    for file in sorted((ROOT / folder).rglob("*.py"))
    if "__pycache__" not in file.parts
}


def imports(node: ast.AST) -> set[str]:
    """The modules a statement imports; names imported from a package count as modules if files."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        found = {f"{node.module}.{alias.name}" for alias in node.names}
        return {name if name in FILES else node.module for name in found}
    return set()


@functools.cache
def parsed(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text())


@functools.cache
def top_level(module: str) -> set[str]:
    return {name for node in parsed(module).body for name in imports(node)}


def everywhere(module: str) -> set[str]:
    return {name for node in ast.walk(parsed(module)) for name in imports(node)}


def floor(module: str) -> int:
    roots = list(FLOORS.values())
    fitting = [r for r in roots if module == r or module.startswith(r + ".")]
    return roots.index(max(fitting, key=len))


def of_floor(root: str) -> list[str]:
    """The modules of the floor with this import root."""
    return [m for m in FILES if floor(m) == list(FLOORS.values()).index(root)]


@pytest.mark.parametrize("module", FILES)
def test_a_file_imports_only_its_own_floor_and_lower_ones(module):
    ours = {name for name in top_level(module) if name in FILES}
    above = {name for name in ours if floor(name) > floor(module)} - LIGHT
    assert not above, f"{FILES[module].relative_to(ROOT)} imports {sorted(above)} from above"


def room(module: str) -> int:
    """Where a module of xdist/ stands among its folders; 0 for those beside the folders."""
    second = module.split(".")[1:2]
    return ROOMS.index(second[0]) + 1 if second and second[0] in ROOMS else 0


@pytest.mark.parametrize("module", of_floor("torch_xdist"))
def test_a_file_of_the_device_imports_only_its_own_folder_and_lower_ones(module):
    ours = top_level(module) & set(of_floor("torch_xdist"))
    assert {name for name in ours if room(name) > room(module)} == set()


def core_room(module: str) -> int:
    """Where a module of xdist/core/ stands among its folders."""
    return CORE.index(module.split(".")[2])


OF_CORE = [m for m in FILES if m.startswith("torch_xdist.core.")]


@pytest.mark.parametrize("module", [m for m in OF_CORE if m.count(".") > 2])
def test_a_file_of_the_core_imports_only_its_own_folder_and_lower_ones(module):
    ours = {name for name in top_level(module) if name.startswith("torch_xdist.core.")}
    assert {name for name in ours if core_room(name) > core_room(module)} == set()


def test_every_folder_of_the_core_has_its_place():
    folders = {file.parent.name for file in (ROOT / "xdist/core").glob("*/__init__.py")}
    assert folders == set(CORE)


def test_a_folder_holds_no_more_files_than_a_newcomer_can_tell_apart():
    rooms = [ROOT / "xdist/core" / name for name in CORE]
    rooms += [
        f.parent for top in ("launcher", "collectives") for f in (ROOT / top).glob("*/__init__.py")
    ]
    crowded = {room.name: len(list(room.glob("*.py"))) - 1 for room in rooms}
    assert {name: n for name, n in crowded.items() if n > 15} == {}


def test_every_folder_of_the_device_has_its_place():
    folders = {file.parent.name for file in (ROOT / "xdist").glob("*/__init__.py")}
    assert folders == {"system", *ROOMS}


def test_no_imports_run_in_a_circle():
    graph = {m: {n for n in top_level(m) if n in FILES and n != m} for m in FILES}
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in sorted(graph[module]):
                visit(other, [*path, module])
            done.add(module)

    for module in FILES:
        visit(module, [])


@pytest.mark.parametrize("module", of_floor("torch_xdist.collectives"))
def test_collectives_know_jax_but_not_torch(module):
    assert not {name.split(".")[0] for name in everywhere(module)} & {"torch"}


@pytest.mark.parametrize("module", of_floor("torch_xdist.system"))
def test_the_ground_needs_the_standard_library_alone(module):
    roots = {name.split(".")[0] for name in everywhere(module)}
    assert roots <= {*sys.stdlib_module_names, "torch_xdist"}


@pytest.mark.parametrize("module", [m for m in FILES if m.startswith("torch_xdist.launcher")])
def test_the_launcher_loads_neither_torch_nor_jax(module):
    loaded = top_level(module)
    assert not {name.split(".")[0] for name in loaded} & HEAVY
    below = {n for n in loaded if n in FILES and not n.startswith("torch_xdist.launcher")}
    assert below <= LIGHT | set(of_floor("torch_xdist.system"))


# The folders of launcher/, ground first; `control` is what stands between the hosts and the head.
PROCESSES = [
    "facts",
    "named_option",
    "tls",
    "sealed",
    "replay",
    "connection",
    "stream_loop",
    "pipe_stream",
    "resuming",
    "control",
    "log_ends",
    "digest",
    "shipping",
    "on_host",
    "backends",
    "node",
    "on_ray",
    "attempts",
    "viewing",
    "head",
    "preflight",
    "k8s",
    "rehearsal",
    "ways_in",
    "torch_xla_names",
]


@pytest.mark.parametrize("module", of_floor("torch_xdist.launcher"))
def test_a_file_of_the_launcher_imports_only_its_own_folder_and_lower_ones(module):
    def stands(name: str) -> int:
        folder = [*name.split("."), ""][2]
        return PROCESSES.index(folder) if folder in PROCESSES else len(PROCESSES)

    ours = everywhere(module) & set(of_floor("torch_xdist.launcher"))
    assert {name for name in ours if stands(name) > stands(module)} == set()


@pytest.mark.parametrize("module", [m for m in FILES if not m.startswith("torch_xdist.launcher")])
def test_imports_stand_at_the_top_of_the_file(module):
    tree = parsed(module)
    late = {
        name
        for scope in ast.walk(tree)
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(scope)
        for name in imports(node)
    }
    allowed = LATE.get(str(FILES[module].relative_to(ROOT)), set())
    assert {n for n in late if not any(n.startswith(a) for a in allowed)} == set()


def test_no_cycle_is_hidden_by_type_checking():
    # The launcher may name types of modules it does not load.
    files = {m: f for m, f in FILES.items() if not m.startswith("torch_xdist.launcher")}
    assert [m for m, file in files.items() if "TYPE_CHECKING" in file.read_text()] == []


@pytest.mark.parametrize("module", of_floor("torch_xla"))
def test_the_face_holds_names_and_no_logic(module):
    for node in parsed(module).body:
        is_doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.Call)
        # A face whose functions other libraries' tests replace is the module itself.
        is_names = isinstance(node, ast.Assign) and (
            ast.unparse(node.targets[0]) in ("__all__", "sys.modules[__name__]")
        )
        assert is_doc or is_names or isinstance(node, ast.Import | ast.ImportFrom), ast.unparse(
            node
        )


def test_importing_torch_xdist_is_light():
    code = "import sys, torch_xdist; assert not {'torch', 'jax', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def reads_a_variable(node: ast.AST) -> bool:
    """os.getenv(...), os.environ["NAME"], os.environ.get("NAME"): not whole copies for children."""
    if isinstance(node, ast.Subscript):
        named = isinstance(node.slice, ast.Constant) and isinstance(node.ctx, ast.Load)
        return named and ast.unparse(node.value) == "os.environ"
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        constant = bool(node.args) and isinstance(node.args[0], ast.Constant)
        return called == "os.getenv" or (called == "os.environ.get" and constant)
    return False


@pytest.mark.parametrize("folder", ["xdist", "launcher", "loaders", "collectives"])
def test_the_environment_is_read_in_one_file(folder):
    readers = {
        str(file.relative_to(ROOT))
        for module, file in FILES.items()
        if file.relative_to(ROOT).parts[0] == folder
        for node in ast.walk(parsed(module))
        if reads_a_variable(node)
    }
    assert readers <= {f"{folder}/settings.py", "xdist/world.py"}
