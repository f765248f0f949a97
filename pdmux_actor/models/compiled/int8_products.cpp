// Products of 8-bit weights and activations that are rounded to 8 bits token by token: sums of integers, which are exact,
// so a token's values do not depend on its neighbours.
//
// Weights lie in panels of 16 rows: of each four columns, 16 rows of four levels side by side.
#include <vector>

#include "bfloat16_lanes.h"

using namespace muxfleet;

namespace {

constexpr int kPanelRows = 16, kPanelsAtOnce = 4;
// Of a tile: what its sums leave room for in the registers.
constexpr int kMostTokens = kHas32Registers ? 12 : 4, kTokensOfTwoPanels = kHas32Registers ? 12 : 2;
constexpr int kTokensOfFourPanels = kHas32Registers ? 4 : 1;

constexpr bool fits(int tokens, int panels) {
    return tokens <= (panels > 2 ? kTokensOfFourPanels : panels > 1 ? kTokensOfTwoPanels : kMostTokens);
}

inline __m512 read16(const void* from, int64_t at, bool is_float) {
    return is_float ? _mm512_loadu_ps((const float*)from + at) : wide16((const u16*)from + at);
}

struct Out {
    const int32_t* shift;  // 128 times the sum of a row's levels
    const float* scale;
    const float* steps;
    const void *bias, *addend;
    void* y;
    int64_t n;
    bool is_float;
};

__attribute__((noinline)) void put(const Out& o, int64_t m, int64_t row, __m512i sums) {
    __m512 v = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, _mm512_loadu_si512(o.shift + row)));
    v = _mm512_mul_ps(_mm512_mul_ps(v, _mm512_loadu_ps(o.scale + row)), _mm512_set1_ps(o.steps[m]));
    if (o.bias) v = _mm512_add_ps(v, read16(o.bias, row, o.is_float));
    if (o.addend) v = _mm512_add_ps(v, read16(o.addend, m * o.n + row, o.is_float));
    if (o.is_float) _mm512_storeu_ps((float*)o.y + m * o.n + row, v);
    else narrow16((u16*)o.y + m * o.n + row, v);
}

template <int MR, int NB>
void tile(const int8_t* panels, int64_t k, const uint8_t* x, int64_t m, int64_t row, const Out& o) {
    __m512i acc[MR][NB];  // in registers: all loops over it are unrolled
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int b = 0; b < NB; b++) acc[i][b] = _mm512_setzero_si512();
    const uint8_t* from = x + m * k;
    for (int64_t q = 0; q < k; q += 4) {
        __m512i w[NB];
#pragma GCC unroll 4
        for (int b = 0; b < NB; b++) {
            const int8_t* at = panels + (b * k + q) * kPanelRows;
            w[b] = _mm512_loadu_si512(at);
            if (MR <= 4) _mm_prefetch((const char*)at + 1024, _MM_HINT_T0);
        }
#pragma GCC unroll 12
        for (int i = 0; i < MR; i++) {
            int32_t four;
            std::memcpy(&four, from + i * k + q, 4);
            __m512i a = _mm512_set1_epi32(four);
#pragma GCC unroll 4
            for (int b = 0; b < NB; b++) acc[i][b] = _mm512_dpbusd_epi32(acc[i][b], a, w[b]);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int b = 0; b < NB; b++) put(o, m + i, row + b * kPanelRows, acc[i][b]);
}

template <int NB>
void tiles(int64_t tokens, const int8_t* panels, int64_t k, const uint8_t* x, int64_t m, int64_t row, const Out& o) {
    switch (tokens) {
#define TOKENS(MR) case MR: if constexpr (fits(MR, NB)) tile<MR, NB>(panels, k, x, m, row, o); return;
        TOKENS(1) TOKENS(2) TOKENS(3) TOKENS(4) TOKENS(5) TOKENS(6)
        TOKENS(7) TOKENS(8) TOKENS(9) TOKENS(10) TOKENS(11) TOKENS(12)
#undef TOKENS
    }
}

// Takes a token's x for step * (level - 128), with step = max |x| / 127.
inline float round_token(const void* x, int64_t at, int64_t k, bool is_float, uint8_t* levels) {
    __m512 most = _mm512_setzero_ps();
    for (int64_t q = 0; q < k; q += 16) most = _mm512_max_ps(most, _mm512_abs_ps(read16(x, at + q, is_float)));
    float step = std::max(_mm512_reduce_max_ps(most), 127 * 1.17549435e-38f) / 127;
    for (int64_t q = 0; q < k; q += 16) {
        __m512 steps = _mm512_div_ps(read16(x, at + q, is_float), _mm512_set1_ps(step));
        __m512i whole = _mm512_cvttps_epi32(_mm512_add_ps(steps, _mm512_set1_ps(128.5f)));
        _mm_storeu_si128((__m128i*)(levels + q), _mm512_cvtepi32_epi8(whole));
    }
    return step;
}

}  // namespace

// x [m][k], y and addend [m][n] and bias [n], all in float or all in bfloat16.
extern "C" void muxfleet_int8_linear(const int8_t* weight, const int32_t* shift, const float* scale, int64_t n, int64_t k,
                                     const void* x, int64_t m, int64_t is_float, const void* bias, const void* addend,
                                     void* y) {
    // Of the calling thread, for all of its team: no call allocates but one of more tokens than any before.
    thread_local std::vector<uint8_t> kept_levels;
    thread_local std::vector<float> kept_steps;
    if (kept_levels.size() < size_t(m * k)) kept_levels.resize(m * k);
    if (kept_steps.size() < size_t(m)) kept_steps.resize(m);
    uint8_t* levels = kept_levels.data();
    float* steps = kept_steps.data();
    Out o{shift, scale, steps, bias, addend, y, n, is_float != 0};
    int64_t m_tiles = (m + kMostTokens - 1) / kMostTokens, panels = n / kPanelRows;
    int64_t groups = (panels + kPanelsAtOnce - 1) / kPanelsAtOnce;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < m; t++) steps[t] = round_token(x, t * k, k, o.is_float, levels + t * k);
#pragma omp for schedule(static)
        for (int64_t g = 0; g < groups; g++) {
            int64_t first = g * kPanelsAtOnce, last = std::min(panels, first + kPanelsAtOnce);
            for (int64_t t = 0; t < m_tiles; t++) {
                int64_t at = t * m / m_tiles, tokens = (t + 1) * m / m_tiles - at;
                for (int64_t p = first; p < last;) {
                    const int8_t* panel = weight + p * kPanelRows * k;
                    int64_t row = p * kPanelRows;
                    if (tokens <= kTokensOfFourPanels && last - p >= 4) { tiles<4>(tokens, panel, k, levels, at, row, o); p += 4; }
                    else if (tokens <= kTokensOfTwoPanels && last - p >= 2) { tiles<2>(tokens, panel, k, levels, at, row, o); p += 2; }
                    else { tiles<1>(tokens, panel, k, levels, at, row, o); p += 1; }
                }
            }
        }
    }
}
