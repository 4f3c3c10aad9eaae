"""What every file of the repository keeps to."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRACKED = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\n")
    if name and (ROOT / name).is_file()
]
TEXT = [f for f in TRACKED if f.suffix in {".py", ".md", ".toml", ".txt", ".sh", ""}]
PYTHON = [f for f in TRACKED if f.suffix == ".py"]
SOURCE = [f for f in PYTHON if f.relative_to(ROOT).parts[0] not in {"tests", "scripts"}]
MAX_LINES = 440
MAX_TEST_LINES = 500
MAX_FUNCTION_LINES = 70
# Every operator passes through it, and a frame costs more than all else it does.
LONGER = {"dispatch": 80}
# Spelled in parts, so that this file does not contain what it forbids.
MACHINE_PATHS = re.compile("/" + "work/|/" + "root/|bash" + "_jobs|/" + "home/[a-z]")
REGISTRIES = re.compile("py" + "pi\\.org|files\\.python" + "hosted|index" + "-url")
VAGUE = {"utils", "helpers", "common", "misc", "base"}


def ids(files):
    return [str(f.relative_to(ROOT)) for f in files]


@pytest.mark.parametrize("file", TEXT, ids=ids(TEXT))
def test_no_merge_was_left_half_done(file):
    assert not re.search(r"^(<{7} |={7}$|>{7} )", file.read_text(), re.MULTILINE)


@pytest.mark.parametrize("file", TEXT, ids=ids(TEXT))
def test_no_machine_path_and_no_registry_is_named(file):
    text = file.read_text()
    assert not MACHINE_PATHS.search(text)
    assert not REGISTRIES.search(text)


@pytest.mark.parametrize("file", PYTHON, ids=ids(PYTHON))
def test_a_file_is_short_and_says_what_it_is_about(file):
    text = file.read_text()
    assert len(text.splitlines()) <= (MAX_LINES if file in SOURCE else MAX_TEST_LINES)
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "no module docstring"


@pytest.mark.parametrize("file", SOURCE, ids=ids(SOURCE))
def test_functions_are_short(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef):
            body = node.end_lineno - node.body[0].lineno + 1
            limit = LONGER.get(node.name, MAX_FUNCTION_LINES)
            assert body <= limit, f"{node.name} has {body} lines"


def test_no_file_has_a_name_that_says_nothing():
    # torch_xla's own import paths, which its users write: the face must have them too. They hold
    # nothing but imports of what is named after its subject.
    named = {str(f.relative_to(ROOT)) for f in SOURCE if f.stem in VAGUE}
    assert named <= {
        "torch_xla/_internal/utils.py",
        "torch_xla/utils/utils.py",
        "torch_xla/_torch_xla_py/utils.py",
        "torch_xla/distributed/fsdp/utils.py",
    }


def test_scripts_can_be_executed():
    for name in ("scripts/quickstart", "scripts/test", "scripts/check", ".ci/run"):
        assert (ROOT / name).stat().st_mode & 0o111, name


PAGES = [f for f in TRACKED if f.suffix == ".md"]


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_what_a_page_links_to_is_there(page):
    dead = []
    for name, anchor in re.findall(r"\]\(([^)\s:#]*)(#[^)\s]+)?\)", page.read_text()):
        target = (page.parent / name).resolve() if name else page
        known = target.exists() and (not anchor or anchor[1:] in _anchors(target))
        dead += [] if known else [name + anchor]
    assert not dead


def _anchors(page):
    """Of the headings of a page, as code hosts make them."""
    lines = page.read_text().splitlines()
    headings = [re.sub(r"^#+ |`", "", line).lower() for line in lines if re.match("#+ ", line)]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def test_every_module_is_linked_where_it_is_imported_from():
    """src/ holds the tree as Python, editors and the wheel see it: links, nothing else."""
    expected = {"torch_xla": "../torch_xla", "torch_xla_py": "../torch_xla/_torch_xla_py"}
    folders = [*("launcher", "collectives", "loaders"), *_modules_of_xdist()]
    expected |= {f"torch_xdist/{Path(name).name}": f"../../{name}" for name in folders}
    src = ROOT / "src"
    found = {str(p.relative_to(src)): str(p.readlink()) for p in src.rglob("*") if p.is_symlink()}
    assert found == expected, "link a new module: ln -s ../../xdist/NAME src/torch_xdist/NAME"


def _modules_of_xdist():
    entries = (ROOT / "xdist").iterdir()
    return [
        f"xdist/{entry.name}"
        for entry in entries
        if entry.suffix == ".py" or (entry / "__init__.py").exists()
    ]
