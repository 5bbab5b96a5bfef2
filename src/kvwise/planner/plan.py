"""The result of planning: every figure of `kvwise plan`, and its JSON. Holds and sums; computes no size itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Final

from kvwise.backends.price.roofline import RooflinePricer
from kvwise.errors import DoesNotFit
from kvwise.frozen import dataclass
from kvwise.ledger.host import HostMemory
from kvwise.ledger.levers import Change, format_advice
from kvwise.ledger.memory import MemoryPlan, check_fits
from kvwise.ledger.rows import LedgerRow, largest_residual_bytes
from kvwise.planner.latency import Latency
from kvwise.planner.placed import PlacedPlan
from kvwise.planner.sizes import PLAIN_BITS, plain_weight_bytes
from kvwise.planner.stored import StoredCount
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.model import ModelSpec
from kvwise.units import format_bytes

JSON_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class KVCell:
    """K and V of `batch` requests of `context` tokens each, exact tokens.

    windowed_bytes: where layers with a window keep no more than their window.
    """

    context: int
    batch: int
    stored_bytes: int
    windowed_bytes: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """The same model with as many KV heads as query heads ("mha") or with one ("mqa")."""

    name: str
    num_kv_heads: int
    parameters: int | None
    kv_bytes_per_token: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Every figure of `kvwise plan`. `memory` is None for a shape alone, which has no program.

    active_parameters: all but those of experts that a token is not sent to; None where that is not known.
    stored: what the files hold, part by part, where no engine here loads them. weight_bytes: as stored, or in the type
    asked for. kv_bytes: context x batch, exact tokens. latency: None where nothing is known of the machine's speed.
    placed: on devices other than this machine; rows, total, budget and verdict are then those of the fullest one,
    `memory` is None, and `pricer` prices steps there.
    """

    model: str
    source: str
    family: str | None
    parameters: int
    weight_bytes: int
    weight_type: str
    kv: KVCacheSpec
    context: int
    batch: int
    kv_table: tuple[KVCell, ...]
    alternatives: tuple[Alternative, ...]
    host: HostMemory
    memory_limit: int | None
    memory: MemoryPlan | None
    spec: ModelSpec | None
    notes: tuple[str, ...]
    active_parameters: int | None = None
    embedding_parameters: int | None = None
    stored: StoredCount | None = None
    latency: Latency | None = None
    placed: PlacedPlan | None = None
    pricer: RooflinePricer | None = field(default=None, repr=False)

    @property
    def kv_bytes_per_token(self) -> int:
        """All layers."""
        return self.kv.bytes_per_token

    @property
    def kv_bytes_per_token_growing(self) -> int:
        """Layers without a window."""
        return self.kv.bytes_per_token_growing

    @property
    def kv_bytes(self) -> int:
        return self.batch * self.kv.kv_stored_bytes(self.context)

    @property
    def index_bytes(self) -> int:
        """Keys of indexes beside K and V, for context x batch."""
        return self.batch * self.context * self.kv.index_bytes_per_token

    @property
    def states_bytes(self) -> int:
        """What the batch's requests hold once, whatever the context."""
        return self.batch * self.kv.state_bytes_per_request

    @property
    def weight_bytes_at(self) -> dict[str, int]:
        """Bytes of all parameters at plain widths, without scales."""
        return {name: plain_weight_bytes(self.parameters, name) for name in PLAIN_BITS}

    @property
    def arena_bytes(self) -> int | None:
        if self.placed is not None:
            return self.placed.fullest.row("arena")
        return None if self.memory is None else self.memory.needs.arena_bytes

    @property
    def logits_bytes(self) -> int | None:
        if self.placed is not None:
            return self.placed.stages[-1].row("logits")
        return None if self.memory is None else self.memory.needs.logits_bytes

    @property
    def rows(self) -> tuple[LedgerRow, ...]:
        """The ledger's rows, predicted."""
        if self.placed is not None:
            return self.placed.fullest.rows
        if self.memory is not None:
            return tuple(row for row in self.memory.rows if row.predicted)
        return (
            LedgerRow("weights", self.weight_bytes, None, "B", "formula: parameters"),
            LedgerRow("kv_pool", self.kv_bytes, None, "B", f"formula: {self.context * self.batch} tokens"),
        )

    @property
    def total_bytes(self) -> int:
        if self.placed is not None:
            return self.placed.fullest.total_bytes
        return self.weight_bytes + self.kv_bytes if self.memory is None else self.memory.total_bytes

    @property
    def budget_bytes(self) -> int:
        """What there is: the device's or this machine's memory, or the limit asked about."""
        if self.placed is not None:
            return self.placed.fullest.budget_bytes
        if self.memory is not None:
            return self.memory.budget_bytes
        return self.host.available_bytes if self.memory_limit is None else self.memory_limit

    @property
    def fits(self) -> bool:
        """Whether the total, and the reserve that the ledger allows beside it, is within the budget."""
        if self.placed is not None:
            return self.placed.fits
        if self.memory is not None:
            return self.memory.fits
        return self.total_bytes + self.reserve_bytes <= self.budget_bytes

    @property
    def reserve_bytes(self) -> int:
        """Kept free beside the total, as much as the ledger's residual may be."""
        if self.placed is not None:
            return self.placed.fullest.reserve_bytes
        return largest_residual_bytes(self.total_bytes)

    def check_fits(self, changes: Iterable[Change] | None = None) -> None:
        """Raise DoesNotFit with the arithmetic and the single changes that would make it fit.

        changes: those, where they are known already; they are looked for otherwise.
        """
        if self.fits:
            return
        if self.memory is not None:
            check_fits(self.memory, self.spec)
        if changes is None:
            from kvwise.planner.counterfactuals import counterfactuals

            changes = [found.change for found in counterfactuals(self)]
        problem, most = self._shortage()
        raise DoesNotFit(
            problem,
            expected=f"at most {format_bytes(most)}",
            action=format_advice(changes),
        )

    def _shortage(self) -> tuple[str, int]:
        """What is needed, part by part, and the bytes that there are."""
        if self.placed is not None:
            return self.placed.arithmetic, self.placed.fullest.budget_bytes
        return (
            f"this shape needs {format_bytes(self.total_bytes + self.reserve_bytes)}: weights "
            f"{format_bytes(self.weight_bytes)} + KV {format_bytes(self.kv_bytes)} + "
            f"{format_bytes(self.reserve_bytes)} in reserve"
        ), self.budget_bytes

    def to_json(self) -> dict[str, object]:
        """Everything, in plain types; `version` grows when a name changes its meaning."""
        return {
            "version": JSON_VERSION,
            "model": self.model,
            "source": self.source,
            "family": self.family,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "embedding_parameters": self.embedding_parameters,
            "weight_bytes": self.weight_bytes,
            "weight_type": self.weight_type,
            "stored": None if self.stored is None else self.stored.to_json(),
            "weight_bytes_at": self.weight_bytes_at,
            "kv_dtype": self.kv.kv_type.name,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes_per_token_growing": self.kv_bytes_per_token_growing,
            "index_bytes_per_token": self.kv.index_bytes_per_token,
            "state_bytes_per_request": self.kv.state_bytes_per_request,
            "context": self.context,
            "batch": self.batch,
            "kv_bytes": self.kv_bytes,
            "index_bytes": self.index_bytes,
            "states_bytes": self.states_bytes,
            "kv_table": [
                {
                    "context": cell.context,
                    "batch": cell.batch,
                    "bytes": cell.stored_bytes,
                    "windowed_bytes": cell.windowed_bytes,
                }
                for cell in self.kv_table
            ],
            "alternatives": {
                a.name: {
                    "kv_heads": a.num_kv_heads,
                    "parameters": a.parameters,
                    "kv_bytes_per_token": a.kv_bytes_per_token,
                    "kv_bytes": a.kv_bytes,
                }
                for a in self.alternatives
            },
            "arena_bytes": self.arena_bytes,
            "logits_bytes": self.logits_bytes,
            "latency": None if self.latency is None else self.latency.to_json(),
            "ledger": [row.to_json() for row in self.rows],
            "total_bytes": self.total_bytes,
            "available_bytes": self.budget_bytes,
            "available_source": self.budget_source,
            "fits": self.fits,
            "placed": None if self.placed is None else self.placed.to_json(),
            "notes": list(self.notes),
        }

    @property
    def budget_source(self) -> str:
        """What says how much there is."""
        if self.memory_limit is not None and self.budget_bytes == self.memory_limit:
            return "limit asked about"
        return self.host.source if self.placed is None else self.placed.placement.device.name
