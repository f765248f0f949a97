// bfloat16 in AVX-512: widening, rounding to nearest even, sums across lanes. Pairs of numbers are widened without a
// shuffle: of 32 bfloat16 the 16 at even places first, then the 16 at odd ones.
#pragma once

#include "avx512_by_avx2.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace muxfleet {

using u16 = uint16_t;

inline float widen(u16 value) {
    uint32_t bits = uint32_t(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, 4);
    return wide;
}

inline u16 narrow(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return u16(0x7fc0);
    return u16((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline __m512 even_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

inline __m512 odd_of(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u))));
}

inline __m512 wide16(const u16* from) {
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

inline void narrow16(u16* to, __m512 value) {
    __m512i bits = _mm512_castps_si512(value);
    __m512i lowest = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(lowest, _mm512_set1_epi32(0x7fff)));
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    __m512i rounded = _mm512_mask_mov_epi32(_mm512_srli_epi32(up, 16), is_nan, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16(rounded));
}

// The sums of four vectors, side by side.
inline __m128 sums_of(__m512 a, __m512 b, __m512 c, __m512 d) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
    __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// exp(x) for x <= 0, to about a unit in a float's last place: 2^n * p(r) with |r| <= ln 2 / 2 (Cephes' expf).
inline __m512 exp_of(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
    const int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), nearest);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(p, n);
}

}  // namespace muxfleet
