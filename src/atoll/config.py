"""The configuration of a run: everything that it depends on, in one value that can be written and read.

    network = "triangle"
    task = "digits"
    strategy = "allreduce:every=8"

is a whole one, in TOML; docs/config.md lists all keys.  `atoll run FILE` repeats the run of a file, and every run
writes the file that repeats it.
"""

import dataclasses
import hashlib
import json
import tomllib
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from atoll.errors import ConfigError, nearest
from atoll.islands.settings import IslandSettings, parse_islands
from atoll.network import Network, load_network
from atoll.strategies import Strategy, parse_strategy
from atoll.training.checkpoint import RunIdentity
from atoll.training.shards import parse_shards
from atoll.world.faults import Fault, read_faults

__all__ = ["DEFAULT_LIMIT_S", "Role", "RunConfig", "WorldName", "is_config"]

WorldName = Literal["sim", "emulate", "live"]
Role = Literal["strategy", "ideal", "perfect"]
DEFAULT_LIMIT_S = 600.0
"""The limit of a single run that sets none."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that a run depends on."""

    network: Network | None = None
    """The nodes and links of a simulated or emulated run."""
    world: WorldName = "sim"
    task: str = "digits"
    """The training task."""
    data: Path | None = None
    """The path of its data, if it needs any."""
    strategy: str = ""
    """The communication strategy; empty: the script's own."""
    shards: str = "dirichlet:0.3"
    """How examples are distributed among the nodes."""
    seed: int = 0
    limit_s: float | None = None
    """The time limit; the default is twenty times the ideal."""
    role: Role = "strategy"
    """The role of a run in a comparison: `ideal` and `perfect` runs use perfect links."""
    device: str = "cpu"
    """The torch device; it does not affect virtual time."""
    faults: tuple[Fault, ...] = ()
    """The faults of nodes and links."""
    stops: bool = True
    """Whether the run ends when the target is reached; else it continues until the limit."""
    checkpoints: Path | None = None
    """The folder for every node's state (live: a file with this node's state)."""
    checkpoint_s: float = 60.0
    """How often a checkpoint is written."""
    resume: bool = False
    """Whether to resume from the last checkpoint."""
    save: Path | None = None
    """The file to which the model is written at the end (safetensors)."""
    script: tuple[str, ...] = ()
    """A user's own script and its arguments, instead of a task."""
    islands: str = ""
    """Which nodes hold the model together (`parse_islands`); empty: every node holds all of it."""
    seats: int = 16
    """How many machines may take part in a live run at one time."""

    def __post_init__(self) -> None:
        if self.world not in typing.get_args(WorldName):
            raise ConfigError(f"there is no world {self.world!r}; {nearest(self.world, typing.get_args(WorldName))}")
        if self.strategy:
            parse_strategy(self.strategy)
        if not self.script:
            parse_shards(self.shards)
        if self.network and self.network.name.startswith("odticn") and self.task == "mnist":
            object.__setattr__(self, "task", "mnist-plain")  # as odticn trained it
        if self.islands:
            parse_islands(self.islands)
        if self.limit_s is not None and not self.limit_s > 0:
            raise ConfigError(f"limit_s: expected seconds above 0, not {self.limit_s:g}")
        if not self.checkpoint_s > 0:
            raise ConfigError(f"checkpoint_s: expected seconds above 0, not {self.checkpoint_s:g}")

    @property
    def links(self) -> Network:
        """The network of this run; it is perfect for `ideal` and `perfect` runs."""
        if self.network is None:
            raise ConfigError("a run in simulation, or on an emulated network, needs a network: say which")
        return self.network if self.role == "strategy" else self.network.perfected()

    @property
    def parsed_strategy(self) -> Strategy:
        """The communication strategy, as a value."""
        return parse_strategy(self.strategy)

    @property
    def island_settings(self) -> IslandSettings | None:
        """How islands hold the model; `None`: every node holds all of it, as in the ideal."""
        return parse_islands(self.islands) if self.islands and self.role != "ideal" else None

    @property
    def identity(self) -> RunIdentity:
        """Identifies the run; its checkpoints must match it."""
        found: RunIdentity = {
            "task": self.task,
            "strategy": self.strategy,
            "shards": self.shards,
            "seed": self.seed,
            "islands": self.islands,
        }
        if self.network is None:
            return {**found, "seats": self.seats}
        network = hashlib.blake2b(repr(self.links).encode(), digest_size=8).hexdigest()
        return {
            **found,
            "network": f"{self.network.name} {network}",
            "faults": "\n".join(fault.as_toml() for fault in self.faults),
            "checkpoint every": self.checkpoint_s,
        }

    @property
    def label(self) -> str:
        """The name of the run in progress displays."""
        own = self.strategy or "the script's strategy"
        what = {"ideal": "the ideal", "perfect": f"{own} on perfect links"}.get(self.role, own)
        return f"{what}, seed {self.seed}"

    @property
    def file_name(self) -> str:
        """The file name of its trace."""
        own = self.strategy or "script"
        what = f"{own}.{self.islands}" if self.islands else own
        safe = "".join(c if c.isalnum() or c in "=.-" else "_" for c in what)
        return f"{self.role}.{safe}.seed{self.seed}.jsonl"

    # Files ---

    def as_dict(self) -> dict[str, Any]:
        """Returns the values that differ from the defaults, in types of JSON and TOML; the network by its name or file.
        `resume` is left out: the user asks for it each time.
        """
        found: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default or field.name in {"faults", "resume"}:
                continue
            if isinstance(value, Path):
                value = str(value.resolve())
            elif isinstance(value, Network):
                value = value.origin
            elif field.name == "script":
                value = [str(Path(value[0]).resolve()), *value[1:]]
            found[field.name] = list(value) if isinstance(value, tuple) else value
        if self.faults:
            found["fault"] = tomllib.loads("\n".join(fault.as_toml() for fault in self.faults))["fault"]
        return found

    @classmethod
    def from_dict(
        cls, found: dict[str, Any], where: str = "configuration", *, network: Network | None = None
    ) -> "RunConfig":
        """Reads the output of `as_dict`.

        Args:
            found: keys and values.
            where: the first words of errors.
            network: instead of what is named there.
        """
        values = dict(found)
        faults, named = values.pop("fault", []), values.pop("network", "")
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known or key == "faults":
                raise ConfigError(f"{where}: there is no key {key!r}; {nearest(key, ['network', 'fault', *known])}")
        if network is None and named:
            network = load_network(named)
        try:
            config = msgspec.convert(values, cls, dec_hook=_read_path)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where}: {error}") from None
        names = network.node_names if network else ()
        return dataclasses.replace(config, network=network, faults=read_faults(faults, names, where=where))

    def as_toml(self) -> str:
        """Returns the content of the file that repeats the run."""
        found = self.as_dict()
        faults = found.pop("fault", [])
        lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in found.items()]
        text = "\n".join([*lines, ""])
        return "\n".join([text, *(fault.as_toml() for fault in self.faults)]) if faults else text

    def write(self, path: Path) -> None:
        """Writes the file that repeats the run.  A network that was made in code has no name, and is not written."""
        how = "`atoll run` with this file repeats the run."
        if self.world == "live":
            how = "`atoll node --config THIS --listen HOST:PORT` begins such a run."
        elif self.role != "strategy":
            how = f"The {self.role} run of a comparison; `atoll compare` repeats it."
        note = "" if self.network is None or self.network.origin else "# Its network was made in code.\n"
        path.write_text(f"# {how}\n{note}{self.as_toml()}", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "RunConfig":
        """Reads a configuration from a TOML or JSON file; paths in it are relative to the file."""
        found = _load(path)
        if found is None:
            raise ConfigError(f"{path}: expected TOML or JSON, as in docs/config.md")
        for key in ("data", "checkpoints", "save"):
            if isinstance(found.get(key), str):
                found[key] = str(path.parent / found[key])
        network = found.get("network")
        if isinstance(network, str) and network.endswith(".toml"):
            found["network"] = str(path.parent / network)
        script = found.get("script")
        if isinstance(script, list) and script and isinstance(script[0], str):
            found["script"] = [str(path.parent / script[0]), *script[1:]]
        config = cls.from_dict(found, str(path))
        if config.network is None and config.world != "live":
            raise ConfigError(f'{path}: expected a network, as in network = "triangle"')
        return config


def _read_path(kind: type, value: Any) -> Path:
    if kind is not Path or not isinstance(value, str):
        raise ValueError(f"expected a text, not {value!r}")
    return Path(value)


def is_config(path: Path) -> bool:
    """Returns whether a file is a configuration, and not a network."""
    found = _load(path)
    return found is not None and bool({field.name for field in dataclasses.fields(RunConfig)} & found.keys())


def _load(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
