"""The gradient of the data loss as machine code, for runs on a CPU that are long enough to benefit.

The network's mean loss and its gradient, one pure function ``(w [D], x [B, ...], y [B]) -> (g [D], F)``, are
traced once and compiled by TorchInductor for full batches. It serves every method: terms that it adds to the
data loss run as written, and smaller last batches are not compiled. The key of dropout's noise is an input,
as in a plain step. Compiled and plain gradients agree up to single-precision rounding, so a run chooses
between them once, by the work ahead and never by a clock; the choice is part of its fingerprint.
"""

import contextlib
import json
import os
import platform
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedflow.data.examples import Examples
from fedflow.local.fast.convolution import CONVOLUTION
from fedflow.local.fast.dense import DENSE
from fedflow.local.fast.kept import calls, kept, own_code
from fedflow.local.fast.norms import NORMS
from fedflow.local.fast.pieces import Product
from fedflow.local.fast.pooling import POOLING
from fedflow.local.fast.winograd import matrix
from fedflow.local.local_training import LocalTraining
from fedflow.metrics.cost import FlopCounter
from fedflow.models.flat import FlatModel
from fedflow.project.digest import digest

OVERHEAD = 0.2e-3  # seconds of every eager step
FIRST, SLOW, FAST = 100e6, 16e9, 60e9  # its floating-point operations up to here, per second; and the rest
LEAST = 2000  # steps below which costs are not estimated
SAVED = 1 / 3  # of the overhead and the first operations, at least
COMPILER = 25  # seconds by network; a run compiles if it saves twice as many
LARGE = 5e9  # operations of a step that is nearly all convolutions, which a compiler cannot speed up
LARGE_PIECE = 1 << 17  # entries of a gradient that is left as a product
CODE = "gradient"  # a compiled package in the folder of its key
UNROLLED = 20  # positions of a recurrent network, each of which becomes a part of the graph
OPTIONS = {  # one thread; layouts in which convolutions need no copies
    "cpp.threads": 1,
    "compile_threads": 1,
    "layout_optimization": True,
    "force_layout_optimization": True,
}
_LOCK = threading.Lock()  # one compilation at a time: the tracer and the environment belong to the process


class Gradient:
    """``(w, x, y) -> (gradient [D], loss)`` for batches of one shape."""

    def __init__(
        self,
        run: Callable[..., Any],
        products: Sequence[bool],
        x: Tensor,
        y: Tensor,
        draw: Callable[[], Sequence[Tensor]] = tuple,
    ) -> None:
        self._run, self._products, self._kind, self._draw = run, products, _kind(x, y), draw

    def takes(self, x: Tensor, y: Tensor) -> bool:
        """True if it was compiled for batches of this shape."""
        return _kind(x, y) == self._kind

    def __call__(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        pieces, loss = self.pieces(w, x, y)
        whole = [piece.value if isinstance(piece, Product) else piece for piece in pieces]
        return torch.cat([piece.reshape(-1) for piece in whole]), loss

    def pieces(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[list[Tensor | Product], Tensor]:
        """The gradients by layer, in their shapes, large ones of dense layers as products, and the loss.

        This saves a pass over memory compared with the whole gradient, or two with products.
        """
        with torch.no_grad():
            *outputs, loss = self._run(w.detach().contiguous(), x, y, *self._draw())
        factors = iter(outputs)
        pieces = [Product(next(factors), next(factors)) if two else next(factors) for two in self._products]
        return pieces, loss

    def loss(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The loss, scalar, as part of an expression that is differentiated by ``w`` once."""
        value: Tensor = _Loss.apply(w, x, y, self)
        return value


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor, x: Tensor, y: Tensor, gradient: Gradient) -> Tensor:
        g, loss = gradient(w, x, y)
        ctx.save_for_backward(g)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor, None, None, None]:
        (g,) = ctx.saved_tensors
        return up * g, None, None, None


def _kind(*tensors: Tensor) -> list[tuple[Any, ...]]:
    """The properties of tensors that machine code depends on."""
    return [(t.shape, t.dtype, t.is_contiguous() or t.stride()) for t in tensors]


def why_not(model: FlatModel, training: LocalTraining) -> str | None:
    """The reason why no gradient of this network can be compiled, or None if it can."""
    if model.device.type != "cpu":
        return "only steps on a CPU are compiled"
    if model.buffers or model.batch_statistics:
        return "the network has BatchNorm"
    if training.precision == "bf16":
        return "local steps are in bf16"
    for extension in training.with_hook("loss"):
        return f"clients minimize {extension.minimizes or 'a changed loss'}"
    if not training.batch_size:
        return "full-gradient batches have a different shape for every client"
    return None


def pays(
    model: FlatModel, examples: Examples, training: LocalTraining, steps: float, networks: int = 1
) -> tuple[bool, str]:
    """True if ``steps`` local steps are worth compiling ``networks``, and the estimate in words.

    ``model`` is the largest network. Estimated from floating-point operations, not timed, so that it is the
    same for every worker and after every restart. Measured on one core against the plain steps: 1.3 times as
    fast for an MLP (25 MFLOP a step), 1.4 to 1.8 for LeNet-5 (32), 1.2 to 2.2 for CNNs (432 to 4,032), but
    1.0 for ResNet-9 (22,720); 1.9 for an LSTM over 10 positions, but 0.5 over 80, and three minutes to
    compile.
    """
    if steps < LEAST:
        return False, f"{steps:,.0f} local steps are too few"
    if model.recurrent and (positions := examples.inputs(torch.arange(1), model.dtype).shape[1]) > UNROLLED:
        return False, f"a recurrent network over {positions} positions would be slower"
    flops = step_flops(model, examples, training)
    first = steps * (OVERHEAD + min(flops, FIRST) / SLOW)
    seconds, saved = first + steps * max(flops - FIRST, 0) / FAST, SAVED * first
    words = f"{steps:,.0f} local steps of {flops / 1e6:,.1f} MFLOP, about {seconds:,.0f} s"
    return saved >= 2 * COMPILER * networks and flops <= LARGE, f"{words}; compiled, {saved:,.0f} s less"


def step_flops(model: FlatModel, examples: Examples, training: LocalTraining) -> int:
    """The floating-point operations of a local step."""
    w, x, y = _example(model, examples, training.batch_size)
    with FlopCounter() as counter:
        model.loss(model.train_outputs(w.requires_grad_(), x)[0], y).backward()
    flops: int = counter.flops.total()
    return flops


def compiled_gradient(
    model: FlatModel, examples: Examples, training: LocalTraining, folder: str
) -> Gradient | None:
    """The compiled gradient for full batches, from the cache in ``folder`` if present.

    None, with one warning per process, if it cannot be compiled, for example without a C++ compiler.
    The network keeps it, so that any number of networks can take turns.
    """
    key = examples, training.batch_size, folder
    with _LOCK:
        if key not in model.gradients:
            model.gradients[key] = _compiled(model, *key)
        gradient: Gradient | None = model.gradients[key]
        return gradient


def _compiled(model: FlatModel, examples: Examples, batch_size: int, folder: str) -> Gradient | None:
    try:
        from torch._inductor import aoti_load_package  # a second to import

        w, x, y = _example(model, examples, batch_size)
        constants = model.constants()  # inputs, as the cached code serves any frozen values

        def draw() -> list[Tensor]:
            return [*model.next_noise(), *constants]

        inputs = w, x, y, *draw()
        entry = Path(folder) / _key(model, *inputs)
        run = aoti_load_package(kept(entry, partial(_compile, _differentiate(model), inputs)) / CODE)
        products = json.loads(run.get_metadata()["products"])
        gradient = Gradient(run, products, x, y, draw)
    except Exception as error:  # whatever the compiler rejects: plain steps compute the same
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(f"local steps are not compiled, because that failed ({reason})", stacklevel=3)
        return None
    return gradient


def _key(model: FlatModel, w: Tensor, *inputs: Tensor) -> str:
    """The name of the code of a network's gradient for such inputs, on such a processor."""
    loss, leaf = _loss(model), w.detach().requires_grad_()

    def plain() -> None:
        torch.autograd.grad(loss(model.pieces(leaf), *inputs), leaf)

    computed = calls(plain, [leaf, *inputs])
    about = [torch.__version__, _processor(), own_code(), str(OPTIONS), LARGE_PIECE]
    return digest([*about, computed, *map(str, _kind(w, *inputs))], 16)


def _compile(function: Callable[..., Any], inputs: Sequence[Tensor], folder: Path) -> None:
    """Leave ``function`` in ``folder`` as machine code for one thread; `_factored` outputs.

    For inputs of these shapes. It holds no pickles.
    """
    from torch._inductor import aoti_compile_and_package  # seconds to import

    traced = _traced(function, *inputs)
    options = OPTIONS | {"aot_inductor.metadata": {"products": json.dumps(_factored(traced))}}
    exported = torch.export.export(traced, tuple(inputs))
    with tempfile.TemporaryDirectory(dir=folder) as scratch, _scratch(scratch):
        package = aoti_compile_and_package(
            exported, package_path=f"{scratch}/{CODE}.pt2", inductor_configs=options
        )
        with zipfile.ZipFile(package) as files:
            files.extractall(folder)


def _traced(function: Callable[..., Any], *inputs: Tensor) -> torch.fx.GraphModule:
    """``function`` as a graph, the same in every process, whose parts are computed once."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.passes.dialect.common.cse_pass import CSEPass

    dense = DENSE if "GenuineIntel" in _processor() else {}  # on AMD its products take twice the time
    matrix.cache_clear()  # tensors of an earlier graph would be new constants wherever they are used
    table, pure = POOLING | NORMS | CONVOLUTION | dense, torch.func.functionalize(function)
    traced = make_fx(pure, decomposition_table=table)(*inputs)
    for op in (torch.ops.aten.detach.default, torch.ops.aten.detach_.default):  # the latter by torch.tensor
        for node in traced.graph.find_nodes(op="call_function", target=op):
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    if _is_pure(traced) and (shared := CSEPass()(traced)):  # transforms of a convolution and its gradients
        traced = shared.graph_module
    return traced


def _is_pure(traced: torch.fx.GraphModule) -> bool:
    """True if equal calls have equal values: none writes into its arguments or draws random numbers."""
    called = [node.target for node in traced.graph.nodes]
    operators = [op for op in called if isinstance(op, torch._ops.OpOverload)]
    return not any(op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags for op in operators)


def _factored(traced: torch.fx.GraphModule) -> list[bool]:
    """Output large products of thin matrices as two factors; returns True for each such output."""
    aten = torch.ops.aten
    (end,) = traced.graph.find_nodes(op="output")
    outputs, products = list[torch.fx.Node](), list[bool]()
    *pieces, loss = end.args[0]
    for piece in pieces:
        product = piece
        while product.target == aten.t.default and product.args[0].target == aten.t.default:
            product = product.args[0].args[0]
        thin = False
        if product.target == aten.mm.default:
            (m, k), (_, n) = (node.meta["val"].shape for node in product.args)
            thin = m * n >= LARGE_PIECE and 4 * k <= min(m, n)
        products.append(thin)
        outputs += product.args if thin else [piece]
    end.args = ((*outputs, loss),)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return products


def _differentiate(model: FlatModel) -> Callable[..., tuple[Tensor, ...]]:
    loss = _loss(model)

    def gradient(w: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        pieces, value = torch.func.grad_and_value(loss)(model.pieces(w), *inputs)
        return *(piece.contiguous() for piece in pieces), value

    return gradient


def _loss(model: FlatModel) -> Callable[..., Tensor]:
    drawn = int(model.draws_noise)

    def loss(pieces: list[Tensor], x: Tensor, y: Tensor, *given: Tensor) -> Tensor:
        constants = [*map(_channels_last, given[drawn:])]
        with model.given_noise(given[:drawn]), model.given_constants(constants):
            return model.loss(model.outputs_of([*map(_channels_last, pieces)], _channels_last(x)), y)

    return loss


def _channels_last(images: Tensor) -> Tensor:
    """Images or kernels as convolutions read them, so that none of them copies its inputs again."""
    return images.contiguous(memory_format=torch.channels_last) if images.dim() == 4 else images


def _example(model: FlatModel, examples: Examples, batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, w = torch.arange(batch_size) % len(examples), model.init(0)
    x, y = examples.inputs(rows, model.dtype), examples.targets(rows)
    model.seed_noise(0)
    model.prepare()
    return w, x, y


@contextlib.contextmanager
def _scratch(folder: str) -> Iterator[None]:
    """Let the compiler write into ``folder`` what only it needs."""
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        else:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


def _processor() -> str:
    """The processor, on which machine code depends: different machines may share a folder."""
    facts = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = "flags", "model name", "vendor_id", "Features"
        facts += sorted({line for line in lines if line.startswith(names)})
    return "\n".join(facts)
