"""What this machine is predicted to take for a step: the machine's profile, measured where it is missing."""

from __future__ import annotations

from collections.abc import Mapping

from kvwise.backends.native.backend import NATIVE
from kvwise.backends.price.price import Pricer, stream_kinds
from kvwise.planner.probe import machine_profile
from kvwise.program.ir import Program
from kvwise.spec.dtypes import TensorType
from kvwise.spec.kv import KVCacheSpec


def native_pricer(program: Program, types: Mapping[str, TensorType], kv: KVCacheSpec, threads: int) -> Pricer:
    """A pricer of `program` as the native backend lowered it. Raises NotMeasured where this machine can't be probed."""
    profile = machine_profile(NATIVE.name, threads, stream_kinds(program, types, kv))
    return Pricer(program, kv, NATIVE.weight_bytes(program, types), types, profile)
