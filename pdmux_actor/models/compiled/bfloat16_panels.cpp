// Products of bfloat16 weights and activations: y = x W^T + bias + addend, sums in float, by an instruction that adds
// two products at once (vdpbf16ps). A row's sum runs along `k` in the same order whatever the number of tokens, so a
// token's values do not depend on its neighbours.
//
// Weights lie in panels of 16 rows: of each two columns, 16 rows of two numbers side by side.
#include <omp.h>

#include "bfloat16_lanes.h"

using namespace muxfleet;

namespace {

constexpr int kPanelRows = 16, kPanelsAtOnce = 4, kAheadBytes = 1024;
// Of a tile: what its sums leave room for in the registers.
constexpr int kMostTokens = kHas32Registers ? 12 : 6, kTokensOfTwoPanels = kHas32Registers ? 12 : 3;
constexpr int kTokensOfFourPanels = kHas32Registers ? 6 : 1;

constexpr bool fits(int tokens, int panels) {
    return tokens <= (panels > 2 ? kTokensOfFourPanels : panels > 1 ? kTokensOfTwoPanels : kMostTokens);
}

struct Out {
    const u16 *bias, *addend;
    u16* y;
    int64_t n;
};

inline void put(const Out& o, int64_t m, int64_t row, __m512 sums) {
    if (o.bias) sums = _mm512_add_ps(sums, wide16(o.bias + row));
    if (o.addend) sums = _mm512_add_ps(sums, wide16(o.addend + m * o.n + row));
    narrow16(o.y + m * o.n + row, sums);
}

// `IsFirst`: these weights come from memory, and not from the cache as for the tokens after these.
template <int MR, int NB, bool IsFirst>
void tile(const u16* panels, int64_t k, const u16* x, int64_t m, int64_t row, const Out& o) {
    __m512 acc[MR][NB];  // in registers: all loops over it are unrolled
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int b = 0; b < NB; b++) acc[i][b] = _mm512_setzero_ps();
    const u16* from = x + m * k;
    for (int64_t q = 0; q < k; q += 2) {
        __m512bh w[NB];
#pragma GCC unroll 4
        for (int b = 0; b < NB; b++) {
            const u16* at = panels + (b * k + q) * kPanelRows;
            w[b] = (__m512bh)_mm512_loadu_si512(at);
            if (IsFirst) _mm_prefetch((const char*)at + kAheadBytes, _MM_HINT_T0);
        }
#pragma GCC unroll 12
        for (int i = 0; i < MR; i++) {
            int32_t two;
            std::memcpy(&two, from + i * k + q, 4);
            __m512bh a = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 4
            for (int b = 0; b < NB; b++) acc[i][b] = _mm512_dpbf16_ps(acc[i][b], w[b], a);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int b = 0; b < NB; b++) put(o, m + i, row + b * kPanelRows, acc[i][b]);
}

template <int NB, bool IsFirst>
void tiles(int64_t tokens, const u16* panels, int64_t k, const u16* x, int64_t m, int64_t row, const Out& o) {
    switch (tokens) {
#define TOKENS(MR) case MR: if constexpr (fits(MR, NB)) tile<MR, NB, IsFirst>(panels, k, x, m, row, o); return;
        TOKENS(1) TOKENS(2) TOKENS(3) TOKENS(4) TOKENS(5) TOKENS(6)
        TOKENS(7) TOKENS(8) TOKENS(9) TOKENS(10) TOKENS(11) TOKENS(12)
#undef TOKENS
    }
}

template <bool IsFirst>
void group(int64_t first, int64_t last, const u16* w, int64_t k, const u16* x, int64_t m, int64_t tokens, const Out& o) {
    for (int64_t p = first; p < last;) {
        const u16* panel = w + p * kPanelRows * k;
        int64_t row = p * kPanelRows;
        if (tokens <= kTokensOfFourPanels && last - p >= 4) { tiles<4, IsFirst>(tokens, panel, k, x, m, row, o); p += 4; }
        else if (tokens <= kTokensOfTwoPanels && last - p >= 2) { tiles<2, IsFirst>(tokens, panel, k, x, m, row, o); p += 2; }
        else { tiles<1, IsFirst>(tokens, panel, k, x, m, row, o); p += 1; }
    }
}

}  // namespace

// w: panels of n rows of k columns; x [m][k], y and addend [m][n], bias [n].
extern "C" void muxfleet_panel_linear(const u16* w, int64_t n, int64_t k, const u16* x, int64_t m, const u16* bias,
                                      const u16* addend, u16* y) {
    Out o{bias, addend, y, n};
    int64_t most_tokens = m <= kMostTokens ? kMostTokens : 6;
    int64_t panels = n / kPanelRows, m_tiles = (m + most_tokens - 1) / most_tokens;
    int64_t at_once = kPanelsAtOnce;  // fewer where threads would get unequal parts
    while (at_once > 1 && panels < 4 * at_once * omp_get_max_threads()) at_once /= 2;
    int64_t groups = (panels + at_once - 1) / at_once;
#pragma omp parallel for schedule(static)
    for (int64_t g = 0; g < groups; g++) {
        int64_t first = g * at_once, last = std::min(panels, first + at_once);
        for (int64_t t = 0; t < m_tiles; t++) {
            int64_t at = t * m / m_tiles, tokens = (t + 1) * m / m_tiles - at;
            if (t == 0) group<true>(first, last, w, k, x, at, tokens, o);
            else group<false>(first, last, w, k, x, at, tokens, o);
        }
    }
}
