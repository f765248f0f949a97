// Layers of a dense decoder over one token of each sequence, from hidden states to hidden states, without a way back to
// Python between their parts: with small models and batches that way takes as long as the products.
#include "bfloat16_lanes.h"

using namespace muxfleet;

extern "C" {
void muxfleet_rms_norm(const u16*, const u16*, float, int64_t, int64_t, u16*);
void muxfleet_panel_linear(const u16*, int64_t, int64_t, const u16*, int64_t, const u16*, const u16*, u16*);
void muxfleet_int8_linear(const int8_t*, const int32_t*, const float*, int64_t, int64_t, const void*, int64_t, int64_t,
                          const void*, const void*, void*);
void muxfleet_rotate(const u16*, int64_t, int64_t, int64_t, int64_t, int64_t, const u16*, const u16*, int64_t, float,
                     const u16*, const u16*, float, u16*, int64_t);
void muxfleet_keep(const u16*, int64_t, const u16*, int64_t, int64_t, int64_t, int64_t, u16*, int64_t, const int64_t*,
                   int64_t, int64_t, const int64_t*, const int64_t*);
void muxfleet_decode_attention(const u16*, int64_t, const u16*, int64_t, const int64_t*, int64_t, int64_t, const int64_t*,
                               int64_t, const int64_t*, int64_t, int64_t, int64_t, int64_t, int64_t, float, int64_t, float,
                               const float*, u16*);
void muxfleet_silu_product(const u16*, int64_t, int64_t, u16*);

// `scale` of levels of 8 bits; null: the weight is in bfloat16. The fields of all are those in compiled_layers.py.
struct Product {
    const void* weight;
    const int32_t* shift;
    const float* scale;
    const u16* bias;
};
struct Layer {
    const u16 *input_norm, *query_norm, *key_norm, *post_norm;
    Product qkv, output, gate_up, down;
    const float* sinks;
    int64_t window;
};
struct Shape {
    int64_t hidden, heads, kv_heads, dim, intermediate;
    float eps, scale;
};
struct Place {
    u16* pool;
    int64_t block_elements;
    const int64_t* row_table;
    int64_t columns, per_row;
};
struct Group {
    int64_t first;
    const int64_t* rows;
    int64_t row_stride;
    const int64_t* contexts;
    int64_t sequences;
};
struct Batch {
    int64_t tokens;
    const int64_t *rows, *offsets;
    const u16 *of_x, *of_swapped;
    int64_t rotary_stride;
    const Group* groups;
    int64_t num_groups;
};

static void multiply(const Product& p, int64_t n, int64_t k, const u16* x, int64_t m, const u16* addend, u16* y) {
    if (p.scale) muxfleet_int8_linear((const int8_t*)p.weight, p.shift, p.scale, n, k, x, m, 0, p.bias, addend, y);
    else muxfleet_panel_linear((const u16*)p.weight, n, k, x, m, p.bias, addend, y);
}

// `hidden` [tokens][hidden] is overwritten; `scratch` holds a token's normed, qkv, attended, gate_up and gated values.
void muxfleet_decode_layers(const Layer* layers, int64_t first, int64_t last, const Shape* s, const Place* p,
                            const Batch* b, u16* hidden, u16* scratch) {
    int64_t tokens = b->tokens, stacked = (s->heads + 2 * s->kv_heads) * s->dim, attending = s->heads * s->dim;
    u16* normed = scratch;
    u16* qkv = normed + tokens * s->hidden;
    u16* attended = qkv + tokens * stacked;
    u16* gate_up = attended + tokens * attending;
    u16* gated = gate_up + tokens * 2 * s->intermediate;
    const u16 *keys = qkv + attending, *values = keys + s->kv_heads * s->dim;
    for (int64_t i = first; i < last; i++) {
        const Layer& l = layers[i];
        int64_t column = i * s->kv_heads;
        muxfleet_rms_norm(hidden, l.input_norm, s->eps, tokens, s->hidden, normed);
        multiply(l.qkv, stacked, s->hidden, normed, tokens, nullptr, qkv);
        muxfleet_rotate(qkv, stacked, tokens, s->heads, s->kv_heads, s->dim, b->of_x, b->of_swapped, b->rotary_stride, 1.0f,
                        l.query_norm, l.key_norm, s->eps, qkv, stacked);
        muxfleet_keep(keys, stacked, values, stacked, tokens, s->kv_heads, s->dim, p->pool, p->block_elements, p->row_table,
                      p->columns, column, b->rows, b->offsets);
        for (int64_t g = 0; g < b->num_groups; g++) {
            const Group& group = b->groups[g];
            muxfleet_decode_attention(qkv + group.first * stacked, stacked, p->pool, p->block_elements, p->row_table,
                                      p->columns, column, group.rows, group.row_stride, group.contexts, group.sequences,
                                      s->kv_heads, s->heads / s->kv_heads, s->dim, p->per_row, s->scale, l.window, 0.0f,
                                      l.sinks, attended + group.first * attending);
        }
        multiply(l.output, s->hidden, attending, attended, tokens, hidden, hidden);
        muxfleet_rms_norm(hidden, l.post_norm, s->eps, tokens, s->hidden, normed);
        multiply(l.gate_up, 2 * s->intermediate, s->hidden, normed, tokens, nullptr, gate_up);
        muxfleet_silu_product(gate_up, tokens, s->intermediate, gated);
        multiply(l.down, s->hidden, s->intermediate, gated, tokens, hidden, hidden);
    }
}
}
