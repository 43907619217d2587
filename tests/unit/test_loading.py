"""Whatever the package loads is loaded as data: no pickles that call, no code that comes with a model."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.helpers.source_tree import read_modules

# what a module pickles itself and reads at once, to see whether it can be
OWN = "pickle.loads(pickle.dumps(error))"
# the one reader of pickles, which knows nothing but metadata of shares
UNPICKLERS = {"drmas_pl.models.shard_files"}


def calls(source: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call of an attribute as ``owner.name``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield f"{ast.unparse(node.func.value)}.{node.func.attr}", node


def violations(source: str, module: str = "") -> list[str]:
    """Return the calls that could run what they load."""
    found = []
    for name, call in calls(source):
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        owner, _, function = name.rpartition(".")
        if name == "torch.load" and given.get("weights_only") != "True":
            found.append(name)
        transformers = owner.startswith("Auto") and function in ("from_pretrained", "from_config")
        if transformers and given.get("trust_remote_code") != "False":
            found.append(name)
        if ast.unparse(call) == OWN:
            continue
        if owner in ("pickle", "cloudpickle", "joblib", "dill", "marshal") and function in ("load", "loads"):
            found.append(name)
        if name == "pickle.Unpickler" and module not in UNPICKLERS:
            found.append(name)
        if function == "load" and given.get("allow_pickle", "False") != "False":
            found.append(name)
        if owner == "yaml" and function in ("load", "load_all", "unsafe_load", "full_load"):
            found.append(name)
    return found


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "AutoModel.from_pretrained(f)",
        "AutoTokenizer.from_pretrained(f, trust_remote_code=trust)",
        "pickle.loads(b)",
        "pickle.Unpickler(f).load()",
        "np.load(f, allow_pickle=True)",
        "yaml.load(t, Loader=yaml.Loader)",
    ],
)
def test_what_would_run_is_noticed(source: str) -> None:
    assert violations(source)


def test_everything_is_loaded_as_data() -> None:
    modules = read_modules()
    wrong = {name: found for name, module in modules.items() if (found := violations(module.source, name))}
    assert not wrong
    seen = {name for module in modules.values() for name, _ in calls(module.source)}
    assert {"torch.load", "AutoTokenizer.from_pretrained", "yaml.safe_load"} <= seen
