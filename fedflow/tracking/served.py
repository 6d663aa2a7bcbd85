"""The code by which MLflow serves a recorded model ("models from code": nothing is unpickled).

MLflow keeps a copy of this file with every model and runs it to load the model.
"""

import json
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import torch
from mlflow.pyfunc import PythonModel, PythonModelContext

from fedflow.errors import unknown_name
from fedflow.tracking.models import rebuild


class ServedModel(PythonModel):
    """A global or cluster model, or one personal model per client."""

    def load_context(self, context: PythonModelContext) -> None:
        self.card = json.loads(Path(context.artifacts["model"]).read_text())
        self.weights = Path(context.artifacts["weights"])
        self.modules: dict[int, torch.nn.Module] = {}

    @torch.no_grad()
    def predict(
        self, context: PythonModelContext, model_input: np.ndarray, params: dict[str, Any] | None = None
    ) -> np.ndarray:
        """Outputs [n, K] for uint8 images [n, C, H, W] (or floats already scaled to [0, 1]).

        Without one mean and std for all images, inputs must be as in training: normalised, or tokens.

        ``params={"client": k}`` chooses among personal models; `BadInput` if client k has none.
        """
        ids = self.card["ids"]
        chosen = (params or {}).get("client", ids[0]) if self.card["serves"] == "personal" else ids[0]
        if chosen not in ids:
            raise unknown_name("client", chosen, map(str, ids))
        row = ids.index(chosen)
        if row not in self.modules:
            self.modules[row] = rebuild(self.card, self.weights, row)
        x = torch.from_numpy(np.ascontiguousarray(model_input))
        if self.card["mean"] is None:
            return self.modules[row](x.to(getattr(torch, self.card["input_type"]))).numpy()
        x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
        mean, std = (torch.tensor(self.card[name]).view(-1, 1, 1) for name in ("mean", "std"))
        return self.modules[row]((x - mean) / std).numpy()


mlflow.models.set_model(ServedModel())
