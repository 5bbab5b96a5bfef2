"""One llama layer in numpy, forward and backward, as training runs it: all positions at once, all that is needed kept.

Shapes: x [T, hidden], heads [T, heads, head_dim], probabilities [query heads, T, T]. float32. The forward pass computes
what the reference backend computes; the backward pass is its derivative, op by op from the last to the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvwise.spec.model import AttentionSpec, LayerSpec

Array = NDArray[np.floating[Any]]
Weights = dict[str, Array]  # q k v o gate up down [out, in]; attn_norm mlp_norm [hidden]
Saved = dict[str, Array]  # activations that the backward pass reads


@dataclass(frozen=True, slots=True)
class Layer:
    """`positions` [T] rotate q and k; `eps` is the norms'."""

    spec: LayerSpec
    eps: float
    positions: NDArray[np.int64]

    def forward(self, x: Array, w: Weights) -> tuple[Array, Saved]:
        """The layer's output [T, hidden], and what backward needs."""
        a = self.spec.attention
        saved: Saved = {"x": x}
        n, saved["inv_attn"] = _norm(x, w["attn_norm"], self.eps)
        q = self._rotated(_heads(n @ w["q"].T, a.num_q_heads), 1)
        k = self._rotated(_heads(n @ w["k"].T, a.num_kv_heads), 1)
        v = _heads(n @ w["v"].T, a.num_kv_heads)
        p = _probabilities(q, k, a)
        mixed = _mixed(p, v, a)
        y = x + mixed @ w["o"].T
        m, saved["inv_mlp"] = _norm(y, w["mlp_norm"], self.eps)
        gate, up = m @ w["gate"].T, m @ w["up"].T
        h = gate * _sigmoid(gate) * up
        saved.update(n=n, q=q, k=k, v=v, p=p, mixed=mixed, y=y, m=m, gate=gate, up=up, h=h)
        return y + h @ w["down"].T, saved

    def backward(self, out: Array, w: Weights, s: Saved) -> tuple[Array, Weights]:
        """From the loss's derivative by the output [T, hidden]: those by x, and by each weight."""
        a, g = self.spec.attention, Weights()
        g["down"] = out.T @ s["h"]
        h = out @ w["down"]
        sigmoid = _sigmoid(s["gate"])
        gate = h * s["up"] * sigmoid * (1 + s["gate"] * (1 - sigmoid))
        up = h * s["gate"] * sigmoid
        g["gate"], g["up"] = gate.T @ s["m"], up.T @ s["m"]
        m = gate @ w["gate"] + up @ w["up"]
        from_norm, g["mlp_norm"] = _norm_backward(m, s["y"], s["inv_mlp"], w["mlp_norm"])
        y = out + from_norm
        g["o"] = y.T @ s["mixed"]
        q, k, v = _attention_backward(_heads(y @ w["o"], a.num_q_heads), s, a)
        q, k = self._rotated(q, -1), self._rotated(k, -1)
        flat = {"q": q.reshape(len(q), -1), "k": k.reshape(len(k), -1), "v": v.reshape(len(v), -1)}
        g.update({name: value.T @ s["n"] for name, value in flat.items()})
        n = sum((value @ w[name] for name, value in flat.items()), np.zeros_like(s["n"]))
        from_norm, g["attn_norm"] = _norm_backward(n, s["x"], s["inv_attn"], w["attn_norm"])
        return y + from_norm, g

    def _rotated(self, x: Array, direction: int) -> Array:
        """Rotary embedding, or its inverse, which is its derivative too."""
        rope = self.spec.attention.rope
        assert rope is not None
        angles = np.outer(self.positions, np.array(rope.inv_freqs()) * direction)[:, None, :]
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        half = rope.rotary_dim // 2
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _heads(x: Array, count: int) -> Array:
    return x.reshape(len(x), count, -1)


def _sigmoid(x: Array) -> Array:
    out: Array = 1 / (1 + np.exp(-x))
    return out


def _norm(x: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    inverse: Array = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    out: Array = x * inverse * weight
    return out, inverse


def _norm_backward(out: Array, x: Array, inverse: Array, weight: Array) -> tuple[Array, Array]:
    normal = x * inverse
    scaled = out * weight
    by_x: Array = inverse * (scaled - normal * np.mean(scaled * normal, axis=-1, keepdims=True))
    by_weight: Array = (out * normal).sum(axis=0)
    return by_x, by_weight


def _by_group(x: Array, a: AttentionSpec) -> Array:
    """Query heads [T, heads, d] as [KV heads, group · T, d]: those that share K and V, one after the other."""
    tokens, group = len(x), a.num_q_heads // a.num_kv_heads
    return (
        x.reshape(tokens, a.num_kv_heads, group, -1).transpose(1, 2, 0, 3).reshape(a.num_kv_heads, group * tokens, -1)
    )


def _from_group(x: Array, a: AttentionSpec) -> Array:
    """The inverse of _by_group."""
    group = a.num_q_heads // a.num_kv_heads
    tokens = x.shape[1] // group
    return x.reshape(a.num_kv_heads, group, tokens, -1).transpose(2, 0, 1, 3).reshape(tokens, a.num_q_heads, -1)


def _probabilities(q: Array, k: Array, a: AttentionSpec) -> Array:
    """[query heads, T, T]: softmax of the scores of what each position may see."""
    tokens = len(q)
    scores = (_by_group(q, a) @ k.transpose(1, 2, 0)).reshape(a.num_q_heads, tokens, tokens)
    scores *= np.float32(a.scale)
    scores += np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _mixed(p: Array, v: Array, a: AttentionSpec) -> Array:
    """The values that each query head takes, [T, query heads · head_dim]."""
    tokens = p.shape[1]
    return _from_group(p.reshape(a.num_kv_heads, -1, tokens) @ v.transpose(1, 0, 2), a).reshape(tokens, -1)


def _attention_backward(out: Array, s: Saved, a: AttentionSpec) -> tuple[Array, Array, Array]:
    """From the derivative by the mixed values [T, query heads, d]: those by q, k and v, q and k rotated."""
    tokens, grouped = len(out), _by_group(out, a)
    p = s["p"].reshape(a.num_kv_heads, -1, tokens)
    v = (p.transpose(0, 2, 1) @ grouped).transpose(1, 0, 2)
    by_p = grouped @ s["v"].transpose(1, 2, 0)
    scores = p * (by_p - (by_p * p).sum(axis=-1, keepdims=True)) * np.float32(a.scale)
    q = _from_group(scores @ s["k"].transpose(1, 0, 2), a)
    k = (scores.transpose(0, 2, 1) @ _by_group(s["q"], a)).transpose(1, 0, 2)
    return q, k, v


def activation_elements(layer: LayerSpec, hidden: int, tokens: int) -> int:
    """What forward keeps for backward: per position, and the probabilities of every pair of positions."""
    a, mlp = layer.attention, layer.mlp
    inner = getattr(mlp, "intermediate", 0)
    per_token = 4 * hidden + 2 + 2 * a.q_width + 2 * a.kv_width + 3 * inner
    return tokens * per_token + a.num_q_heads * tokens * tokens
