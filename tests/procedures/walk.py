"""A procedure for tests: random walks, one per part."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pandas as pd
import torch

from fedflow.procedures import Column, End, Findings, Procedure, Row, State, World, register
from fedflow.seeding import generator
from fedflow.settings import option


@register("walk", "Random walk")
class Walk(Procedure):
    """Random walk: every step adds a normal number to the place of each walk.

    Source: Pearson 1905
    """

    length: int = option(5, "steps of the first walk; each further one has one step less", ge=1)
    walks: int = option(3, "parts", ge=1)
    curves: ClassVar = {"place": Column("Place by step")}
    metrics: ClassVar = {"place": Column("Last place"), "mean": Column("Mean place", better="higher")}

    def parts(self, shared: World) -> list[str]:
        return [f"w{k}" for k in range(self.walks)]

    def steps(self, shared: World, part: str) -> int:
        return max(1, self.length - int(part[1:]))

    def start(self, shared: World, part: str) -> State:
        return {"x": torch.zeros(1, dtype=torch.float64)}

    def step(self, shared: World, part: str, state: State, number: int) -> tuple[State, Row]:
        x = state["x"] + generator(shared.seed, "walk", int(part[1:]), number).normal()
        return {"x": x}, {"place": x.item()}

    def finish(self, shared: Any, ends: Mapping[str, End]) -> Findings:
        from fedflow.pictures.drawing import drawing

        summary: dict[str, dict[str, float | None]] = {
            part: {"place": end.state["x"].item(), "mean": end.rows["place"].mean()}
            for part, end in ends.items()
        }
        table = pd.DataFrame({"walk": list(ends), "steps": [len(end.rows) for end in ends.values()]})
        with drawing("places", "Place by step", 2.0, (0.4, 0.4, 0.1, 0.1)) as work:
            for end in ends.values():
                work.axes.plot(end.rows.index, end.rows["place"])
        return Findings(
            summary, {"ends": table}, [work], {part: end.state["x"] for part, end in ends.items()}
        )
