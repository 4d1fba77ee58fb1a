"""Actor-critic networks: uint8 observations in, action logits and one value per reward stream out.

`compact` (the default) is a small network made for these envs: every entry of the observation is a category with
weights of its own, met by two layers of 128; in pictures every square that the env draws is looked at alike. `paper`
is the published convolutional actor-critic with 512 features, for comparison on equal work. `residual` is a small
residual network for pictures. `recurrent` is `compact` with a memory (`agents/recurrent.py`). It and `compact` can read
missions. `film` is the agent published with BabyAI (`film.py`). All keep observations in uint8 until they are inside
the encoder.

Axes: B observations, A actions, K reward streams.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bkrl.agents.networks.layers import CELL_SIDE, Pixels, conv, in_float32, is_image, linear, num_features
from bkrl.agents.networks.missions import MissionLayer
from bkrl.agents.networks.symbols import SymbolLayer
from bkrl.core.documents import typed
from bkrl.core.errors import InputError, UsageError
from bkrl.core.flags import Flag
from bkrl.envs.symbols import Symbols

NetworkName = Literal["compact", "paper", "residual", "recurrent", "film"]


class ActorCritic(nn.Module):
    """A network without memory: `forward(observations (B, *obs_shape) uint8) → logits (B, A), values (B, K)`.

    Attributes:
        spec: the arguments that build this network again, as plain JSON values (see `build_network`).
    """

    spec: dict[str, Any]

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class Compact(ActorCritic):
    """Two shared layers on symbols, or on what is made of each square of a picture; one fused head for all outputs.

    A picture is looked at cell by cell, as symbols are: two layers, the same for all squares, make 16 features of each.
    Sharing the trunk and fusing the heads keeps an acting step at a sum of rows and two matrix products, which is what
    bounds the speed of training when the envs are fast.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        num_actions: int,
        num_values: int,
        symbols: Symbols | None,
        hidden: int,
        missions: bool = False,
        fields: int = 0,
    ) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.mission = MissionLayer(symbols, hidden) if missions else None
        self.episode = EpisodeLayer(fields, hidden) if fields else None
        if symbols is None:
            convolutions = nn.Sequential(*self.squares(obs_shape[2]), nn.Flatten())
            first = linear(num_features(convolutions, obs_shape), hidden)
            self.encoder: nn.Module = nn.Sequential(*convolutions, first)
        else:
            self.encoder = SymbolLayer(symbols, hidden)
        self.trunk = nn.Sequential(nn.ReLU(), linear(hidden, hidden), nn.ReLU())
        self.head = linear(hidden, num_actions + num_values)

    def squares(self, channels: int) -> list[nn.Module]:
        """The layers that make features of the squares of a picture."""
        first = [Pixels([255.0] * channels), conv(channels, 32, CELL_SIDE, CELL_SIDE)]
        return [*first, nn.ReLU(), conv(32, 16, 1, 1), nn.ReLU()]

    def initialise(self, generator: torch.Generator) -> None:
        """Orthogonal weights: gain √2 inside, 0.01 for the logits (a near-uniform first policy), 1 for the values."""
        for module in [*self.encoder.modules(), *self.trunk.modules()]:
            if isinstance(module, SymbolLayer):
                module.initialise(generator)
            elif isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.orthogonal_(module.weight, math.sqrt(2), generator=generator)
        if self.mission is not None:
            self.mission.initialise(generator)
        if self.episode is not None:
            nn.init.orthogonal_(self.episode.read.weight, 1.0, generator=generator)
        with torch.no_grad():
            nn.init.orthogonal_(self.head.weight[: self.num_actions], 0.01, generator=generator)
            nn.init.orthogonal_(self.head.weight[self.num_actions :], 1.0, generator=generator)

    def forward(
        self, observations: Tensor, tokens: Tensor | None = None, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.read_out(self.features(observations, tokens, memory))

    def features(self, observations: Tensor, tokens: Tensor | None, memory: Tensor | None = None) -> Tensor:
        """(B, hidden); `tokens` (B, L), the words of missions, and `memory` (B, M) for a network that reads them."""
        seen = self.encoder(observations)
        if self.mission is not None:
            seen = seen + self.mission(observations, tokens)
        return self.trunk(seen if self.episode is None else seen + self.episode(memory))

    def read_out(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, A) and values (B, K) of features (B, hidden)."""
        with in_float32(features):
            out = self.head(features.float())
        return out[:, : self.num_actions], out[:, self.num_actions :]


class Residual(Compact):
    """`Compact` for pictures, with two residual blocks: what is made of a square depends on its neighbours, too.

    The blocks are those of IMPALA's network (Espeholt et al., 2018), without its pooling: one convolution with the
    stride of Crafter's squares brings 64×64 pixels to 9×9 places at once.
    """

    def squares(self, channels: int) -> list[nn.Module]:
        width = 32
        return [_Squares(channels, width), _ResidualBlock(width), _ResidualBlock(width), nn.ReLU()]

    def initialise(self, generator: torch.Generator) -> None:
        """As `Compact`; a block begins as the identity."""
        super().initialise(generator)
        for block in self.encoder.modules():
            if isinstance(block, _ResidualBlock):
                nn.init.zeros_(block.conv2.weight)


class _Squares(nn.Module):
    """(B, H, W, C) uint8 → (B, width, H / 7, W / 7): a convolution whose stride is its side, which is one product."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.product = linear(CELL_SIDE * CELL_SIDE * channels, width)

    def forward(self, observations: Tensor) -> Tensor:
        rows, columns = (side // CELL_SIDE for side in observations.shape[1:3])
        inside = observations[:, : rows * CELL_SIDE, : columns * CELL_SIDE]
        cut = inside.unflatten(1, (rows, CELL_SIDE)).unflatten(3, (columns, CELL_SIDE)).transpose(2, 3).flatten(3)
        # Whole numbers up to 255 are exact in bfloat16, and their 255ths are not: the weights are divided instead.
        kind, weight = cut.device.type, self.product.weight / 255
        lower = kind != "meta" and torch.is_autocast_enabled(kind)
        number = torch.get_autocast_dtype(kind) if lower else weight.dtype
        return nn.functional.linear(cut.to(number), weight, self.product.bias).permute(0, 3, 1, 2)


class _ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), both of 3×3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(channels, channels, 3, 1, 1), conv(channels, channels, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.conv2(self.conv1(x.relu()).relu())
        return out


class EpisodeLayer(nn.Module):
    """What happened in the episode so far, (B, M) uint8, as (B, width) to be added to what is seen.

    Each field is read twice: whether it is above 0, and on a logarithmic scale, since the first of a kind matters most.
    """

    def __init__(self, fields: int, width: int) -> None:
        super().__init__()
        self.read = linear(2 * fields, width)

    def forward(self, memory: Tensor) -> Tensor:
        counts = memory.float()
        out: Tensor = self.read(torch.cat([counts.clamp(max=1.0), counts.log1p() / math.log(256)], 1))
        return out


class Paper(ActorCritic):
    """The published actor-critic: three convolutions of 32, 64, 64 channels and 512 features.

    Views smaller than 16 cells: 3×3 kernels with padding, channels divided by 10, 5 and 3. Pictures: kernels of 8, 4
    and 3 with strides 4, 2 and 1, divided by 255. The policy has a further layer of 512; the values read the features
    plus one residual layer.
    """

    def __init__(self, obs_shape: Sequence[int], num_actions: int, num_values: int, hidden: int = 512) -> None:
        super().__init__()
        if len(obs_shape) != 3:
            raise UsageError(
                f"The paper network reads views and pictures, not observations of shape {tuple(obs_shape)}; "
                "use --network compact or image observations."
            )
        channels = obs_shape[2]
        if is_image(obs_shape):
            shapes = [(channels, 32, 8, 4, 0), (32, 64, 4, 2, 0), (64, 64, 3, 1, 0)]
            scale = [255.0] * channels
        else:
            shapes = [(channels, 32, 3, 1, 1), (32, 64, 3, 1, 1), (64, 64, 3, 1, 1)]
            scale = [10.0, 5.0, 3.0, *[1.0] * channels][:channels]
        layers: list[nn.Module] = [Pixels(scale)]
        for shape in shapes:
            layers += [conv(*shape), nn.ReLU()]
        convolutions = nn.Sequential(*layers, nn.Flatten())
        self.encoder = nn.Sequential(*convolutions, linear(num_features(convolutions, obs_shape), hidden))
        self.actor = nn.Sequential(linear(hidden, hidden), nn.ReLU(), linear(hidden, num_actions))
        self.residual = nn.Sequential(linear(hidden, hidden), nn.ReLU())
        self.critic = linear(hidden, num_values)

    def initialise(self, generator: torch.Generator) -> None:
        """Encoder: uniform within 1/√fan-in, biases too. Heads: orthogonal with small gains, biases 0, as published."""
        for module in self.encoder.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                bound = 1.0 / math.sqrt(module.weight[0].numel())
                nn.init.uniform_(module.weight, -bound, bound, generator=generator)
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)  # type: ignore[arg-type]
        for layer, gain in ((self.actor[0], 0.01), (self.actor[2], 0.01), (self.residual[0], 0.1), (self.critic, 0.01)):
            nn.init.orthogonal_(layer.weight, gain, generator=generator)  # type: ignore[arg-type]

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(observations)
        hidden, valued = self.actor[:2](features), features + self.residual(features)
        with in_float32(features):
            return self.actor[2](hidden.float()), self.critic(valued.float())


POLICY_HIDDEN = 128
"""The width of a compact policy."""


def build_network(
    name: str,
    *,
    obs_shape: Sequence[int],
    num_actions: int,
    num_values: int,
    symbols: Symbols | None = None,
    hidden: int = POLICY_HIDDEN,
    missions: bool = False,
    fields: int = 0,
    seed: int | None = 0,
) -> ActorCritic:
    """Build and initialise a network.

    Args:
        name: `compact`, `paper`, `residual`, `recurrent` or `film`.
        obs_shape: shape of one uint8 observation.
        num_actions: A.
        num_values: K, one value head for each reward stream.
        symbols: what the entries of a symbolic observation mean (default: `Symbols.of_shape`), for `compact`.
        hidden: width of `compact`'s layers.
        missions: whether it reads missions, too; its vocabulary is empty yet.
        fields: M, of the memory of episodes that it reads (`compact` alone); 0: it reads none.
        seed: of the initial weights; None: they are not written.

    Raises:
        UsageError: an unknown name, or a network that cannot read such observations.
    """
    spec: dict[str, Any] = {
        "name": name,
        "obs_shape": [int(n) for n in obs_shape],
        "num_actions": int(num_actions),
        "num_values": int(num_values),
    }
    network: Any
    if fields and name != "compact":
        raise UsageError(
            f"The {name} network reads no memory of episodes; use --network compact, or leave out --see-memory."
        )
    if name == "residual" and (missions or not is_image(obs_shape)):
        raise UsageError("The residual network reads pictures alone, and no missions; use --network compact.")
    if name in ("compact", "recurrent", "residual"):
        symbols = None if is_image(obs_shape) else symbols or Symbols.of_shape(obs_shape)
        spec |= {"symbols": symbols.to_json() if symbols else None, "hidden": int(hidden)}
        spec |= {"missions": True} if missions else {}
        spec |= {"fields": int(fields)} if fields else {}
        more = (fields,) if fields else ()
        network = _class(name)(obs_shape, num_actions, num_values, symbols, hidden, missions, *more)
    elif name == "film":
        from bkrl.agents.networks.film import Film  # it is made of layers of this module

        network = Film(obs_shape, num_actions, num_values)
    elif name == "paper" and not missions:
        network = Paper(obs_shape, num_actions, num_values)
    elif name == "paper":
        raise UsageError("The paper network reads no missions; use --network compact or recurrent, or --mission off.")
    else:
        raise UsageError(f"There is no network '{name}'. Known: {', '.join(get_args(NetworkName))}.")
    network.spec = spec
    if seed is not None:
        network.initialise(torch.Generator().manual_seed(seed))
    return network


def _class(name: str) -> type[Compact]:
    if name != "recurrent":
        return {"compact": Compact, "residual": Residual}[name]
    from bkrl.agents.recurrent import Recurrent  # it is made of `Compact`

    return Recurrent


def rebuild_network(spec: Any, tensors: Mapping[str, Tensor]) -> ActorCritic:
    """The network that `spec` describes with the weights `tensors`; InputError when they do not fit."""
    return fitted(lambda: of_spec(spec), tensors, "the network that is described beside them")


_Module = TypeVar("_Module", bound=nn.Module)


def fitted(make: Callable[[], _Module], tensors: Mapping[str, Tensor], what: str) -> _Module:
    """The module that `make` builds with the weights `tensors`; memory is taken only when they fit (`check_fit`).

    Raises InputError where they do not, or nothing of the kind can be built.
    """
    check_fit(make, tensors, what)
    module = make()
    module.load_state_dict(tensors)
    return module


class _Undrawn(TorchFunctionMode):
    """Normal weights are not drawn, and ranges have memory: without it, either loads torch's compiler (1 to 3 s)."""

    def __torch_function__(self, called: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (kwargs or {}) | ({"device": "cpu"} if called is torch.arange else {})
        return given["tensor"] if called is nn.init.normal_ else called(*args, **given)


def check_fit(make: Callable[[], nn.Module], tensors: Mapping[str, Tensor], what: str) -> None:
    """InputError where the weights do not fit the module that `make` builds, or nothing of the kind can be built."""
    try:
        with _Undrawn(), torch.device("meta"):
            problem = misfit(make(), tensors)
    except (RuntimeError, ValueError, UsageError) as error:  # sizes that no tensor has, or a Mismatch
        problem = str(error).partition("\n")[0]
    if problem:
        raise InputError(f"The weights do not fit {what} ({problem}).")


def misfit(module: nn.Module, tensors: Mapping[str, Tensor]) -> str:
    """In what the names and shapes of weights are not those of a module; "" where they are."""
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found or name not in wanted:
            return f"{name} is there and not here" if name in found else f"{name} is here and not there"
        if wanted[name] != found[name]:
            return f"{name} has the shape {found[name]} there and {wanted[name]} here"
    return ""


_Size = Annotated[int, Flag("", least=1, most=2**20)]


class _Spec(TypedDict):
    """Arguments of `build_network`."""

    name: NetworkName
    obs_shape: list[_Size]
    num_actions: _Size
    num_values: _Size
    symbols: NotRequired[Symbols | None]
    hidden: NotRequired[_Size | None]
    missions: NotRequired[bool]
    fields: NotRequired[Annotated[int, Flag("", least=0, most=255)]]


def of_spec(document: Any) -> Any:
    """The network of a `spec`, its weights not yet written; ValueError where it is invalid."""
    spec: _Spec = typed(_Spec, document)
    if math.prod(spec["obs_shape"]) > _LARGEST:
        raise ValueError(f"observations have at most {_LARGEST} entries")
    given: dict[str, Any] = {name: value for name, value in spec.items() if value is not None}
    return build_network(**given, seed=None)


_LARGEST = 2**16
