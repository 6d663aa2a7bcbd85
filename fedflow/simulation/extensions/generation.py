"""Images that a server generates: kept at every evaluation, measured, and classified."""

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fedflow.data.generated import FILE, LastImages, save_generated
from fedflow.errors import FedflowError
from fedflow.methods.method import Message
from fedflow.methods.protocols import Generative, Images
from fedflow.metrics.generation import Gaussian, nearest, neighbors
from fedflow.simulation.evaluation import Scores
from fedflow.simulation.extensions.extension import Run, RunExtension
from fedflow.simulation.extensions.real_images import NEIGHBORS, RealImages, check_generative
from fedflow.simulation.outcome import RoundReport, RunFindings
from fedflow.simulation.predict import predict

MOST_BYTES = 64 << 20  # of the images that a run keeps: later ones replace the earliest
CLOSEST = 10  # images of the last round that are kept with the training image nearest to them


class Generated(NamedTuple):
    """The server's images before a round, and the model [D] that was trained on them."""

    images: Images
    model: Tensor


class Generation(RunExtension):
    """The images of one run, made once per evaluation and ``kept`` as pixels 0..255."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.method = cast(Generative[Any], run.job.method)
        self.kept: dict[int, Images] = {}
        self._made: tuple[int, Generated] | None = None

    @classmethod
    def wanted(cls, run: Run) -> bool:
        return isinstance(run.job.method, Generative)

    def check(self) -> None:
        check_generative(self.run.job.method.name, self.run.federation)

    def begin(self, server: Any) -> Any:
        return self.method.begin(self.run.round(0, "first images"), server)

    def packed(self) -> Mapping[str, Tensor]:
        images = {f"images/{t}": images.x for t, images in self.kept.items()}
        return images | {f"labels/{t}": images.y.clone() for t, images in self.kept.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        rounds = [name.removeprefix("images/") for name in tensors if name.startswith("images/")]
        self.kept = {
            t: Images(tensors[f"images/{t}"], tensors[f"labels/{t}"]) for t in sorted(map(int, rounds))
        }

    def serve(self, t: int) -> Message:
        return {"model": self.before(t).model}

    def before(self, t: int) -> Generated:
        """The images before round ``t``, and their model."""
        if self._made is None or self._made[0] != t:
            images = self.method.images(self.run.round(t, "generated", t), self.run.state.server)
            model = self.method.classify(self.run.round(t, "classifier", t), images)
            self._made = t, Generated(images, model)
        return self._made[1]

    @cached_property
    def real(self) -> RealImages:
        labels = next(iter(self.kept.values())).y
        return RealImages(self.run.federation, self.run.job.seed, labels)

    def evaluate(self, report: RoundReport, scores: Scores) -> Mapping[str, float | None]:
        """Keep the images after this round, with 256 levels; returns their measures."""
        kept, after = self.kept, report.round
        x = self.before(after + 1).images.x
        if not (x.min() >= 0 and x.max() <= 1):  # also not if some are NaN
            span = f"pixels from {float(x.min()):.3g} to {float(x.max()):.3g}, not in [0, 1]"
            raise FedflowError(f"{self.run.job.method.name}: after round {after}, its images have {span}")
        kept[after] = Images((x * 255).round().byte().cpu(), self.before(after + 1).images.y.cpu())
        while len(kept) > 1 and sum(images.x.nbytes for images in kept.values()) > MOST_BYTES:
            del kept[min(kept)]
        ended = after == self.run.settings.rounds
        return self._measured(after) | (self._measured_once() if ended else {})

    @property
    def _after(self) -> int:
        """The last evaluated round so far."""
        return max(self.kept)

    def _measured(self, after: int) -> dict[str, float]:
        """The measures of the images after a round, as they are kept."""
        real, x = self.real, self._kept(after)
        features = real.features(x)
        k = min(NEIGHBORS, len(x) - 1, len(real.test_features) - 1)
        distance = nearest(x.flatten(1), real.train)[1]
        return {
            "fid": Gaussian.of(features).distance(real.gaussian),
            **neighbors(real.test_features, features, k, real.radii(k))._asdict(),
            "nearest_train": float(distance.mean()),
            "nearest_test": float(nearest(x.flatten(1), real.test)[1].mean()),
            "near_copies": float((distance < real.close).double().mean()),
        }

    def _measured_once(self) -> dict[str, float]:
        """References for the measures of the last round, with a classifier trained on real images."""
        run, (test, rows) = self.run, self.run.federation.complete
        w = self.method.classify(run.round(self._after + 1, "real classifier"), self.real.drawn)
        hits = predict(run.federation.model, w, test, rows).hits
        return {
            "fid_floor": self.real.floor,
            "real_accuracy": float(hits.mean()),
            "nearest_real": float(self.real.reference.mean()),
            "lowest_class": float(self._by_class().nan_to_num(torch.inf).min()),
        }

    def finish(self, scores: Scores) -> RunFindings:
        early = self._after < self.run.settings.rounds
        metrics = self._measured_once() if early else {}
        return RunFindings(metrics, files={FILE: partial(save_generated, rounds=self.kept, last=self.last())})

    def last(self) -> LastImages:
        """The comparison with real images after the last round."""
        x, real, federation = self._kept(self._after), self.real, self.run.federation
        row, distance = nearest(x.flatten(1), real.train)
        order = distance.argsort(stable=True)[:CLOSEST]
        pixels = federation.train.inputs(real.train_rows[row[order]]) * 255
        closest = order.cpu(), pixels.round().byte().cpu(), distance[order].cpu()
        return LastImages(*closest, self._by_class())

    def _by_class(self) -> Tensor:
        """The accuracy [K] of the served model on the complete test set, by class; NaN without samples."""
        federation, (test, rows) = self.run.federation, self.run.federation.complete
        model = self.before(self._after + 1).model
        hits = torch.from_numpy(predict(federation.model, model, test, rows).hits)
        labels, classes = test.y.cpu()[torch.from_numpy(rows)], federation.model.classes
        return torch.bincount(labels, hits, classes) / torch.bincount(labels, minlength=classes)

    def _kept(self, after: int) -> Tensor:
        """The pixels [N, C, H, W] of the images after a round, in [0, 1], on the device of the data."""
        return self.kept[after].x.to(self.run.federation.train.device) / 255
