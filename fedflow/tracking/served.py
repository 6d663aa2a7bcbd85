"""The code with which MLflow serves a recorded model ("models from code": nothing is unpickled).

MLflow keeps a copy of this file with every model and runs it to load the model. The code of the networks is
imported from the model, so that fedflow need not be installed.
"""

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import torch
from mlflow.pyfunc import PythonModel, PythonModelContext


class ServedModel(PythonModel):
    """A global or cluster model, or one personal model per client."""

    def load_context(self, context: PythonModelContext) -> None:
        self.card = json.loads(Path(context.artifacts["model"]).read_text())
        self.weights = Path(context.artifacts["weights"])
        self.modules: dict[int, torch.nn.Module] = {}
        self.code = self._code(Path(context.artifacts["code"]))

    def _code(self, archive: Path) -> str:
        """Make the code of the networks importable; returns the name of its package."""
        if missing := [name for name in self.card.get("libraries", ()) if find_spec(name) is None]:
            name = self.card["architecture"]
            raise ImportError(f"the network {name} needs other packages: pip install {' '.join(missing)}")
        if package := self.card.get("package"):  # of a plug-in
            try:
                import_module("fedflow.methods")  # which imports the plug-ins
                import_module(package)
            except ImportError as error:
                need = f"the network {self.card['architecture']} is part of the package {package}, which the "
                need += "model does not hold: install that package and fedflow where the model is loaded"
                raise ImportError(f"{need} ({error})") from error
            return "fedflow"
        if str(archive) not in sys.path:
            sys.path.append(str(archive))
        import_module(f"{archive.stem}.models.recorded")
        return archive.stem

    @torch.no_grad()
    def predict(
        self, context: PythonModelContext, model_input: np.ndarray, params: dict[str, Any] | None = None
    ) -> np.ndarray:
        """Outputs [n, K] for uint8 images [n, C, H, W] (or floats already scaled to [0, 1]).

        If the card has no mean and std, inputs must be as in training: normalized, or tokens.
        ``params={"client": k}`` chooses among personal models; `BadInput` if client k has none. Outputs are
        logits, or with ``params={"probabilities": True}`` the probability of every class or label.
        """
        ids = self.card["ids"]
        chosen = (params or {}).get("client", ids[0]) if self.card["serves"] == "personal" else ids[0]
        if chosen not in ids:
            # The error class that a program with fedflow can catch.
            errors = sys.modules.get("fedflow.errors") or import_module(f"{self.code}.errors")
            raise errors.unknown_name("client", chosen, map(str, ids))
        row = ids.index(chosen)
        if row not in self.modules:
            recorded = import_module(f"{self.code}.models.recorded")
            self.modules[row] = recorded.rebuild(self.card, self.weights, row)
        x = torch.from_numpy(np.ascontiguousarray(model_input))
        if self.card["mean"] is None:
            x = x.to(getattr(torch, self.card["input_type"]))
        else:
            x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
            mean, std = (torch.tensor(self.card[name]).view(-1, 1, 1) for name in ("mean", "std"))
            x = (x - mean) / std
        outputs = self.modules[row](x)
        if (params or {}).get("probabilities"):
            outputs = outputs.sigmoid() if self.card["several"] else outputs.softmax(-1)
        return outputs.numpy()


mlflow.models.set_model(ServedModel())
