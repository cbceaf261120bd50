"""What is in front of the recurrence in SRU++: everything of the gates' product but its last matrix.

    z = x W1^T                                            [T, B, p]; layer norm here if not normalize_after
    k, v = split(z W2^T);  q = z
    a = softmax(q k^T / sqrt(p / heads) + attn_mask) v    per head; padding gets weight 0
    features = LayerNorm(a * alpha + x W1^T);  U = features W3^T

Without attention: features = LayerNorm(x W1^T), U = features W2^T. The keys are those of `sru` 3.0.0.dev6.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SRUppProjectedLinear(nn.Module):
    """U by two matrices with a LayerNorm between, for the layers without attention."""

    def __init__(self, in_features: int, out_features: int, proj_features: int, layer_norm: bool = False):
        super().__init__()
        self.linear1 = nn.Linear(in_features, proj_features, bias=False)
        self.linear2 = nn.Linear(proj_features, out_features, bias=False)
        self.layer_norm = nn.LayerNorm(proj_features) if layer_norm else None

    @property
    def last(self) -> nn.Linear:
        return self.linear2

    def features(self, input: Tensor, **attention: Tensor | None) -> Tensor:
        """[T, B, proj_features]: everything in front of the last matrix."""
        z = self.linear1(input)
        return z if self.layer_norm is None else self.layer_norm(z)


class SRUppAttention(nn.Module):
    """U by single-projection self-attention."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        proj_features: int,
        num_heads: int = 1,
        layer_norm: bool = False,
        normalize_after: bool = True,
    ):
        super().__init__()
        if proj_features % num_heads:
            raise ValueError(f"proj_features ({proj_features}) must be divisible by num_heads ({num_heads})")
        self.num_heads, self.normalize_after = num_heads, normalize_after
        self.linear1 = nn.Linear(in_features, proj_features, bias=False)
        self.linear2 = nn.Linear(proj_features, 2 * proj_features, bias=False)
        self.linear3 = nn.Linear(proj_features, out_features, bias=False)
        self.alpha = nn.Parameter(torch.zeros(1))
        self.layer_norm = nn.LayerNorm(proj_features) if layer_norm else None

    @property
    def last(self) -> nn.Linear:
        return self.linear3

    def features(
        self,
        input: Tensor,
        mask_pad: Tensor | None = None,
        attn_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask_pad: Tensor | None = None,
    ) -> Tensor:
        """[T, B, proj_features]: everything in front of the last matrix.

        Args:
            input: [T, B, in_features].
            mask_pad: [T, B], non-zero at padding.
            attn_mask: [T, S], added to the attention's logits; S = T, or memory length + T.
            memory: [M, B, in_features], put in front of the input as keys and values.
            memory_mask_pad: [M, B], non-zero at padding.
        """
        source = input if memory is None else torch.cat([memory, input])
        z = self.linear1(source)
        residual = z if memory is None else z[memory.shape[0] :]
        if self.layer_norm is not None and not self.normalize_after:
            z = self.layer_norm(z)
        queries = z if memory is None else z[memory.shape[0] :]
        keys, values = self.linear2(z).chunk(2, dim=-1)
        q, k, v = (self._heads(t) for t in (queries, keys, values))
        logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # [B, heads, T, S]
        if attn_mask is not None:
            logits = logits + attn_mask
        padding = self._padding(input, mask_pad, memory, memory_mask_pad)
        if padding is not None:
            logits = logits.masked_fill(padding.transpose(0, 1)[:, None, None, :], float("-inf"))
        mixed = (torch.softmax(logits, dim=-1) @ v).permute(2, 0, 1, 3).flatten(2)
        output = mixed * self.alpha + residual
        if self.layer_norm is not None and self.normalize_after:
            output = self.layer_norm(output)
        return output

    def _heads(self, t: Tensor) -> Tensor:
        """[S, B, p] to [B, heads, S, p / heads]."""
        return t.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)

    @staticmethod
    def _padding(
        input: Tensor, mask_pad: Tensor | None, memory: Tensor | None, memory_mask_pad: Tensor | None
    ) -> Tensor | None:
        """BOOL [S, B], true at padding; None where nothing is."""
        if mask_pad is None and memory_mask_pad is None:
            return None
        now = input.new_zeros(input.shape[:2], dtype=torch.bool) if mask_pad is None else mask_pad != 0
        if memory is None:
            return now
        if memory_mask_pad is None:
            memory_mask_pad = input.new_zeros(memory.shape[:2], dtype=torch.bool)
        return torch.cat([memory_mask_pad != 0, now])
