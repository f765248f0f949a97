// Decode attention over KV blocks where they lie: one query token per sequence, nothing is gathered.
//
// A block holds, for each of its tokens, a key and a value of one KV head and layer. Scores are made for a few tokens at
// a time, under a softmax that is corrected as it goes (FlashAttention's), so that a block is read from memory once.
#include "bfloat16_lanes.h"

using namespace muxfleet;

namespace {

inline float total(__m512 values) { return _mm512_reduce_add_ps(values); }

template <int G>
void add_values(const u16* values, int64_t stride, int64_t tokens, const float* p, int64_t p_stride, float* acc, int64_t dim) {
    for (int64_t d = 0; d < dim; d += 32) {
        __m512 lo[G], hi[G];
        for (int g = 0; g < G; g++) { lo[g] = _mm512_loadu_ps(acc + g * dim + d); hi[g] = _mm512_loadu_ps(acc + g * dim + d + 16); }
        for (int64_t t = 0; t < tokens; t++) {
            __m512i raw = _mm512_loadu_si512(values + t * stride + d);
            __m512 e = even_of(raw), o = odd_of(raw);
#pragma GCC unroll 8
            for (int g = 0; g < G; g++) {
                __m512 w = _mm512_set1_ps(p[g * p_stride + t]);
                lo[g] = _mm512_fmadd_ps(w, e, lo[g]);
                hi[g] = _mm512_fmadd_ps(w, o, hi[g]);
            }
        }
        for (int g = 0; g < G; g++) { _mm512_storeu_ps(acc + g * dim + d, lo[g]); _mm512_storeu_ps(acc + g * dim + d + 16, hi[g]); }
    }
}

template <int G>
void score_keys(const u16* keys, int64_t stride, int64_t tokens, const float* q, int64_t dim, float* p, int64_t p_stride) {
    for (int64_t t = 0; t < tokens; t += 4) {
        const u16* k[4];
        for (int j = 0; j < 4; j++) k[j] = keys + std::min(t + j, tokens - 1) * stride;
        __m512 acc[G][4];
        for (int g = 0; g < G; g++) for (int j = 0; j < 4; j++) acc[g][j] = _mm512_setzero_ps();
        for (int64_t d = 0; d < dim; d += 32) {
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                __m512i raw = _mm512_loadu_si512(k[j] + d);
                __m512 e = even_of(raw), o = odd_of(raw);
#pragma GCC unroll 8
                for (int g = 0; g < G; g++) {
                    acc[g][j] = _mm512_fmadd_ps(_mm512_loadu_ps(q + g * dim + d), e, acc[g][j]);
                    acc[g][j] = _mm512_fmadd_ps(_mm512_loadu_ps(q + g * dim + d + 16), o, acc[g][j]);
                }
            }
        }
        for (int g = 0; g < G; g++) _mm_storeu_ps(p + g * p_stride + t, sums_of(acc[g][0], acc[g][1], acc[g][2], acc[g][3]));
    }
}

constexpr int64_t kPiece = 64;  // tokens whose scores are held at once

// cap * tanh(score / cap)
inline __m512 capped(__m512 scores, float cap) {
    __m512 x = _mm512_mul_ps(scores, _mm512_set1_ps(2 / cap)), one = _mm512_set1_ps(1.0f);
    __m512 e = exp_of(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
    __m512 tanh = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    __m512 of_sign = _mm512_mask_sub_ps(tanh, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), _mm512_setzero_ps(), tanh);
    return _mm512_mul_ps(of_sign, _mm512_set1_ps(cap));
}

// What a layer does beyond a softmax over all earlier tokens: `window` 0 is none, `softcap` 0 is none.
struct Traits { float scale, softcap; int64_t window; };

// Query heads of one KV head of one sequence, over the blocks `row_table[rows[i], column]`, the first `context` tokens.
// `sinks` are those of these heads: scores of a key whose value is zero, with which the softmax begins.
template <int G>
void attend(const u16* query, const u16* pool, int64_t block_elements, const int64_t* row_table, int64_t columns, int64_t column,
            const int64_t* rows, int64_t context, int64_t per_row, int64_t dim, const Traits& traits, const float* sinks, u16* out) {
    alignas(64) float q[G * 256], acc[G * 256], p[G * kPiece];
    float highest[G], sum[G], scale = traits.scale;
    for (int g = 0; g < G; g++) {
        highest[g] = sinks ? sinks[g] : -INFINITY; sum[g] = sinks ? 1 : 0;
        for (int64_t d = 0; d < dim; d += 32) {
            __m512i raw = _mm512_loadu_si512(query + g * dim + d);
            _mm512_storeu_ps(q + g * dim + d, _mm512_mul_ps(even_of(raw), _mm512_set1_ps(scale)));
            _mm512_storeu_ps(q + g * dim + d + 16, _mm512_mul_ps(odd_of(raw), _mm512_set1_ps(scale)));
            _mm512_storeu_ps(acc + g * dim + d, _mm512_setzero_ps());
            _mm512_storeu_ps(acc + g * dim + d + 16, _mm512_setzero_ps());
        }
    }
    for (int64_t from = traits.window ? std::max<int64_t>(0, context - traits.window) : 0; from < context;) {
        int64_t row = from / per_row, within = from % per_row;
        int64_t tokens = std::min({context - from, per_row - within, kPiece});
        const u16* keys = pool + row_table[rows[row] * columns + column] * block_elements + within * 2 * dim;
        if (from + tokens < context && within + tokens == per_row) {  // no CPU guesses where the next block lies
            const char* next = (const char*)(pool + row_table[rows[row + 1] * columns + column] * block_elements);
            int64_t bytes = std::min(per_row, context - from - tokens) * 4 * dim;
            for (int64_t at = 0; at < bytes; at += 64) _mm_prefetch(next + at, _MM_HINT_T1);
        }
        score_keys<G>(keys, 2 * dim, tokens, q, dim, p, kPiece);
        for (int g = 0; g < G; g++) {
            float* s = p + g * kPiece;
            if (traits.softcap)
                for (int64_t t = 0; t < tokens; t += 16) _mm512_store_ps(s + t, capped(_mm512_load_ps(s + t), traits.softcap));
            for (int64_t t = tokens; t % 16; t++) s[t] = -INFINITY;
            __m512 most = _mm512_set1_ps(highest[g]);
            for (int64_t t = 0; t < tokens; t += 16) most = _mm512_max_ps(most, _mm512_load_ps(s + t));
            float now = _mm512_reduce_max_ps(most), shrink = highest[g] == now ? 1.0f : std::exp(highest[g] - now);
            if (shrink != 1.0f) {
                for (int64_t d = 0; d < dim; d += 16) _mm512_storeu_ps(acc + g * dim + d, _mm512_mul_ps(_mm512_loadu_ps(acc + g * dim + d), _mm512_set1_ps(shrink)));
                highest[g] = now;
            }
            __m512 added = _mm512_setzero_ps();
            for (int64_t t = 0; t < tokens; t += 16) {
                __mmask16 live = tokens - t >= 16 ? __mmask16(0xffff) : __mmask16((1u << (tokens - t)) - 1);
                __m512 e = _mm512_maskz_mov_ps(live, exp_of(_mm512_sub_ps(_mm512_load_ps(s + t), _mm512_set1_ps(now))));
                _mm512_store_ps(s + t, e);
                added = _mm512_add_ps(added, e);
            }
            sum[g] = sum[g] * shrink + total(added);
        }
        add_values<G>(keys + dim, 2 * dim, tokens, p, kPiece, acc, dim);
        from += tokens;
    }
    for (int g = 0; g < G; g++)
        for (int64_t d = 0; d < dim; d += 32)
            for (int64_t j = 0; j < 16; j++) {
                out[g * dim + d + 2 * j] = narrow(acc[g * dim + d + j] / sum[g]);
                out[g * dim + d + 2 * j + 1] = narrow(acc[g * dim + d + 16 + j] / sum[g]);
            }
}

}  // namespace

// query [sequences][heads][dim] with `query_stride` between sequences; rows [sequences][row_stride]; out is dense.
extern "C" void muxfleet_decode_attention(const u16* query, int64_t query_stride, const u16* pool, int64_t block_elements,
                                          const int64_t* row_table, int64_t columns, int64_t first_column, const int64_t* rows,
                                          int64_t row_stride, const int64_t* contexts, int64_t sequences,
                                          int64_t kv_heads, int64_t group, int64_t dim, int64_t per_row, float scale,
                                          int64_t window, float softcap, const float* all_sinks, u16* out) {
    Traits traits{scale, softcap, window};
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < sequences * kv_heads; i++) {
        int64_t s = i / kv_heads, h = i % kv_heads, context = contexts[s];
        for (int64_t g = 0; g < group;) {
            const u16* q = query + s * query_stride + (h * group + g) * dim;
            u16* to = out + ((s * kv_heads + h) * group + g) * dim;
            const int64_t* of = rows + s * row_stride;
            const float* sinks = all_sinks ? all_sinks + h * group + g : nullptr;
            int64_t column = first_column + h;
#define ATTEND(G) attend<G>(q, pool, block_elements, row_table, columns, column, of, context, per_row, dim, traits, sinks, to)
            switch (std::min<int64_t>(group - g, 4)) {
                case 1: ATTEND(1); g += 1; break;
                case 2: ATTEND(2); g += 2; break;
                case 3: ATTEND(3); g += 3; break;
                default: ATTEND(4); g += 4;
            }
#undef ATTEND
        }
    }
}
