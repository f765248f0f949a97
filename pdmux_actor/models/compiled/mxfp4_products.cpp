// Products with weights in MXFP4: y = x W^T + bias, sums in float. Of each 32 columns a row has 16 bytes of two 4-bit floats
// each, the even column's in the lower bits, and a power of two, its exponent 127 too high. Nothing is rounded but y.
//
// Weights are widened once for up to six tokens; a token's sum runs in the same order whatever their number.
#include "bfloat16_lanes.h"

using namespace muxfleet;

namespace {

constexpr int64_t kGroup = 32;
constexpr int kRows = 4;

struct Wide { __m512 even, odd; };

inline Wide widened(const uint8_t* block, uint8_t exponent) {
    const __m512 values = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)block));
    __m512 scale = _mm512_castsi512_ps(_mm512_set1_epi32(int(exponent) << 23));
    __m512 even = _mm512_permutexvar_ps(bytes, values), odd = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), values);
    return {_mm512_mul_ps(even, scale), _mm512_mul_ps(odd, scale)};
}

struct Product { const uint8_t *blocks, *exponents; int64_t k; const u16* bias; u16* y; int64_t n; };

template <int MR>
void tile(const Product& p, const float* x, int64_t m, int64_t n, int live) {
    __m512 acc[MR][kRows];
    for (int i = 0; i < MR; i++) for (int j = 0; j < kRows; j++) acc[i][j] = _mm512_setzero_ps();
    for (int64_t g = 0; g < p.k / kGroup; g++) {
#pragma GCC unroll 4
        for (int j = 0; j < kRows; j++) {
            int64_t row = n + std::min(j, live - 1);
            const uint8_t* block = p.blocks + row * p.k / 2 + g * kGroup / 2;
            Wide w = widened(block, p.exponents[row * p.k / kGroup + g]);
            _mm_prefetch((const char*)block + kRows * p.k / 2, _MM_HINT_T0);
#pragma GCC unroll 6
            for (int i = 0; i < MR; i++) {
                const float* from = x + (m + i) * p.k + g * kGroup;
                acc[i][j] = _mm512_fmadd_ps(_mm512_loadu_ps(from), w.even, acc[i][j]);
                acc[i][j] = _mm512_fmadd_ps(_mm512_loadu_ps(from + 16), w.odd, acc[i][j]);
            }
        }
    }
    for (int i = 0; i < MR; i++) {
        alignas(16) float sums[kRows];
        _mm_store_ps(sums, sums_of(acc[i][0], acc[i][1], acc[i][2], acc[i][3]));
        for (int j = 0; j < live; j++)
            p.y[(m + i) * p.n + n + j] = narrow(sums[j] + (p.bias ? widen(p.bias[n + j]) : 0.0f));
    }
}

void tiles(int tokens, const Product& p, const float* x, int64_t m, int64_t n, int live) {
    switch (tokens) {
        case 1: return tile<1>(p, x, m, n, live);
        case 2: return tile<2>(p, x, m, n, live);
        case 3: return tile<3>(p, x, m, n, live);
        case 4: return tile<4>(p, x, m, n, live);
        case 5: return tile<5>(p, x, m, n, live);
        default: return tile<6>(p, x, m, n, live);
    }
}

}  // namespace

// x [m][k], y [m][n]; `wide` [m][k] is written: of each 32 columns the even ones, then the odd ones.
extern "C" void muxfleet_mxfp4_linear(const uint8_t* blocks, const uint8_t* exponents, int64_t n, int64_t k, const u16* x,
                                      int64_t m, const u16* bias, u16* y, float* wide) {
    Product p{blocks, exponents, k, bias, y, n};
    int64_t m_tiles = (m + 5) / 6, quads = (n + kRows - 1) / kRows;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < m * k / kGroup; i++) {
            __m512i pairs = _mm512_loadu_si512(x + i * kGroup);
            _mm512_storeu_ps(wide + i * kGroup, even_of(pairs));
            _mm512_storeu_ps(wide + i * kGroup + 16, odd_of(pairs));
        }
#pragma omp for schedule(static)
        for (int64_t q = 0; q < quads; q++)
            for (int64_t t = 0; t < m_tiles; t++) {
                int64_t at = t * m / m_tiles, row = q * kRows;
                tiles(int((t + 1) * m / m_tiles - at), p, wide, at, row, int(std::min<int64_t>(kRows, n - row)));
            }
    }
}

// W [n][k] in bfloat16, which has all of its values.
extern "C" void muxfleet_mxfp4_unpacked(const uint8_t* blocks, const uint8_t* exponents, int64_t n, int64_t k, u16* to) {
#pragma omp parallel for schedule(static)
    for (int64_t g = 0; g < n * k / kGroup; g++) {
        Wide w = widened(blocks + g * kGroup / 2, exponents[g]);
        __m512i low = _mm512_srli_epi32(_mm512_castps_si512(w.even), 16);
        __m512i high = _mm512_and_si512(_mm512_castps_si512(w.odd), _mm512_set1_epi32(int(0xffff0000u)));
        _mm512_storeu_si512(to + g * kGroup, _mm512_or_si512(low, high));
    }
}
