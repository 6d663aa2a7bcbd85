"""The public names of ``import fedflow``: a committed list, found where the stub says, renamed in steps."""

import ast
import re
import subprocess
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import fedflow as ff
from fedflow.errors import BadInput
from fedflow.front import names
from fedflow.methods import METHODS
from fedflow.partition import SCHEMES
from fedflow.settings import Settings

LIST = Path(__file__).with_name("names.txt")
HOME = names.STUB.parent
CLASSES = {
    node.name: node for node in ast.parse(names.STUB.read_text()).body if isinstance(node, ast.ClassDef)
}


def public() -> list[str]:
    """Every public name, and the names in public namespaces such as `ff.coresets`."""
    found = [*names.exported(), *CLASSES]
    for name in names.exported():
        if isinstance(namespace := getattr(ff, name), ModuleType):
            found += [f"{name}.{inner}" for inner in namespace.__all__]
    return sorted(found)


def test_public_names_are_those_of_the_committed_list() -> None:
    """A name that is added or removed changes the interface: see docs/api.md."""
    assert public() == LIST.read_text().split()


def test_every_public_name_is_found_where_the_stub_says() -> None:
    for name, (module, inner) in names.exported().items():
        value = getattr(ff, name)
        found = import_module(module)
        assert value is getattr(found, inner, None) or value.__name__ == f"{module}.{inner}", name
        assert not isinstance(value, type) or name == "Training" or value.__name__ == name


def test_all_methods_schemes_and_abilities_are_public() -> None:
    own = {cls.__name__ for cls in METHODS.values() if cls.__module__.startswith("fedflow.")}
    assert own <= names.exported().keys()
    bases = {name: [ast.unparse(base) for base in node.bases] for name, node in CLASSES.items()}
    built_in = {n: c.__name__ for n, c in SCHEMES.items() if c.__module__.startswith("fedflow.")}
    assert bases == {name: [cls, "PartitionParams"] for name, cls in built_in.items()}
    for module in ("fedflow.methods.method", "fedflow.methods.protocols"):
        if find_spec(module):
            inside = vars(import_module(module)).items()
            classes = {n for n, v in inside if isinstance(v, type) and v.__module__ == module}
            assert {n for n in classes if not n.startswith("_")} <= names.exported().keys(), module


def test_no_public_name_hides_a_module() -> None:
    modules = {path.stem for path in HOME.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert {n for n in names.exported() if n in modules} == {"heterogeneity"}  # which is that module


def test_names_are_listed_and_others_are_refused_with_a_guess() -> None:
    assert {*names.exported(), *CLASSES, "__version__"} <= {*dir(ff)}
    with pytest.raises(AttributeError, match=r"fedflow: 'FedPrx' .*did you mean 'FedProx'"):
        _ = ff.FedPrx


def test_a_scheme_does_not_become_another_one() -> None:
    for name, value in (("scheme", "iid"), ("dataset", "mnist"), ("parameters", {"alpha": 1})):
        with pytest.raises(BadInput, match=rf"^fedflow.dirichlet: '{name}' is not accepted"):
            ff.dirichlet(**{name: value})


def test_a_plain_import_reads_no_library() -> None:
    code = "import sys, fedflow; print(*{'torch', 'numpy', 'pandas', 'mlflow'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split()


def test_what_a_plugin_may_use_at_once_does_not_import_methods() -> None:
    """Else it could be half imported when methods import plug-ins."""
    outside = ("fedflow.methods", *names.ABOVE)
    modules = {f"{m}.{n}" if m == "fedflow" else m for m, n in names.exported().values()}
    code = f"import sys, {', '.join(m for m in modules if not m.startswith(outside))}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "fedflow.methods" not in done.stdout.split() and "fedflow.models.flat" in done.stdout


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.1.3", "fedflow.Averager is now fedflow.FedAvg; fedflow 0.2 refuses the old name"),
        ("0.2.0", None),
        ("1.0.0", None),
    ],
)
def test_an_old_name_warns_for_one_minor_version_and_then_names_the_new_one(
    version: str, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(names.RENAMED, "Averager", ("FedAvg", "0.1"))
    monkeypatch.setattr(ff, "__version__", version)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if said is None:
            with pytest.raises(AttributeError, match=r"^fedflow.Averager is now fedflow.FedAvg$"):
                _ = ff.Averager
            assert not caught
            return
        assert ff.Averager is ff.FedAvg
        from fedflow import Averager  # type: ignore[attr-defined]

        assert Averager is ff.FedAvg
    assert {str(one.message) for one in caught} == {said}
    assert {(one.category, one.filename) for one in caught} == {(DeprecationWarning, __file__)}


def test_renamed_names_lead_to_public_ones() -> None:
    assert {new for new, _ in names.RENAMED.values()} <= names.exported().keys() | SCHEMES.keys()
    assert not names.RENAMED.keys() & names.exported().keys()


def test_a_registered_method_is_a_name_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = type("Mine", (ff.FedAvg,), {"__module__": __name__})
    monkeypatch.setitem(METHODS, "mine", mine)
    assert ff.Mine is mine and issubclass(mine, Settings) and "Mine" in dir(ff)


def test_the_page_of_the_interface_lists_every_name_that_is_no_method_or_scheme() -> None:
    page = (HOME.parent / "docs" / "api.md").read_text()
    listed = {*re.findall(r"`ff\.(\w+)`", page.partition("## Names\n")[2].partition("\n## ")[0])}
    methods = {cls.__name__ for cls in METHODS.values()}
    assert listed - {"FedAvg", "dirichlet"} == names.exported().keys() - methods
