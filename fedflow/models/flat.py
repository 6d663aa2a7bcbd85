"""A model is a vector: `FlatModel` turns an ``nn.Module`` into functions of one flat vector ``w`` [D].

The vector has the P trainable parameters first, then the Q floating-point buffers (BatchNorm statistics),
D = P + Q. So buffers are averaged, stored, clustered and sent with the model, and cannot be forgotten;
computations without them (gradients, norms, cosines, control variates, server optimizers) use ``w[:P]`` or
`FlatModel.with_buffers` (docs/decisions/0001). Frozen parameters (without ``requires_grad``) and integer
counters stay in the module: they are not trained, sent or averaged.
"""

import copy
import fnmatch
import functools
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from fedflow.errors import BadInput, FedflowError
from fedflow.models.cohorts import Real, for_cohorts
from fedflow.models.energy import SpectralLinear
from fedflow.models.linear import no_hits, squared_error
from fedflow.models.noise import CHANNELS, DROPOUT, KeyedDropout, Noise, draws_otherwise, noise_key
from fedflow.models.several import binary_cross_entropy, right_labels
from fedflow.models.tensors import floating, need_plain, shared, with_frozen, write
from fedflow.settings import Words

CONVOLUTIONS = ("matmul", "grouped")
DRAWING = threading.RLock()  # new networks draw from torch's default generator, shared by all threads
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


class Part:
    """A part of the vector (the body, the head): positions ``index`` [n] in [D]."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self.index = mask.nonzero().squeeze(1)
        self.rest = (~mask).nonzero().squeeze(1)
        self._back = torch.cat([self.index, self.rest]).argsort()

    def of(self, w: Tensor) -> Tensor:
        """The entries of ``w`` [D] in this part, [n]."""
        return w[self.index]

    def outside(self, w: Tensor) -> Tensor:
        """The other entries of ``w`` [D], [D - n]."""
        return w[self.rest]

    def join(self, inside: Tensor, outside: Tensor) -> Tensor:
        """The whole vector [D] from this part [n] and the rest [D - n]."""
        return torch.cat([inside, outside])[self._back]


class FlatModel:
    """An ``nn.Module`` as pure functions of one vector.

    ``factory`` builds the module, which may define ``losses(outputs, y) -> [B]`` and
    ``hits(outputs, y) -> [B]``; the defaults are cross-entropy and a correct arg max, squared error and nan
    for real targets, or binary cross-entropy and the share of right labels for several labels per sample.

    ``convolution`` is the form of convolutions in a cohort under ``torch.func.vmap``: one matrix product per
    image, or one grouped convolution. ``frozen`` has the values of the parameters that are not trained; by
    default these are the parameters without ``requires_grad``, as ``factory`` draws them with seed 0.

    Raises `BadInput` for a module that does not fit into a vector.
    """

    def __init__(
        self,
        factory: Callable[[], nn.Module],
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        convolution: str = "matmul",
        frozen: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.factory, self.device, self.dtype = factory, torch.device(device), dtype
        self.convolution = convolution
        with DRAWING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self._template = factory()
        need_plain(self._template, dtype)
        if any(p.is_cuda for p in self._template.parameters()):
            self._template = copy.deepcopy(self._template).cpu()
        if frozen is not None:
            self._template = with_frozen(self._template, frozen)
        if unkeyed := next(filter(draws_otherwise, self._template.modules()), None):
            raise FedflowError(
                f"the network has {type(unkeyed).__name__} with its own noise, so that results would "
                "depend on the workers; accepted: Dropout, Dropout1d, Dropout2d, Dropout3d"
            )
        parameters: dict[str, Tensor] = dict(self._template.named_parameters())
        self.frozen = {name: p.detach() for name, p in parameters.items() if not p.requires_grad}
        tensors = {name: p for name, p in parameters.items() if p.requires_grad}
        if not tensors:
            value = Words("all parameters frozen" if parameters else "no parameters")
            raise BadInput("model", value, "a network with a parameter that is trained (requires_grad)")
        self.parameters = sum(p.numel() for p in tensors.values())  # P
        tensors |= {k: b for k, b in self._template.named_buffers() if b.is_floating_point()}
        self.names = list(tensors)
        self.shapes = [t.shape for t in tensors.values()]
        self.sizes = [t.numel() for t in tensors.values()]
        self.size = sum(self.sizes)  # D
        self.buffers = self.size - self.parameters  # Q
        ends = torch.tensor(self.sizes).cumsum(0).tolist()
        self.slices = {name: slice(end - n, end) for name, n, end in zip(self.names, self.sizes, ends)}
        self._shared = {n: first for n, first in shared(self._template).items() if first in self.slices}
        self._again = [self.names.index(first) for first in self._shared.values()]
        self._parts: dict[tuple[str, ...], Part] = {}
        self._variants: dict[str, FlatModel] = {}
        self._making = threading.Lock()  # threads share a variant
        self._positions: dict[FlatModel, Tensor] = {}
        self.gradients: dict[tuple, Any] = {}  # compiled, by the settings of the compilation
        self._per_thread = threading.local()  # calls swap tensors in place, so every thread has a module
        self._noise, self._real = Noise(), Real()

    def init(self, seed: int) -> Tensor:
        """A new vector [D], initialized by the network."""
        with DRAWING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.from_module(self.factory())

    def from_module(self, module: nn.Module) -> Tensor:
        """The vector [D] of a module of the same architecture."""
        tensors = floating(module)
        flat = torch.cat([tensors[name].detach().reshape(-1) for name in self.names])
        return flat.to(self.device, self.dtype)

    def to_module(self, w: Tensor) -> nn.Module:
        """An independent module in evaluation mode, with the values of ``w`` [D] and the frozen values."""
        module = copy.deepcopy(self._template).to(dtype=self.dtype)
        write(module, self.views(w))
        return module.eval()

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """Parameter and buffer name -> view of ``w`` [D] in its shape."""
        return dict(zip(self.names, self.pieces(w)))

    def pieces(self, w: Tensor) -> list[Tensor]:
        """Views of ``w`` [D], one per parameter and buffer, in their shapes."""
        return [piece.view(shape) for piece, shape in zip(w.split(self.sizes), self.shapes)]

    def _cut(self, w: Tensor) -> tuple[list[Tensor], int]:
        """The pieces of ``w`` [D], with constant buffers, and the number of parameters among them."""
        pieces = self.pieces(w)
        if not self.buffers:
            return pieces, len(pieces)
        trained = sum(slice.start < self.parameters for slice in self.slices.values())
        return pieces[:trained] + [piece.detach() for piece in pieces[trained:]], trained

    def outputs(self, w: Tensor, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Network outputs [B, K] for inputs ``x`` [B, ...], in evaluation mode.

        ``real`` [B] is true for samples that are not padding of a cohort (None: all); BatchNorm counts these.
        """
        return self._call(False, self._cut(w)[0], x, real=real)

    def call(self, part: str, w: Tensor, *inputs: Tensor) -> Any:
        """The result of the method ``part`` of the network, in evaluation mode."""
        return self._call(False, self._cut(w)[0], *inputs, part=part)

    def train_outputs(
        self, w: Tensor, x: Tensor, part: str = "forward", real: Tensor | None = None
    ) -> tuple[Any, Tensor | None]:
        """Outputs [B, K] in training mode, and the buffers [Q] after this batch (None if unchanged).

        ``part`` is the method of the network to call; ``real`` as in `outputs`. A single sample that
        BatchNorm cannot normalize runs in evaluation mode.
        """
        pieces, trained = self._cut(w)
        if not self.buffers:
            return self._call(True, pieces, x, part=part, real=real), None
        stats = [buffer.clone() for buffer in pieces[trained:]]
        try:
            # BatchNorm updates stats in place, or in a cohort replaces them
            outputs = self._call(True, pieces[:trained] + stats, x, part=part, real=real)
        except ValueError:  # one value per channel has no variance
            if len(x) > 1:
                raise
            return self._call(False, pieces, x, part=part), None
        _, slots = self._own_modules()[True]
        return outputs, torch.cat([table[key].reshape(-1) for table, key in slots[trained : len(pieces)]])

    def needs_two(self, x: Tensor) -> bool:
        """True if BatchNorm cannot normalize a batch of one sample ``x`` [1, ...]: one value per channel."""
        if self.batch_norms:
            try:
                self._call(True, self.pieces(self.init(0)), x)
            except ValueError:
                return True
        return False

    def outputs_of(self, pieces: Sequence[Tensor], x: Tensor, real: Tensor | None = None) -> Tensor:
        """Outputs [B, K] in training mode of a network without buffers, with the parameters ``pieces``."""
        return self._call(True, pieces, x, real=real)

    @cached_property
    def last_linear(self) -> str | None:
        """The name of the last linear layer, or None without one or if its weights or biases are frozen."""
        linear = [name for name, layer in self._template.named_modules() if isinstance(layer, nn.Linear)]
        if linear and self.slices.keys() >= {f"{linear[-1]}.weight", f"{linear[-1]}.bias"}:
            return linear[-1]
        return None

    @cached_property
    def weights(self) -> list[str]:
        """The names of the weights of convolutional and linear layers, without biases."""
        kinds = nn.Linear, _ConvNd
        layers = [name for name, layer in self._template.named_modules() if isinstance(layer, kinds)]
        return [name for layer in layers if (name := f"{layer}.weight") in self.slices]

    def features(self, w: Tensor, x: Tensor, train: bool = False, real: Tensor | None = None) -> Tensor:
        """Inputs [B, d] of the last linear layer for ``x`` [B, ...], in training mode if ``train``."""
        assert self.last_linear is not None
        features: list[Tensor] = []
        with ExitStack() as hooks:
            for module, _ in self._own_modules().values():  # both: a single sample may need evaluation mode
                layer = module.get_submodule(self.last_linear)
                hook = layer.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
                hooks.callback(hook.remove)
            self.train_outputs(w, x, real=real) if train else self.outputs(w, x, real)
        return features[-1]

    def replaced(self, w: Tensor, layers: Mapping[str, Tensor]) -> Tensor:
        """``w`` [D] with new values of the named parameters."""
        pieces = zip(self.names, w.split(self.sizes))
        return torch.cat([layers[name].reshape(-1) if name in layers else piece for name, piece in pieces])

    @property
    def layers(self) -> int:
        """The number of layers (modules) with parameters or buffers."""
        return len({name.rpartition(".")[0] for name in self.names})

    @cached_property
    def layer(self) -> Tensor:
        """The number of the layer (module) of every entry [D], int64, from 0."""
        owners = [name.rpartition(".")[0] for name in self.names]
        numbers = {owner: i for i, owner in enumerate(dict.fromkeys(owners))}
        layers = torch.tensor([numbers[owner] for owner in owners])
        return layers.repeat_interleave(torch.tensor(self.sizes)).to(self.device)

    @cached_property
    def outside_norms(self) -> Tensor:
        """Bool [D]: the parameters of all layers except norms, which published counts leave out."""
        norms = {n for n, layer in self._template.named_modules() if isinstance(layer, NORMS)}
        mask = torch.zeros(self.size, dtype=torch.bool, device=self.device)
        for name, entries in self.slices.items():
            mask[entries] = entries.stop <= self.parameters and name.rpartition(".")[0] not in norms
        return mask

    def variant(self, **options: Any) -> "FlatModel":
        """The same architecture with other ``options``, on the same device."""
        key = json.dumps(options, sort_keys=True)
        with self._making:
            if key not in self._variants:
                known = getattr(self._template, "options", {})
                if self.frozen and "trainable" in known:
                    options = options | {"trainable": None}  # the patterns are of the whole network
                if "start" in known:
                    options = options | {"start": None}  # and so is the file
                factory = functools.partial(self.factory, **options) if options else self.factory
                self._variants[key] = FlatModel(
                    factory,
                    device=self.device,
                    dtype=self.dtype,
                    convolution=self.convolution,
                    frozen=self._frozen_of(factory) if self.frozen else None,
                )
            return self._variants[key]

    def _frozen_of(self, factory: Callable[[], nn.Module]) -> dict[str, Tensor]:
        """The frozen parameters of the network that ``factory`` makes, leading slices of this network's."""
        with DRAWING, torch.random.fork_rng(devices=[]):
            part = dict(factory().named_parameters())
        for name in part.keys() & self.frozen.keys():
            self._need_nested(name, part[name].shape, self.frozen[name])
        return {
            name: whole[tuple(slice(n) for n in part[name].shape)].clone()
            for name, whole in self.frozen.items()
            if name in part
        }

    def within(self, large: "FlatModel") -> Tensor:
        """The position [d] of every entry in a vector of a ``large`` network that contains this one.

        Tensors correspond by name, and are the leading slice in every dimension. Raises `BadInput` if the
        large network lacks a name or has a smaller dimension.
        """
        if large not in self._positions:
            whole, positions = large.views(torch.arange(large.size)), []
            for name, shape in zip(self.names, self.shapes):
                outer = large._need_nested(name, shape, whole.get(name))
                positions.append(outer[tuple(slice(n) for n in shape)].reshape(-1))
            self._positions[large] = torch.cat(positions).to(self.device)
        return self._positions[large]

    def _need_nested(self, name: str, shape: torch.Size, outer: Tensor | None) -> Tensor:
        """``outer``, the tensor ``name`` of this network; `BadInput` unless ``shape`` fits into it."""
        if outer is None or len(shape) != outer.ndim or any(n > m for n, m in zip(shape, outer.shape)):
            has = f"has {name} of shape {list(shape)}"
            need = "no such part" if outer is None else f"{list(outer.shape)}"
            accepted = f"networks that nest: one level {has}, the whole network has {need}"
            raise BadInput("model.name", Words(self.title), accepted)
        return outer

    @property
    def title(self) -> str:
        """The name of its architecture, or of its class if `fedflow.models.build` did not make it."""
        return str(getattr(self._template, "architecture", type(self._template).__name__))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, for networks made by `fedflow.models.build`."""
        shape: tuple[int, ...] = getattr(self._template, "fits")[0]  # noqa: B009
        return shape

    @property
    def classes(self) -> int:
        """The number of classes K, for networks made by `fedflow.models.build`."""
        classes: int = getattr(self._template, "fits")[1]  # noqa: B009
        return classes

    @cached_property
    def own_losses(self) -> bool:
        """True if the network defines its loss."""
        return hasattr(self._template, "losses")

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample [B]."""
        if self.own_losses:
            return self._template.losses(outputs, y)  # type: ignore[operator]
        if y.is_floating_point():
            return squared_error(outputs, y)
        if y.dtype == torch.bool:
            return binary_cross_entropy(outputs, y)
        return nn.functional.cross_entropy(outputs, y, reduction="none")

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mean loss of a batch, scalar."""
        if self.own_losses or y.is_floating_point() or y.dtype == torch.bool:
            return self.losses(outputs, y).mean()
        return nn.functional.cross_entropy(outputs, y)

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """True for samples that are predicted correctly [B], never with NaN; nan for real targets.

        Of several labels per sample, the share that is right.
        """
        if hasattr(self._template, "hits"):
            return self._template.hits(outputs, y)  # type: ignore[operator]
        if y.is_floating_point():
            return no_hits(y)
        predicted = ~outputs.isnan().any(-1)
        return (
            right_labels(outputs, y) * predicted
            if y.dtype == torch.bool
            else (outputs.argmax(-1) == y) & predicted
        )

    def part(self, *patterns: str) -> Part:
        """The parameters and buffers that match any glob pattern. Raises `BadInput` if none does."""
        if patterns not in self._parts:
            self._parts[patterns] = Part(self._mask(patterns))
        return self._parts[patterns]

    def _mask(self, patterns: Sequence[str]) -> Tensor:
        mask = torch.zeros(self.size, dtype=torch.bool, device=self.device)
        names = [*self.names, *self._shared, *self.frozen]
        for pattern in patterns:
            hits = fnmatch.filter(names, pattern)
            if not hits:
                accepted = f"a pattern that matches one of {', '.join(self.names)}"
                raise BadInput("parameter pattern", pattern, accepted)
            for name in hits:
                if (entries := self.slices.get(self._shared.get(name, name))) is not None:
                    mask[entries] = True
        if patterns and not mask.any():
            accepted = f"a pattern of a part that is trained: one of {', '.join(self.names)}"
            raise BadInput("parameter pattern", Words(", ".join(patterns)), accepted)
        return mask

    def head(self) -> Part:
        """The classifier, declared by the architecture in ``head_patterns``."""
        return self.part(*self.head_patterns)

    @property
    def architecture(self) -> str:
        """A description of layers and options, equal for equal networks."""
        plain = f"{self._template!r} {getattr(self._template, 'options', {})}"
        return f"{plain} frozen: {', '.join(self.frozen)} {self._frozen_hash}" if self.frozen else plain

    @cached_property
    def _frozen_hash(self) -> str:
        """A digest of the frozen values."""
        content = hashlib.blake2b(digest_size=8)
        for name, value in self.frozen.items():
            content.update(name.encode() + value.reshape(-1).view(torch.uint8).numpy().tobytes())
        return content.hexdigest()

    @property
    def at_once(self) -> int | None:
        """The largest number of inputs to evaluate at once, if the architecture declares it."""
        return getattr(self._template, "at_once", None)

    @property
    def modules(self) -> set[str]:
        """The Python modules that define its layers."""
        return {type(layer).__module__ for layer in self._template.modules()}

    @property
    def head_patterns(self) -> Sequence[str]:
        """The classifier, as declared by the architecture, or its last linear layer.

        Raises `BadInput` for a network that has neither.
        """
        declared: Sequence[str] | None = getattr(self._template, "head_patterns", None)
        if declared is not None:
            return declared
        linear = [name for name, layer in self._template.named_modules() if isinstance(layer, nn.Linear)]
        if not linear:
            given = Words(f"{self.title} without a linear layer")
            raise BadInput(
                "model", given, "one, or the names of the parameters in the settings of the method"
            )
        return (f"{linear[-1]}.*",)

    @property
    def shared_patterns(self) -> Sequence[str]:
        """The upper layers that LG-FedAvg shares, as declared by the architecture, or its head."""
        return getattr(self._template, "shared_patterns", self.head_patterns)

    @property
    def channels(self) -> Sequence[Any]:
        """The removable `fedflow.models.channels.Channels` that the architecture declares.

        Channels of frozen norms are left out, as gamma and beta cannot become 0.
        """
        declared = getattr(self._template, "channels", ())
        return [c for c in declared if self.slices.keys() >= {f"{c.norm}.weight", f"{c.norm}.bias"}]

    @cached_property
    def draws_noise(self) -> bool:
        """True if the network draws random numbers in training (dropout)."""
        return any(isinstance(layer, DROPOUT) and layer.p > 0 for layer in self._template.modules())

    @cached_property
    def recurrent(self) -> bool:
        """True if the network has recurrent layers."""
        return any(isinstance(layer, nn.RNNBase) for layer in self._template.modules())

    @cached_property
    def batch_norms(self) -> dict[str, nn.Module]:
        """The layers with outputs that depend on the other samples of a batch, by name."""
        return {
            name: layer for name, layer in self._template.named_modules() if isinstance(layer, _BatchNorm)
        }

    @cached_property
    def batch_statistics(self) -> bool:
        """True if outputs depend on the batch in evaluation too: BatchNorm without running statistics."""
        return any(norm.running_mean is None for norm in self.batch_norms.values())

    @property
    def why_alone(self) -> str | None:
        """The reason why clients cannot share a vmapped call, or None."""
        if any(isinstance(layer, SpectralLinear) for layer in self._template.modules()):
            return "spectral norms would take a step in padded batches too"
        return None

    def seed_noise(self, seed: int | Tensor) -> None:
        """Key the dropout noise of this thread by a seed, or in a cohort by its `noise_key` [2] int32."""
        if self.draws_noise:
            first, second = seed.unbind() if isinstance(seed, Tensor) else noise_key(seed)
            self._noise.seed((first, second))

    def next_pass(self) -> None:
        """Change the noise for the next sequence of local steps or chunks."""
        self._noise.next_pass()

    def at_step(self, step: int) -> None:
        """Set the noise of a step of the pass, regardless of calls in other steps."""
        self._noise.at_step(step)

    def next_noise(self) -> list[Tensor]:
        """The key [2] int32 of the noise of the next training call; empty without noise."""
        return [torch.tensor(self._noise.next_call(), dtype=torch.int32)] if self.draws_noise else []

    @contextmanager
    def given_noise(self, keys: Sequence[Tensor]) -> Iterator[None]:
        """Within this context, training calls in this thread have the noise ``keys`` of `next_noise`."""
        for key in keys:
            first, second = key.unbind()
            self._noise.given = first, second
        try:
            yield
        finally:
            self._noise.given = None

    def counters(self) -> dict[str, Tensor]:
        """The integer buffers of this thread's training module by name, except BatchNorm's."""
        norms = {name for name, layer in self._template.named_modules() if isinstance(layer, _BatchNorm)}
        module, _ = self._own_modules()[True]
        return {
            name: b.clone()
            for name, b in module.named_buffers()
            if name not in self.slices and name.rpartition(".")[0] not in norms
        }

    def constants(self) -> list[Tensor]:
        """The frozen parameters that training calls in this thread read."""
        return [table[key] for table, key in self._frozen_slots()]

    @contextmanager
    def given_constants(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Within this context, training calls in this thread read these ``values`` of `constants`."""
        slots, before = self._frozen_slots(), self.constants()
        for (table, key), value in zip(slots, values, strict=True):
            table[key] = value
        try:
            yield
        finally:
            for (table, key), value in zip(slots, before):
                table[key] = value

    def _frozen_slots(self) -> list[tuple[dict, str]]:
        module, _ = self._own_modules()[True]
        every = self._template.named_parameters(remove_duplicate=False)
        return [_slot(module, name) for name, p in every if not p.requires_grad]

    def with_buffers(self, w: Tensor, source: Tensor) -> Tensor:
        """``w`` [..., D] with the buffers of ``source``, for steps that extrapolate only parameters."""
        if not self.buffers:
            return w
        return torch.cat([w[..., : self.parameters], source[..., self.parameters :]], dim=-1)

    def trainable(self, v: Tensor) -> Tensor:
        """``v`` [D] with zeros in place of buffers, for differences of models used as gradients."""
        if not self.buffers:
            return v
        return torch.cat([v[: self.parameters], torch.zeros_like(v[self.parameters :])])

    def _call(
        self,
        train: bool,
        pieces: Sequence[Tensor],
        *inputs: Tensor,
        part: str = "forward",
        real: Tensor | None = None,
    ) -> Any:
        """Run a method of the network with ``pieces`` in place of its parameters and buffers.

        They are written directly to the tables of the module: ``torch.func.functional_call`` takes 3 % more
        for a step of LeNet-5 on one core.
        """
        module, slots = self._own_modules()[train]
        self._real.samples = real
        if train and self.draws_noise:
            self._noise.start_call()
        for (table, key), piece in zip(slots, [*pieces, *(pieces[i] for i in self._again)]):
            table[key] = piece
        return _rows(module(*inputs), inputs[0]) if part == "forward" else getattr(module, part)(*inputs)

    @contextmanager
    def for_cohorts(self) -> Iterator[None]:
        """Within this context, calls in this thread are calls of a cohort under ``torch.func.vmap``."""
        self._per_thread.cohorts = True
        try:
            self.prepare()
            yield
        finally:
            # Otherwise the tables would keep the last models of all clients in memory.
            for _, slots in getattr(self._per_thread, "cohort_modules", {}).values():
                for table, key in slots:
                    table[key] = None
            self._per_thread.cohorts = False

    def prepare(self) -> None:
        """Build the modules of this thread before a transform, within which they cannot be cast or moved."""
        self._own_modules()

    def _own_modules(self) -> dict[bool, tuple[nn.Module, list[tuple[dict, str]]]]:
        """This thread's modules by training mode, with the table and key of every piece.

        Further entries of shared pieces are at the end.
        """
        kind = "cohort_modules" if getattr(self._per_thread, "cohorts", False) else "modules"
        modules = getattr(self._per_thread, kind, None)
        if modules is None:
            modules = {}
            for mode in (True, False):
                module = copy.deepcopy(self._template).to(self.device, self.dtype).train(mode)
                for name, layer in list(module.named_modules()):
                    if isinstance(layer, DROPOUT):
                        keyed = KeyedDropout(layer.p, self._noise, isinstance(layer, CHANNELS))
                        module.set_submodule(name, keyed.train(mode))
                if kind == "cohort_modules":
                    for_cohorts(module, self._real, self.convolution)
                modules[mode] = module, [_slot(module, name) for name in [*self.names, *self._shared]]
            setattr(self._per_thread, kind, modules)
        return modules

    def __deepcopy__(self, memo: dict) -> "FlatModel":
        return self

    def __reduce__(self) -> tuple:
        made = functools.partial(
            FlatModel,
            device=str(self.device),
            dtype=self.dtype,
            convolution=self.convolution,
            frozen=self.frozen or None,
        )
        return made, (self.factory,)


def _rows(outputs: Any, x: Tensor) -> Any:
    """``outputs`` with the dimension of the sample, which a network may squeeze away for a single sample."""
    squeezed = isinstance(outputs, Tensor) and outputs.ndim < 2 and len(x) == 1 and outputs.shape[:1] != (1,)
    return outputs.unsqueeze(0) if squeezed else outputs


def _slot(module: nn.Module, name: str) -> tuple[dict, str]:
    owner, _, key = name.rpartition(".")
    layer = module.get_submodule(owner)
    return (layer._parameters if key in layer._parameters else layer._buffers), key
