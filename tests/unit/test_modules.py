"""The rules that hold the modules of Python apart: who makes files, who imports what."""

import ast
import re
from pathlib import Path

import pytest
from test_architecture import MODULES, PACKAGE


@pytest.mark.parametrize("file", MODULES, ids=lambda f: f.name)
def test_no_function_rebinds_a_global(file):
    """State that changes is an attribute, of an object or of a class."""
    assert not [node for node in ast.walk(ast.parse(file.read_text())) if type(node) is ast.Global]


# What makes files: functions, and methods of any object; open() with such a mode is one, too.
MAKES_FILES = {
    *(
        "os.mkfifo",
        "os.mknod",
        "os.link",
        "os.symlink",
        "os.creat",
        "sqlite3.connect",
        "shelve.open",
    ),
    *("tempfile.mkstemp", "tempfile.mktemp", "tempfile.NamedTemporaryFile", "np.save", "np.savez"),
    *(
        "shutil.copy",
        "shutil.copy2",
        "shutil.copyfile",
        "shutil.copytree",
        "codecs.open",
        "io.open",
    ),
}
METHODS = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "tofile"}
DEVICES = (["os.devnull"], ["'/dev/tty'"])


def makes_a_file(call: ast.Call) -> bool:
    """Tell whether the call makes a file, or may empty one."""
    name, of = ast.unparse(call.func), [ast.unparse(each) for each in call.args]
    if name in ("open", "io.open") or (name.endswith(".open") and name != "os.open"):
        modes = [*of[name == "open" : 1 + (name == "open")]]
        modes += [ast.unparse(k.value) for k in call.keywords if k.arg == "mode"]
        written = any(re.fullmatch(r"'[rwxabt+U]*[wxa+][rwxabt+U]*'", mode) for mode in modes)
        unknown = name == "open" and any(not mode.startswith("'") for mode in modes)
        return (written or unknown) and of[:1] not in DEVICES
    if name == "os.open":
        return "O_CREAT" in ast.unparse(call) or "O_TRUNC" in ast.unparse(call)
    return name in MAKES_FILES or name.rpartition(".")[2] in METHODS and "files" not in name


def test_files_are_made_by_one_module():
    """Only it refuses what another user may have put where the file is to be."""
    calls = [
        (module, node)
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Call) and makes_a_file(node)
    ]
    assert {module.name for module, _ in calls} == {"files.py"}, [
        f"{module.name}:{node.lineno}" for module, node in calls
    ]


@pytest.mark.parametrize(
    "code, expected",
    [
        ("open(a, 'w')", True),
        ("open(a, mode='ab')", True),
        ("open(a, self._mode)", True),
        ("open(a, 'r+b')", True),
        ("Path(a).open('wb')", True),
        ("Path(a).write_text('')", True),
        ("os.open(a, os.O_WRONLY | os.O_CREAT)", True),
        ("tempfile.mkstemp()", True),
        ("open(a)", False),
        ("open(a, 'rb')", False),
        ("open(os.devnull, 'w')", False),
        ("os.open(a, os.O_WRONLY | os.O_NONBLOCK)", False),
        ("world.open(ranks)", False),
    ],
)
def test_the_search_for_made_files_finds_them(code, expected):
    assert makes_a_file(ast.parse(code).body[0].value) == expected


# What only some modules may import, and which.
IMPORTERS = {
    # Describes them to cffi; loads and checks the one for an MPI; loads the core; looks for it.
    r"hvdlite\._hvdlite_|from hvdlite import .*_hvdlite": {
        "_build.py", "mpi.py", "native.py", "probe.py"
    },
    # It has the words for an MPI that is missing; the probe of Slurm imports no hvdlite.
    r"from mpi4py import": {"mpi.py", "slurm.py"},
    r"hvdlite\.core(?:\.| import )mpi\b": {  # all else knows the World of the job
        "mpi_world.py", "mpi_life.py", "probe.py"
    },
}  # fmt: skip


@pytest.mark.parametrize("pattern, importers", IMPORTERS.items(), ids=IMPORTERS)
def test_modules_with_few_importers(pattern, importers):
    assert {m.name for m in MODULES if re.search(pattern, m.read_text())} == importers


# Where each framework may be imported: Keras trains on some of the others.
FRAMEWORKS = {
    "mxnet": {"mxnet", "bench"},
    "torch": {"torch", "backend", "keras"},  # backend: of torch
    "tensorflow": {"tensorflow", "keras"},
    "jax": {"jax", "keras"},
    "keras": {"keras", "tensorflow"},
    "xgboost": {"xgboost"},
}


@pytest.mark.parametrize("framework, folders", FRAMEWORKS.items(), ids=FRAMEWORKS)
def test_a_framework_is_imported_in_its_own_folder_only(framework, folders):
    """Modules outside of it import the folder only when asked: `import hvdlite` needs none."""
    importing = rf"^(?:\s*(?:import|from) {framework}|(?:import|from) hvdlite\.{framework})\b"
    users = {m.parent.name for m in MODULES if re.search(importing, m.read_text(), re.M)}
    assert users and users <= folders


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imported_by(file: Path) -> set:
    """The modules of the package that a module imports, at its top or in a function."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def test_no_modules_import_each_other_in_a_circle():
    """But for the package itself, which finds every public name when it is first used."""
    every = {module_name(m): imported_by(m) for m in MODULES}
    left = {name for name in every if name != "hvdlite"}
    while left:
        lowest = {name for name in left if not (left - {name}).intersection(every[name])}
        assert lowest, f"a circle among {sorted(left)}"
        left -= lowest


# The packages of hvdlite, and the modules of its own, lowest first. What stands on a lower line may
# be imported; hvdlite itself finds every public name when it is first used.
FLOORS = [
    {"_version"},
    {"core"},
    {"cli", "numpy", "patches"},
    {"monitor"},
    {"exit", "launch"},
    {"bootstrap"},
    {"membership"},
    {"job"},
    {"elastic", "training", "bench"},
    {"jax", "mxnet", "torch", "xgboost", "lightgbm"},
    {"keras"},
    {"tensorflow", "horovod"},
    {"as_horovod", "__main__", "_build"},
]
# The only imports that run back up, and why.
UPWARD = {
    ("hvdlite.patches.kvstore_hooks", "hvdlite.mxnet"),  # called by MXNet, as it makes a store
    ("hvdlite.keras.averaging", "hvdlite.tensorflow"),  # where TensorFlow is Keras's backend
    (
        "hvdlite.launch.job_site.sitecustomize",
        "hvdlite.as_horovod",
    ),  # runs in a rank, as Python starts
}


def test_packages_import_only_what_is_below_them():
    floor_of = {f"hvdlite.{name}": number for number, floor in enumerate(FLOORS) for name in floor}
    upward = set()
    for file in MODULES:
        module = module_name(file)
        own = ".".join(module.split(".")[:2])
        others = {".".join(name.split(".")[:2]) for name in imported_by(file)} - {own}
        for other in others & set(floor_of) if own != "hvdlite" else ():
            if floor_of[other] >= floor_of[own]:
                upward.add((module, other))
    assert upward == UPWARD
