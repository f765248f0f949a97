// What the kernels use of AVX-512, where a CPU has AVX2 and FMA only: a vector is two halves. With this the kernels are
// the same everywhere; how many tokens and rows they take at once depends on the number of registers.
//
// vdpbf16ps is two products in float here, vpdpbusd two of 16 bits: as exact, or more.
#pragma once

#include <immintrin.h>

#include <cstdint>

#if defined(__AVX512F__)
constexpr bool kHas32Registers = true;
#else
constexpr bool kHas32Registers = false;

namespace muxfleet::avx2 {

struct Floats { __m256 lo, hi; };
struct Ints { __m256i lo, hi; };
struct Doubles { __m256d lo, hi; };

// By half: `NAME(a, b)` of both.
#define BOTH1(NAME, OF, FROM, TO) \
    inline TO NAME(FROM a) { return {OF(a.lo), OF(a.hi)}; }
#define BOTH2(NAME, OF, FROM, TO) \
    inline TO NAME(FROM a, FROM b) { return {OF(a.lo, b.lo), OF(a.hi, b.hi)}; }
#define BOTH3(NAME, OF, FROM, TO) \
    inline TO NAME(FROM a, FROM b, FROM c) { return {OF(a.lo, b.lo, c.lo), OF(a.hi, b.hi, c.hi)}; }

BOTH2(add_ps, _mm256_add_ps, Floats, Floats)
BOTH2(sub_ps, _mm256_sub_ps, Floats, Floats)
BOTH2(mul_ps, _mm256_mul_ps, Floats, Floats)
BOTH2(div_ps, _mm256_div_ps, Floats, Floats)
BOTH2(max_ps, _mm256_max_ps, Floats, Floats)
BOTH2(unpacklo_ps, _mm256_unpacklo_ps, Floats, Floats)
BOTH2(unpackhi_ps, _mm256_unpackhi_ps, Floats, Floats)
BOTH2(unpacklo_pd, _mm256_unpacklo_pd, Doubles, Doubles)
BOTH2(unpackhi_pd, _mm256_unpackhi_pd, Doubles, Doubles)
BOTH3(fmadd_ps, _mm256_fmadd_ps, Floats, Floats)
BOTH3(fnmadd_ps, _mm256_fnmadd_ps, Floats, Floats)
BOTH2(and_si512, _mm256_and_si256, Ints, Ints)
BOTH2(or_si512, _mm256_or_si256, Ints, Ints)
BOTH2(add_epi32, _mm256_add_epi32, Ints, Ints)
BOTH2(sub_epi32, _mm256_sub_epi32, Ints, Ints)
BOTH1(cvttps_epi32, _mm256_cvttps_epi32, Floats, Ints)
BOTH1(cvtepi32_ps, _mm256_cvtepi32_ps, Ints, Floats)
BOTH1(castps_si512, _mm256_castps_si256, Floats, Ints)
BOTH1(castsi512_ps, _mm256_castsi256_ps, Ints, Floats)
BOTH1(castps_pd, _mm256_castps_pd, Floats, Doubles)
BOTH1(castpd_ps, _mm256_castpd_ps, Doubles, Floats)
#undef BOTH1
#undef BOTH2
#undef BOTH3

inline Floats setzero_ps() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Floats set1_ps(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
inline Floats setr_ps(float a, float b, float c, float d, float e, float f, float g, float h, float i, float j, float k,
                      float l, float m, float n, float o, float p) {
    return {_mm256_setr_ps(a, b, c, d, e, f, g, h), _mm256_setr_ps(i, j, k, l, m, n, o, p)};
}
inline Floats load_ps(const void* from) { return {_mm256_load_ps((const float*)from), _mm256_load_ps((const float*)from + 8)}; }
inline Floats loadu_ps(const void* from) { return {_mm256_loadu_ps((const float*)from), _mm256_loadu_ps((const float*)from + 8)}; }
inline void store_ps(void* to, Floats a) { _mm256_store_ps((float*)to, a.lo); _mm256_store_ps((float*)to + 8, a.hi); }
inline void storeu_ps(void* to, Floats a) { _mm256_storeu_ps((float*)to, a.lo); _mm256_storeu_ps((float*)to + 8, a.hi); }

inline Ints setzero_si512() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Ints set1_epi32(int a) { return {_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }
inline Ints setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m, int n,
                       int o, int p) {
    return {_mm256_setr_epi32(a, b, c, d, e, f, g, h), _mm256_setr_epi32(i, j, k, l, m, n, o, p)};
}
inline Ints loadu_si512(const void* from) { return {_mm256_loadu_si256((const __m256i*)from), _mm256_loadu_si256((const __m256i*)from + 1)}; }
inline void storeu_si512(void* to, Ints a) { _mm256_storeu_si256((__m256i*)to, a.lo); _mm256_storeu_si256((__m256i*)to + 1, a.hi); }
inline Ints slli_epi32(Ints a, int by) { return {_mm256_slli_epi32(a.lo, by), _mm256_slli_epi32(a.hi, by)}; }
inline Ints srli_epi32(Ints a, int by) { return {_mm256_srli_epi32(a.lo, by), _mm256_srli_epi32(a.hi, by)}; }

inline Ints cvtepu16_epi32(__m256i a) {
    return {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1))};
}
inline Ints cvtepu8_epi32(__m128i a) { return {_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8))}; }
inline __m256i cvtepi32_epi16(Ints a) {
    const __m256i low = _mm256_set1_epi32(0xffff);
    __m256i mixed = _mm256_packus_epi32(_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low));
    return _mm256_permute4x64_epi64(mixed, 0b11011000);
}
inline __m128i cvtepi32_epi8(Ints a) {
    __m256i words = _mm256_and_si256(cvtepi32_epi16(a), _mm256_set1_epi16(0xff));
    return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

inline Floats abs_ps(Floats a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
template <int How>
inline Floats round_ps(Floats a) { return {_mm256_round_ps(a.lo, How), _mm256_round_ps(a.hi, How)}; }
// a * 2^n, for a whole n of a normal power
inline Floats scalef_ps(Floats a, Floats n) {
    auto power = [](__m256 of) {
        __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(of), _mm256_set1_epi32(127));
        return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    };
    return {_mm256_mul_ps(a.lo, power(n.lo)), _mm256_mul_ps(a.hi, power(n.hi))};
}
inline __m256 half_of(Floats a, int which) { return which ? a.hi : a.lo; }
inline float reduce_add_ps(Floats a) {
    __m256 eight = _mm256_add_ps(a.lo, a.hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float reduce_max_ps(Floats a) {
    __m256 eight = _mm256_max_ps(a.lo, a.hi);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
// `table[index mod 16]`
inline Floats permutexvar_ps(Ints index, Floats table) {
    auto looked_up = [&](__m256i at) {
        __m256 low = _mm256_permutevar8x32_ps(table.lo, at), high = _mm256_permutevar8x32_ps(table.hi, at);
        return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
    };
    return {looked_up(index.lo), looked_up(index.hi)};
}

// Masks have a bit for each lane.
inline __m256 lanes_of(unsigned bits) {
    const __m256i own = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(bits)), own), own));
}
inline Floats mask_mov_ps(Floats otherwise, __mmask16 mask, Floats a) {
    return {_mm256_blendv_ps(otherwise.lo, a.lo, lanes_of(mask)), _mm256_blendv_ps(otherwise.hi, a.hi, lanes_of(mask >> 8))};
}
inline Floats maskz_mov_ps(__mmask16 mask, Floats a) { return mask_mov_ps(setzero_ps(), mask, a); }
inline Floats mask_sub_ps(Floats otherwise, __mmask16 mask, Floats a, Floats b) { return mask_mov_ps(otherwise, mask, sub_ps(a, b)); }
inline Floats mask_mul_ps(Floats otherwise, __mmask16 mask, Floats a, Floats b) { return mask_mov_ps(otherwise, mask, mul_ps(a, b)); }
inline Floats mask_max_ps(Floats otherwise, __mmask16 mask, Floats a, Floats b) { return mask_mov_ps(otherwise, mask, max_ps(a, b)); }
inline Ints mask_mov_epi32(Ints otherwise, __mmask16 mask, Ints a) {
    return castps_si512(mask_mov_ps(castsi512_ps(otherwise), mask, castsi512_ps(a)));
}
inline __mmask16 mask_of(__m256 lo, __m256 hi) { return __mmask16(_mm256_movemask_ps(lo) | _mm256_movemask_ps(hi) << 8); }
template <int How>
inline __mmask16 cmp_ps_mask(Floats a, Floats b) { return mask_of(_mm256_cmp_ps(a.lo, b.lo, How), _mm256_cmp_ps(a.hi, b.hi, How)); }
inline __mmask16 cmpgt_epi32_mask(Ints a, Ints b) {
    return mask_of(_mm256_castsi256_ps(_mm256_cmpgt_epi32(a.lo, b.lo)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(a.hi, b.hi)));
}
inline __mmask16 cmple_epi32_mask(Ints a, Ints b) { return __mmask16(~cmpgt_epi32_mask(a, b)); }

inline __m256 dpbf16_ps(__m256 sum, __m256i a, __m256i b) {
    const __m256i odd = _mm256_set1_epi32(int(0xffff0000u));
    auto even_of = [](__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); };
    auto odd_of = [&](__m256i pairs) { return _mm256_castsi256_ps(_mm256_and_si256(pairs, odd)); };
    return _mm256_fmadd_ps(odd_of(a), odd_of(b), _mm256_fmadd_ps(even_of(a), even_of(b), sum));
}
inline Floats dpbf16_ps(Floats sum, Ints a, Ints b) { return {dpbf16_ps(sum.lo, a.lo, b.lo), dpbf16_ps(sum.hi, a.hi, b.hi)}; }

// a of 8 bits without a sign, b with one
inline __m256i dpbusd_epi32(__m256i sum, __m256i a, __m256i b) {
    __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(0xff)), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
inline Ints dpbusd_epi32(Ints sum, Ints a, Ints b) { return {dpbusd_epi32(sum.lo, a.lo, b.lo), dpbusd_epi32(sum.hi, a.hi, b.hi)}; }

}  // namespace muxfleet::avx2

#define __m512 muxfleet::avx2::Floats
#define __m512i muxfleet::avx2::Ints
#define __m512bh muxfleet::avx2::Ints
#define __m512d muxfleet::avx2::Doubles
#define _mm512_abs_ps muxfleet::avx2::abs_ps
#define _mm512_add_epi32 muxfleet::avx2::add_epi32
#define _mm512_add_ps muxfleet::avx2::add_ps
#define _mm512_and_si512 muxfleet::avx2::and_si512
#define _mm512_castpd_ps muxfleet::avx2::castpd_ps
#define _mm512_castps512_ps256(a) muxfleet::avx2::half_of(a, 0)
#define _mm512_castps_pd muxfleet::avx2::castps_pd
#define _mm512_castps_si512 muxfleet::avx2::castps_si512
#define _mm512_castsi512_ps muxfleet::avx2::castsi512_ps
#define _mm512_cmp_ps_mask(a, b, how) muxfleet::avx2::cmp_ps_mask<how>(a, b)
#define _mm512_cmpgt_epi32_mask muxfleet::avx2::cmpgt_epi32_mask
#define _mm512_cmple_epi32_mask muxfleet::avx2::cmple_epi32_mask
#define _mm512_cvtepi32_epi16 muxfleet::avx2::cvtepi32_epi16
#define _mm512_cvtepi32_epi8 muxfleet::avx2::cvtepi32_epi8
#define _mm512_cvtepi32_ps muxfleet::avx2::cvtepi32_ps
#define _mm512_cvtepu16_epi32 muxfleet::avx2::cvtepu16_epi32
#define _mm512_cvtepu8_epi32 muxfleet::avx2::cvtepu8_epi32
#define _mm512_cvttps_epi32 muxfleet::avx2::cvttps_epi32
#define _mm512_div_ps muxfleet::avx2::div_ps
#define _mm512_dpbf16_ps muxfleet::avx2::dpbf16_ps
#define _mm512_dpbusd_epi32 muxfleet::avx2::dpbusd_epi32
#define _mm512_extractf32x8_ps muxfleet::avx2::half_of
#define _mm512_fmadd_ps muxfleet::avx2::fmadd_ps
#define _mm512_fnmadd_ps muxfleet::avx2::fnmadd_ps
#define _mm512_load_ps muxfleet::avx2::load_ps
#define _mm512_loadu_ps muxfleet::avx2::loadu_ps
#define _mm512_loadu_si512 muxfleet::avx2::loadu_si512
#define _mm512_mask_max_ps muxfleet::avx2::mask_max_ps
#define _mm512_mask_mov_epi32 muxfleet::avx2::mask_mov_epi32
#define _mm512_mask_mul_ps muxfleet::avx2::mask_mul_ps
#define _mm512_mask_sub_ps muxfleet::avx2::mask_sub_ps
#define _mm512_maskz_mov_ps muxfleet::avx2::maskz_mov_ps
#define _mm512_max_ps muxfleet::avx2::max_ps
#define _mm512_mul_ps muxfleet::avx2::mul_ps
#define _mm512_or_si512 muxfleet::avx2::or_si512
#define _mm512_permutexvar_ps muxfleet::avx2::permutexvar_ps
#define _mm512_reduce_add_ps muxfleet::avx2::reduce_add_ps
#define _mm512_reduce_max_ps muxfleet::avx2::reduce_max_ps
#define _mm512_roundscale_ps(a, how) muxfleet::avx2::round_ps<how>(a)
#define _mm512_scalef_ps muxfleet::avx2::scalef_ps
#define _mm512_set1_epi32 muxfleet::avx2::set1_epi32
#define _mm512_set1_ps muxfleet::avx2::set1_ps
#undef _mm512_setr_epi32  // macros of some compilers
#define _mm512_setr_epi32 muxfleet::avx2::setr_epi32
#undef _mm512_setr_ps
#define _mm512_setr_ps muxfleet::avx2::setr_ps
#define _mm512_setzero_ps muxfleet::avx2::setzero_ps
#define _mm512_setzero_si512 muxfleet::avx2::setzero_si512
#define _mm512_slli_epi32 muxfleet::avx2::slli_epi32
#define _mm512_srli_epi32 muxfleet::avx2::srli_epi32
#define _mm512_store_ps muxfleet::avx2::store_ps
#define _mm512_storeu_ps muxfleet::avx2::storeu_ps
#define _mm512_storeu_si512 muxfleet::avx2::storeu_si512
#define _mm512_sub_epi32 muxfleet::avx2::sub_epi32
#define _mm512_sub_ps muxfleet::avx2::sub_ps
#define _mm512_unpackhi_pd muxfleet::avx2::unpackhi_pd
#define _mm512_unpackhi_ps muxfleet::avx2::unpackhi_ps
#define _mm512_unpacklo_pd muxfleet::avx2::unpacklo_pd
#define _mm512_unpacklo_ps muxfleet::avx2::unpacklo_ps
#endif
