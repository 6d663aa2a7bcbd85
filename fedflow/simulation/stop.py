"""`run.stop_at`: a run ends when a metric reaches a value."""

from collections.abc import Mapping

from fedflow.errors import BadInput, unknown_name
from fedflow.metrics.table import METRICS, TIME, metric_of
from fedflow.metrics.target import first_reaching
from fedflow.settings import Settings, option

METRICS_OF_ROUNDS = [m.name for m in METRICS.values() if m.rounds and m.better and m.unit is not TIME]


class StopAt(Settings):
    """The metric and value at which a run ends before its last round."""

    section = "run.stop_at"
    metric: str = option(doc="a metric that evaluations of the run measure, such as local_accuracy")
    value: float = option(
        doc="the value to reach: from below if the metric is better higher, else from above"
    )

    def validate(self) -> None:
        metric = metric_of(self.metric)
        if metric is None or metric.name not in METRICS_OF_ROUNDS:
            raise unknown_name(f"{self.section}.metric", self.metric, METRICS_OF_ROUNDS)
        if not metric.unit.least <= self.value <= metric.unit.most:
            accepted = f"a number from {metric.unit.least:g} to {metric.unit.most:g}"
            raise BadInput(f"{self.section}.value", self.value, accepted)

    def reached(self, values: Mapping[str, float]) -> bool:
        """True if the metric among the ``values`` of an evaluation reaches the value."""
        return first_reaching(self.metric, [values.get(self.metric)], self.value) is not None

    def need(self, measured: Mapping[str, float | None]) -> None:
        """Raise `BadInput` unless the metric was ``measured``; the loss of a diverged model is None."""
        names = [name for name, value in measured.items() if value is not None or name.endswith("loss")]
        if self.metric not in names:
            accepted = [name for name in names if (m := metric_of(name)) and m.name in METRICS_OF_ROUNDS]
            raise unknown_name(f"{self.section}.metric", self.metric, accepted)
