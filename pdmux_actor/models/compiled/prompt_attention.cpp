// Causal attention of a prompt's tokens, or a later part of them, over all keys up to each: online softmax over blocks of
// keys (FlashAttention-2, Dao 2023, algorithm 1), products of bfloat16 by vdpbf16ps, sums in float.
//
// Blocks begin at the first key whatever the tokens asked for, so a token's values are the same in a chunk of any length.
#include "bfloat16_lanes.h"

using namespace muxfleet;

namespace {

constexpr int64_t kKeys = 64;  // of a block: four panels of 16
constexpr int kQueries = 6, kItemQueries = 24, kMostDim = 256;
// Whose sums for all queries the registers hold at once.
constexpr int kKeyPanels = kHas32Registers ? 4 : 1, kValuePanels = kHas32Registers ? 2 : 1;

struct Shape {
    int64_t tokens, keys, dim, window;  // the tokens are the last ones of the keys
    float scale;
};

// [dim / 2][16 keys][2] of each 16 keys; those beyond the last are zero.
void pack_keys(const u16* from, int64_t stride, int64_t first, const Shape& s, u16* to) {
    for (int64_t panel = first; panel < first + kKeys; panel += 16)
        for (int64_t j = 0; j < 16; j++)
            for (int64_t q = 0; q < s.dim; q += 2) {
                uint32_t two = 0;
                if (panel + j < s.keys) std::memcpy(&two, from + (panel + j) * stride + q, 4);
                std::memcpy(to + panel * s.dim + q * 16 + j * 2, &two, 4);
            }
}

// [dim / 16][keys of the block / 2][16 dims][2 keys]
void pack_values(const u16* from, int64_t stride, int64_t first, const Shape& s, u16* to) {
    const __m512i none = _mm512_setzero_si512();
    auto wide = [&](int64_t key, int64_t d) {
        if (key >= s.keys) return none;
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(from + key * stride + d)));
    };
    for (int64_t d = 0; d < s.dim; d += 16)
        for (int64_t t = 0; t < kKeys; t += 2) {
            __m512i pair = _mm512_or_si512(wide(first + t, d), _mm512_slli_epi32(wide(first + t + 1, d), 16));
            _mm512_storeu_si512(to + first * s.dim + d * kKeys + t * 16, pair);
        }
}

inline __m512bh twice(const u16* from) {
    int32_t two;
    std::memcpy(&two, from, 4);
    return (__m512bh)_mm512_set1_epi32(two);
}

// `keys`, `values`: packed, of one KV head.
void attend(const u16* const* queries, const u16* keys, const u16* values, int64_t first_token, const Shape& s, float* acc,
            float* sums) {
    alignas(64) u16 p[kQueries][kKeys];
    float highest[kQueries];
    int64_t before = s.keys - s.tokens, of_key[kQueries];
    for (int i = 0; i < kQueries; i++) {
        of_key[i] = before + std::min(first_token + i, s.tokens - 1);
        highest[i] = -INFINITY;
        sums[i] = 0.0f;
    }
    for (int64_t d = 0; d < kQueries * s.dim; d += 16) _mm512_store_ps(acc + d, _mm512_setzero_ps());
    int64_t least = s.window ? std::max<int64_t>(0, of_key[0] + 1 - s.window) : 0;
    for (int64_t block = least / kKeys * kKeys; block <= of_key[kQueries - 1]; block += kKeys) {
        __m512 score[kQueries][4];
#pragma GCC unroll 4
        for (int first = 0; first < 4; first += kKeyPanels) {
            __m512 sum[kQueries][kKeyPanels];
#pragma GCC unroll 6
            for (int i = 0; i < kQueries; i++)
#pragma GCC unroll 4
                for (int b = 0; b < kKeyPanels; b++) sum[i][b] = _mm512_setzero_ps();
            const u16* of_panels = keys + (block + first * 16) * s.dim;
            for (int64_t q = 0; q < s.dim; q += 2) {
                __m512bh w[kKeyPanels];
#pragma GCC unroll 4
                for (int b = 0; b < kKeyPanels; b++) w[b] = (__m512bh)_mm512_loadu_si512(of_panels + b * 16 * s.dim + q * 16);
#pragma GCC unroll 6
                for (int i = 0; i < kQueries; i++) {
                    __m512bh a = twice(queries[i] + q);
#pragma GCC unroll 4
                    for (int b = 0; b < kKeyPanels; b++) sum[i][b] = _mm512_dpbf16_ps(sum[i][b], w[b], a);
                }
            }
#pragma GCC unroll 6
            for (int i = 0; i < kQueries; i++)
#pragma GCC unroll 4
                for (int b = 0; b < kKeyPanels; b++) score[i][first + b] = sum[i][b];
        }
        bool is_whole = block + kKeys - 1 <= of_key[0] && (!s.window || block > of_key[kQueries - 1] - s.window);
#pragma GCC unroll 6
        for (int i = 0; i < kQueries; i++) {
            __mmask16 seen[4];
            __m512 most = _mm512_set1_ps(-INFINITY);
#pragma GCC unroll 4
            for (int b = 0; b < 4; b++) {
                score[i][b] = _mm512_mul_ps(score[i][b], _mm512_set1_ps(s.scale));
                seen[b] = 0xffff;
                if (!is_whole) {
                    __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                    __m512i at = _mm512_add_epi32(lanes, _mm512_set1_epi32(int(block + b * 16)));
                    seen[b] = _mm512_cmple_epi32_mask(at, _mm512_set1_epi32(int(of_key[i])));
                    if (s.window) seen[b] &= _mm512_cmpgt_epi32_mask(at, _mm512_set1_epi32(int(of_key[i] - s.window)));
                }
                most = _mm512_mask_max_ps(most, seen[b], most, score[i][b]);
            }
            float now = std::max(highest[i], _mm512_reduce_max_ps(most));
            if (now == -INFINITY) {  // nothing is seen yet: what stands in `p` must not count
                std::memset(p[i], 0, sizeof p[i]);
                continue;
            }
            if (now != highest[i]) {
                float shrink = std::exp(highest[i] - now);
                sums[i] *= shrink;
                for (int64_t d = 0; d < s.dim; d += 16) {
                    float* at = acc + i * s.dim + d;
                    _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), _mm512_set1_ps(shrink)));
                }
                highest[i] = now;
            }
            __m512 added = _mm512_setzero_ps();
#pragma GCC unroll 4
            for (int b = 0; b < 4; b++) {
                __m512 e = _mm512_maskz_mov_ps(seen[b], exp_of(_mm512_sub_ps(score[i][b], _mm512_set1_ps(now))));
                added = _mm512_add_ps(added, e);
                narrow16(&p[i][b * 16], e);
            }
            sums[i] += _mm512_reduce_add_ps(added);
        }
        const u16* of_values = values + block * s.dim;
        for (int64_t d = 0; d < s.dim; d += 16 * kValuePanels) {
            __m512 sum[kQueries][kValuePanels];
#pragma GCC unroll 6
            for (int i = 0; i < kQueries; i++)
#pragma GCC unroll 2
                for (int b = 0; b < kValuePanels; b++) sum[i][b] = _mm512_load_ps(acc + i * s.dim + d + b * 16);
            for (int64_t t = 0; t < kKeys; t += 2) {
                __m512bh w[kValuePanels];
#pragma GCC unroll 2
                for (int b = 0; b < kValuePanels; b++) w[b] = (__m512bh)_mm512_loadu_si512(of_values + (d + b * 16) * kKeys + t * 16);
#pragma GCC unroll 6
                for (int i = 0; i < kQueries; i++) {
                    __m512bh a = twice(&p[i][t]);
#pragma GCC unroll 2
                    for (int b = 0; b < kValuePanels; b++) sum[i][b] = _mm512_dpbf16_ps(sum[i][b], w[b], a);
                }
            }
#pragma GCC unroll 6
            for (int i = 0; i < kQueries; i++)
#pragma GCC unroll 2
                for (int b = 0; b < kValuePanels; b++) _mm512_store_ps(acc + i * s.dim + d + b * 16, sum[i][b]);
        }
    }
}

}  // namespace

// query [tokens][heads][dim] with `query_stride` between tokens; keys and values of `keys` tokens, the last of which are
// those asked for, with strides between tokens and between heads; out [tokens][heads * dim]. `packed`: of twice
// dim * keys numbers, keys rounded up to whole blocks of 64.
extern "C" void muxfleet_prompt_attention(const u16* query, int64_t query_stride, const u16* keys, const u16* values,
                                          int64_t token_stride, int64_t head_stride, int64_t tokens, int64_t num_keys,
                                          int64_t kv_heads, int64_t group, int64_t dim, float scale, int64_t window,
                                          u16* packed, u16* out) {
    Shape s{tokens, num_keys, dim, window, scale};
    int64_t blocks = (num_keys + kKeys - 1) / kKeys, items = (tokens + kItemQueries - 1) / kItemQueries;
    int64_t first_block = window ? std::max<int64_t>(0, num_keys - tokens + 1 - window) / kKeys : 0;
    u16 *packed_keys = packed, *packed_values = packed + blocks * kKeys * dim;
    int64_t out_stride = kv_heads * group * dim;
#pragma omp parallel
    for (int64_t h = 0; h < kv_heads; h++) {
#pragma omp for schedule(static)
        for (int64_t b = first_block; b < blocks; b++) {
            pack_keys(keys + h * head_stride, token_stride, b * kKeys, s, packed_keys);
            pack_values(values + h * head_stride, token_stride, b * kKeys, s, packed_values);
        }
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < items * group; i++) {
            int64_t item = items - 1 - i / group, head = h * group + i % group;  // the last tokens see most: first
            int64_t last = std::min(tokens, (item + 1) * kItemQueries);
            for (int64_t t = item * kItemQueries; t < last; t += kQueries) {
                alignas(64) float acc[kQueries * kMostDim];
                float sums[kQueries];
                const u16* queries[kQueries];
                for (int64_t r = 0; r < kQueries; r++)
                    queries[r] = query + std::min(t + r, tokens - 1) * query_stride + head * dim;
                attend(queries, packed_keys, packed_values, t, s, acc, sums);
                for (int64_t r = 0; r < std::min<int64_t>(kQueries, tokens - t); r++)
                    for (int64_t d = 0; d < dim; d += 16)
                        narrow16(out + (t + r) * out_stride + head * dim + d,
                                 _mm512_div_ps(_mm512_load_ps(acc + r * dim + d), _mm512_set1_ps(sums[r])));
            }
        }
    }
}
