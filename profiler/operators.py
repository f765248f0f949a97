"""Floating-point operations and bytes of a transformer's operators (DuetServe §4.1).

Symbols: n tokens in the batch, d hidden size, m intermediate size, h_q and h_kv query and KV heads, d_h head size,
s bytes per element, q new tokens and c cached tokens of one request.
"""


def linear_flops(n: int, d_i: int, d_o: int) -> int:
    """F_lin = 2 n d_i d_o.

    >>> linear_flops(n=1, d_i=4096, d_o=4096)
    33554432
    """
    return 2 * n * d_i * d_o


def linear_bytes(n: int, d_i: int, d_o: int, s: int, s_w: float | None = None) -> float:
    """B_lin = n d_i s + d_i d_o s_w + n d_o s, where a weight takes s_w bytes; None: s, as in the paper.

    >>> linear_bytes(n=1, d_i=4096, d_o=4096, s=2)
    33570816
    """
    return n * d_i * s + d_i * d_o * (s if s_w is None else s_w) + n * d_o * s


def attention_flops(q: int, c: int, h_q: int, d_h: int) -> int:
    """F_attn = (4 h_q d_h + 2 h_q) x (pairs of a query and a key it sees).

    The paper counts q (q + c) pairs; causal kernels skip the upper triangle, so here it is q c + q (q + 1) / 2. The two
    agree for decode (q = 1).

    >>> attention_flops(q=1, c=99, h_q=32, d_h=128) == 4 * 32 * 100 * 128 + 2 * 32 * 100
    True
    """
    pairs = q * c + q * (q + 1) // 2
    return (4 * h_q * d_h + 2 * h_q) * pairs
