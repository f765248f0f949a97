// What a layer does between its products: norms, rotary embeddings, the gate of its MLP, keeping keys and values.
#include "bfloat16_lanes.h"

using namespace muxfleet;

// Norms heads where `*_norm` is given, and rotates them. heads_of_tokens [tokens][stride], of it the first `heads` are
// queries, then keys; `rotated` [tokens][rotated_stride] may be the same. `of_x`, `of_swapped`: the factors of x and of x
// with its halves swapped, those of the first half times `first_sign`.
extern "C" void muxfleet_rotate(const u16* heads_of_tokens, int64_t stride, int64_t tokens, int64_t heads, int64_t kv_heads,
                                int64_t dim, const u16* of_x, const u16* of_swapped, int64_t rotary_stride, float first_sign,
                                const u16* query_norm, const u16* key_norm, float eps, u16* rotated, int64_t rotated_stride) {
    int64_t half = dim / 2;
#pragma omp parallel for schedule(static) if (tokens * stride > 65536)
    for (int64_t t = 0; t < tokens; t++) {
        const u16 *straight = of_x + t * rotary_stride, *crossed = of_swapped + t * rotary_stride;
        for (int64_t h = 0; h < heads + kv_heads; h++) {
            const u16* x = heads_of_tokens + t * stride + h * dim;
            u16* y = rotated + t * rotated_stride + h * dim;
            alignas(64) float v[256];
            for (int64_t d = 0; d < dim; d += 16) _mm512_store_ps(v + d, wide16(x + d));
            if (const u16* norm = h < heads ? query_norm : key_norm) {
                __m512 squares = _mm512_setzero_ps();
                for (int64_t d = 0; d < dim; d += 16)
                    squares = _mm512_fmadd_ps(_mm512_load_ps(v + d), _mm512_load_ps(v + d), squares);
                __m512 by = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / float(dim) + eps));
                for (int64_t d = 0; d < dim; d += 16)
                    _mm512_store_ps(v + d, _mm512_mul_ps(_mm512_mul_ps(_mm512_load_ps(v + d), by), wide16(norm + d)));
            }
            for (int64_t d = 0; d < dim; d += 16) {
                __m512 other = _mm512_load_ps(v + (d < half ? d + half : d - half));
                if (d < half) other = _mm512_mul_ps(other, _mm512_set1_ps(first_sign));
                __m512 own = _mm512_mul_ps(_mm512_load_ps(v + d), wide16(straight + d));
                narrow16(y + d, _mm512_fmadd_ps(other, wide16(crossed + d), own));
            }
        }
    }
}

// Writes each token's keys and values into its blocks. keys, values [tokens][kv_heads][dim] with their strides.
extern "C" void muxfleet_keep(const u16* keys, int64_t key_stride, const u16* values, int64_t value_stride, int64_t tokens,
                              int64_t kv_heads, int64_t dim, u16* pool, int64_t block_elements, const int64_t* row_table,
                              int64_t columns, int64_t first_column, const int64_t* rows, const int64_t* offsets) {
#pragma omp parallel for schedule(static) if (tokens * kv_heads * dim > 65536)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < kv_heads; h++) {
            int64_t block = row_table[rows[t] * columns + first_column + h];
            u16* to = pool + block * block_elements + offsets[t] * 2 * dim;
            std::memcpy(to, keys + t * key_stride + h * dim, dim * 2);
            std::memcpy(to + dim, values + t * value_stride + h * dim, dim * 2);
        }
}

extern "C" void muxfleet_rms_norm(const u16* x, const u16* weight, float eps, int64_t rows, int64_t width, u16* y) {
#pragma omp parallel for schedule(static) if (rows * width > 65536)
    for (int64_t r = 0; r < rows; r++) {
        const u16* from = x + r * width;
        __m512 squares = _mm512_setzero_ps();
        for (int64_t d = 0; d < width; d += 16) { __m512 v = wide16(from + d); squares = _mm512_fmadd_ps(v, v, squares); }
        __m512 by = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / float(width) + eps));
        for (int64_t d = 0; d < width; d += 16) {
            __m512 v = _mm512_mul_ps(_mm512_mul_ps(wide16(from + d), by), wide16(weight + d));
            narrow16(y + r * width + d, v);
        }
    }
}

// gate_up [rows][2 width] -> silu(gate) * up [rows][width]
extern "C" void muxfleet_silu_product(const u16* gate_up, int64_t rows, int64_t width, u16* y) {
#pragma omp parallel for schedule(static) if (rows * width > 32768)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < width; d += 16) {
            __m512 gate = wide16(gate_up + r * 2 * width + d), up = wide16(gate_up + r * 2 * width + width + d);
            __m512 e = exp_of(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(gate)));  // exp(-|gate|)
            __m512 one = _mm512_set1_ps(1.0f);
            __m512 above = _mm512_div_ps(one, _mm512_add_ps(one, e));  // sigmoid(|gate|)
            __m512 sigmoid = _mm512_mask_mul_ps(above, _mm512_cmp_ps_mask(gate, _mm512_setzero_ps(), _CMP_LT_OQ), above, e);
            narrow16(y + r * width + d, _mm512_mul_ps(_mm512_mul_ps(gate, sigmoid), up));
        }
}
