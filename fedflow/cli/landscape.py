"""``landscape``: the loss around and between the models of finished runs."""

from pathlib import Path
from typing import Annotated

import typer

from fedflow.cli.options import Root
from fedflow.cli.printing import print_line
from fedflow.errors import BadInput
from fedflow.naming import counted


def landscape(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Finished runs: PARTITION/METHOD/SEED, followed by :CLIENT if the "
            "method serves a model per cluster or client."
        ),
    ],
    between: Annotated[
        bool,
        typer.Option("--between", help="Show the segment through two models, or the plane through three."),
    ] = False,
    own: Annotated[
        bool, typer.Option("--own", help="Test on the client's own test samples, not on the whole test set.")
    ] = False,
    points: Annotated[int, typer.Option(help="Points along each axis.", min=3)] = 21,
    radius: Annotated[
        float | None,
        typer.Option(
            help="Half the width of a plane around a model, relative to the norms of its filters; default: 1."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(help="Test on at most this many samples; 0: on all.", min=0)] = 1000,
    rho: Annotated[float, typer.Option(help="Relative distance at which sharpness is measured.")] = 0.2,
    directions: Annotated[int, typer.Option(help="Random directions for sharpness.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="Seed of directions and test samples.", min=0)] = 0,
    name: Annotated[
        str | None, typer.Option(help="Name of the files in landscapes; default: from the runs.")
    ] = None,
    root: Root = Path(),
) -> None:
    """Draw the test loss around the models of finished runs, side by side, or between them.

    Example: `fedflow landscape mnist5k-dir/fedavg/0 mnist5k-dir/ditto/0:7`. Models are read from MLflow;
    nothing is trained. Sharpness is the rise of the loss at distance rho; a flat minimum has a small one.
    """
    from fedflow.stages.landscape import Grid, draw_landscape

    if between and radius is not None:
        raise BadInput("--radius", radius, "no radius with --between, as the models are the corners")
    radius = 1.0 if radius is None else radius
    grid = Grid(points=points, radius=radius, samples=samples, rho=rho, directions=directions, seed=seed)
    measured, files = draw_landscape(runs, grid, between, own, name, root)
    for model in measured:
        spread = f" ± {model.spread:.2g}" if directions > 1 else ""
        print_line(
            f"{model.label}: loss {model.loss:.4g}, accuracy {model.accuracy:.4g}, "
            f"sharpness {model.rise:.3g}{spread} (rho {rho:g}, {counted(directions, 'direction')})"
        )
    for file in files:
        print_line(file)
