"""Failed runs: kept beside the traces of the other runs, so that every report can mention them."""

import dataclasses
import json
import traceback
from dataclasses import dataclass
from pathlib import Path

from atoll.errors import AtollError

__all__ = ["RunFailure", "read_failures"]

_SUFFIX = ".failed.json"


@dataclass(frozen=True, kw_only=True)
class RunFailure:
    """A run that ended with an error."""

    strategy: str
    role: str
    seed: int
    reason: str
    """The reason in one line."""
    traceback: str = ""

    @classmethod
    def of(cls, strategy: str, role: str, seed: int, error: Exception) -> "RunFailure":
        told = str(error) if isinstance(error, AtollError) else f"{type(error).__name__}: {error}"
        reason = " ".join(told.split()).removesuffix(":")
        where = "".join(traceback.format_exception(error))
        return cls(strategy=strategy, role=role, seed=seed, reason=reason, traceback=where)

    @property
    def told(self) -> str:
        """Which run failed and why, in one line."""
        what = {"ideal": "the ideal", "perfect": f"{self.strategy} on perfect links"}.get(self.role, self.strategy)
        return f"{what}, seed {self.seed}: {self.reason}"

    def write(self, trace: Path) -> Path:
        """Writes it in place of the run's trace."""
        path = trace.with_name(trace.name.removesuffix(".jsonl") + _SUFFIX)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")
        return path


def read_failures(folder: Path) -> list[RunFailure]:
    """All failures of a folder of traces."""
    paths = sorted(folder.glob(f"*{_SUFFIX}"))
    return [RunFailure(**json.loads(path.read_text(encoding="utf-8"))) for path in paths]
