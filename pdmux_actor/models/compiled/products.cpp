// Products with weights as they lie in a checkpoint: y = x W^T + bias + addend, W [out][in] in bfloat16, sums in float.
//
// Weights are widened once for up to six tokens. A product's sum runs along `in` in the same order whatever the number
// of tokens, so a token's values do not depend on its neighbours.
#include "bfloat16_lanes.h"

using namespace muxfleet;

namespace {

constexpr int kMostTokens = kHas32Registers ? 6 : 2;  // of a tile: what its sums leave room for in the registers

struct Out { const u16* bias; const u16* addend; u16* y; float* y32; int64_t n; };

inline void put(const Out& o, int64_t m, int64_t n, int count, __m128 sums) {
    alignas(16) float s[4]; _mm_store_ps(s, sums);
    for (int i = 0; i < count; i++) {
        float v = s[i];
        if (o.bias) v += widen(o.bias[n + i]);
        if (o.addend) v += widen(o.addend[m * o.n + n + i]);
        if (o.y32) o.y32[m * o.n + n + i] = v; else o.y[m * o.n + n + i] = narrow(v);
    }
}

template <int MR, int NR>
inline void tile(const u16* w, int64_t k, const float* x, int64_t m, int64_t n, const Out& o, int live) {
    __m512 acc[MR][NR];
    for (int i = 0; i < MR; i++) for (int j = 0; j < NR; j++) acc[i][j] = _mm512_setzero_ps();
    const u16* rows[NR];
    for (int j = 0; j < NR; j++) rows[j] = w + (n + std::min(j, live - 1)) * k;
    for (int64_t q = 0; q < k; q += 32) {
        __m512i raw[NR];
        __m512 v[NR];
#pragma GCC unroll 8
        for (int j = 0; j < NR; j++) { raw[j] = _mm512_loadu_si512(rows[j] + q); v[j] = even_of(raw[j]);
            if (MR <= 6) _mm_prefetch((const char*)(rows[j] + q) + NR * k * 2, _MM_HINT_T0); }
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++) { __m512 a = _mm512_load_ps(x + (m + i) * k + q);
#pragma GCC unroll 8
            for (int j = 0; j < NR; j++) acc[i][j] = _mm512_fmadd_ps(a, v[j], acc[i][j]); }
#pragma GCC unroll 8
        for (int j = 0; j < NR; j++) v[j] = odd_of(raw[j]);
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++) { __m512 a = _mm512_load_ps(x + (m + i) * k + q + 16);
#pragma GCC unroll 8
            for (int j = 0; j < NR; j++) acc[i][j] = _mm512_fmadd_ps(a, v[j], acc[i][j]); }
    }
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NR; j += 4)
            if (j < live) put(o, m + i, n + j, std::min(4, live - j), sums_of(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]));
}

template <int NR>
void tiles(int rows, const u16* w, int64_t k, const float* x, int64_t m, int64_t n, const Out& o, int live) {
    switch (rows) {
        case 1: return tile<1, NR>(w, k, x, m, n, o, live);
        case 2: return tile<2, NR>(w, k, x, m, n, o, live);
#define TOKENS(MR) case MR: if constexpr (MR <= kMostTokens) tile<MR, NR>(w, k, x, m, n, o, live); return;
        TOKENS(3) TOKENS(4) TOKENS(5) TOKENS(6)
#undef TOKENS
    }
}
}  // namespace

extern "C" void muxfleet_linear(const u16* w, int64_t n_rows, int64_t k, const u16* x, const float* x32, int64_t m_rows,
                                const u16* bias, const u16* addend, u16* y, float* y32, float* wide) {
    Out o{bias, addend, y, y32, n_rows};
    int64_t m_tiles = (m_rows + kMostTokens - 1) / kMostTokens;
    int NR = kHas32Registers && m_rows <= 2 ? 8 : 4;
    int64_t block = 64;
    int64_t blocks = (n_rows + block - 1) / block;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < m_rows * k / 32; i++) {
            float* to = wide + i * 32;
            if (x32) for (int j = 0; j < 16; j++) { to[j] = x32[i * 32 + 2 * j]; to[16 + j] = x32[i * 32 + 2 * j + 1]; }
            else { __m512i pairs = _mm512_loadu_si512(x + i * 32); _mm512_store_ps(to, even_of(pairs)); _mm512_store_ps(to + 16, odd_of(pairs)); }
        }
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            int64_t first = b * block, last = std::min(n_rows, first + block);
            for (int64_t t = 0; t < m_tiles; t++) {
                int64_t m = t * m_rows / m_tiles, rows = (t + 1) * m_rows / m_tiles - m;
                for (int64_t n = first; n < last; n += NR) {
                    int live = int(std::min<int64_t>(NR, last - n));
                    if (NR == 8) tiles<8>(int(rows), w, k, wide, m, n, o, live);
                    else tiles<4>(int(rows), w, k, wide, m, n, o, live);
                }
            }
        }
    }
}

