"""Each op of the program as its formula, in numpy. Shapes are [rows, width]; nothing is fused, nothing is clever.

Knows no files and no scheduling. Weights arrive dequantized, K and V through the store as they were rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvwise.backends.reference.store import KVStore
from kvwise.program.ir import (
    Add,
    Attention,
    Embed,
    GatherRows,
    Glu,
    MatMul,
    Narrow,
    Op,
    Quantize,
    RmsNorm,
    Rope,
    Softcap,
)
from kvwise.spec.batch import StepBatch
from kvwise.spec.model import Activation, RopeSpec

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Step:
    """What an op may look at: this step's batch, the slots written so far, weights, rotations and the KV store."""

    batch: StepBatch
    slots: Mapping[str, Array]
    weights: Mapping[str, Array]
    ropes: tuple[RopeSpec, ...]
    store: KVStore


@singledispatch
def compute(op: Op, step: Step) -> Array:
    """The value of `op.out`."""
    raise NotImplementedError(f"the reference backend has no op {type(op).__name__}")


@compute.register
def _(op: Embed, step: Step) -> Array:
    out: Array = step.weights[op.table][step.batch.token_ids] * op.scale
    return out


@compute.register
def _(op: RmsNorm, step: Step) -> Array:
    x = step.slots[op.x]
    groups = x.reshape(x.shape[0], -1, op.group)
    scale = 1 / np.sqrt(np.mean(groups * groups, axis=-1, keepdims=True) + op.eps)
    out: Array = groups * scale * (step.weights[op.weight] + op.weight_offset)
    return out.reshape(x.shape)


@compute.register
def _(op: Quantize, step: Step) -> Array:
    """The quantized activation as numbers again: integers in [-127, 127] times their group's float32 scale."""
    x = step.slots[op.x]
    first = _rounded_to_q8(x, op.group)
    if not op.twice:
        return first
    out: Array = first + _rounded_to_q8(x.astype(np.float32) - first.astype(np.float32), op.group).astype(x.dtype)
    return out


@compute.register
def _(op: Narrow, step: Step) -> Array:
    """Rounded to bfloat16, as numbers again."""
    x = step.slots[op.x]
    bits = x.astype(np.float32).view(np.uint32)
    rounded = np.where(np.isnan(x), bits | 0x400000, bits + (0x7FFF + (bits >> 16 & 1))) & np.uint32(0xFFFF0000)
    out: Array = rounded.astype(np.uint32).view(np.float32).astype(x.dtype)
    return out


def _rounded_to_q8(x: Array, group: int) -> Array:
    rows, width = x.shape
    padded = np.zeros((rows, -(-width // group), group), np.float32)
    padded.reshape(rows, -1)[:, :width] = x
    largest = np.abs(padded).max(axis=-1, keepdims=True)
    scale = largest / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    quantized = np.rint(padded * inverse).clip(-127, 127)
    out: Array = (quantized.astype(x.dtype) * scale.astype(x.dtype)).reshape(rows, -1)[:, :width]
    return out


@compute.register
def _(op: MatMul, step: Step) -> Array:
    out: Array = step.slots[op.x] @ step.weights[op.weight].T
    return out if op.bias is None else out + step.weights[op.bias]


@compute.register
def _(op: Rope, step: Step) -> Array:
    x = step.slots[op.x]
    rope = step.ropes[op.rope]
    half = rope.rotary_dim // 2
    angles = np.outer(step.batch.positions, np.array(rope.inv_freqs()))[:, None, :]
    cos = np.cos(angles) * rope.scaling.attention_factor
    sin = np.sin(angles) * rope.scaling.attention_factor
    heads = x.reshape(x.shape[0], -1, op.head_dim)
    first, second = heads[..., :half], heads[..., half : 2 * half]
    out = heads.copy()
    out[..., :half] = first * cos - second * sin
    out[..., half : 2 * half] = second * cos + first * sin
    return out.reshape(x.shape)


@compute.register
def _(op: Attention, step: Step) -> Array:
    batch, slots = step.batch, step.slots
    step.store.write(op.layer, batch.slot_mapping, slots[op.k], slots[op.v])
    q = slots[op.q].reshape(batch.num_tokens, op.num_q_heads, op.head_dim)
    out = np.empty_like(q)
    for i, context in enumerate(batch.context_lens):
        rows = slice(batch.query_starts[i], batch.query_starts[i + 1])
        k, v = step.store.read(op.layer, batch.block_tables[i], int(context), q.dtype)
        out[rows] = attend(q[rows], k, v, batch.positions[rows], op)
    return out.reshape(batch.num_tokens, -1)


def attend(q: Array, k: Array, v: Array, positions: Array, op: Attention) -> Array:
    """Causal, windowed attention of one request: q [T, q_heads, d], k and v [L, kv_heads, d] -> [T, q_heads, d]."""
    group = op.num_q_heads // op.num_kv_heads
    k, v = (np.repeat(a, group, axis=1) for a in (k, v))
    scores = np.einsum("thd,lhd->htl", q, k) * op.scale
    if op.softcap is not None:
        scores = op.softcap * np.tanh(scores / op.softcap)
    distance = positions[:, None] - np.arange(k.shape[0])[None, :]
    visible = (distance >= 0) & (distance < (op.window or k.shape[0]))
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Array = np.einsum("htl,lhd->thd", weights, v)
    return out


@compute.register
def _(op: Add, step: Step) -> Array:
    return np.add(step.slots[op.x], step.slots[op.y])


@compute.register
def _(op: Glu, step: Step) -> Array:
    return np.multiply(_ACTIVATIONS[op.activation](step.slots[op.gate]), step.slots[op.up])


@compute.register
def _(op: GatherRows, step: Step) -> Array:
    return np.take(step.slots[op.x], step.batch.logits_rows, axis=0)


@compute.register
def _(op: Softcap, step: Step) -> Array:
    return np.multiply(op.cap, np.tanh(step.slots[op.x] / op.cap))


def _silu(x: Array) -> Array:
    out: Array = x / (1 + np.exp(-x))
    return out


def _gelu_tanh(x: Array) -> Array:
    out: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return out


def _gelu_erf(x: Array) -> Array:
    out: Array = 0.5 * x * (1 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2)))
    return out


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


_ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    Activation.SILU: _silu,
    Activation.GELU_TANH: _gelu_tanh,
    Activation.GELU_ERF: _gelu_erf,
    Activation.RELU: _relu,
}
