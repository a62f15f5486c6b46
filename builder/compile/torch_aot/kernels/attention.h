// Rotary embedding, writing keys and values into the paged cache, and attention that reads them in place.
#pragma once
#include "activations.h"

// exp(x) for x <= 0, relative error about 2e-7: 2^n times a polynomial on |f| <= ln2 / 2 (coefficients: Taylor).
static inline f32x16 exponential(f32x16 x) {
  x = max(x, f32x16::all(-87.0f));
  const f32x16 n = round(x * f32x16::all(1.44269504f));
  f32x16 f = fma(n, f32x16::all(-0.693359375f), x);
  f = fma(n, f32x16::all(2.12194440e-4f), f);
  f32x16 p = f32x16::all(1.0f / 5040);
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = fma(p, f, f32x16::all(c));
  return scale2(p, n);
}

// silu(gate) * up
static inline f32x16 gated(f32x16 gate, f32x16 up) {
  const f32x16 one = f32x16::all(1.0f), e = exponential(f32x16::zero() - abs(gate));  // e^-|g|: never overflows
  f32x16 sigmoid = one / (one + e);
  float g[16], s[16];
  gate.store(g);
  sigmoid.store(s);
  for (int i = 0; i < 16; i++) s[i] = g[i] < 0 ? 1.0f - s[i] : s[i];
  return gate * f32x16::load(s) * up;
}

// Rotate-half rope on one head in place, after an optional RMS norm over the head (qwen3).
static void rotate(float* head, const Model& m, int position, const float* norm) {
  const int half = m.head_dim / 2;
  if (norm) {
    const float inverse = inverse_rms(head, m.head_dim, m.eps);
    for (int i = 0; i < m.head_dim; i++) head[i] = head[i] * inverse * norm[i];
  }
  const float* c = m.cosine + (size_t)position * half;
  const float* s = m.sine + (size_t)position * half;
  for (int i = 0; i < half; i++) {
    const float x = head[i], y = head[i + half];
    head[i] = x * c[i] - y * s[i];
    head[i + half] = y * c[i] + x * s[i];
  }
}

// Where one position of one kv head lives.
struct Slot {
  size_t key;    // element index of the 16-position chunk's first line
  size_t value;  // element index of the position's row
  int lane;      // position within the chunk
};

static Slot slot_of(const Model& m, const Cache& cache, int layer, int block, int kv_head, int offset) {
  const size_t base = (((size_t)layer * cache.blocks + block) * m.kv_heads + kv_head) * cache.block_size * m.head_dim;
  return {base + (size_t)(offset / 16) * 16 * m.head_dim, base + (size_t)offset * m.head_dim, offset % 16};
}

static inline uint16_t bf16_of(float x) {
  alignas(32) uint16_t out[16];
  f32x16::all(x).store_bf16(out);
  return out[0];
}

static void write_cache(const Model& m, const Cache& cache, const Slot& slot, const float* key, const float* value) {
  if (cache.kind == Kind::f32) {
    float* k = (float*)cache.key + slot.key;
    for (int d = 0; d < m.head_dim; d++) k[d * 16 + slot.lane] = key[d];
    std::memcpy((float*)cache.value + slot.value, value, m.head_dim * sizeof(float));
    return;
  }
  uint16_t* k = (uint16_t*)cache.key + slot.key;
  uint16_t* v = (uint16_t*)cache.value + slot.value;
  for (int d = 0; d < m.head_dim; d += 16) {
    alignas(32) uint16_t rounded[16];
    f32x16::load(key + d).store_bf16(rounded);
    for (int i = 0; i < 16; i++) k[((d + i) / 2 * 16 + slot.lane) * 2 + (i & 1)] = rounded[i];
    f32x16::load(value + d).store_bf16(v + d);
  }
}

// Scores of 16 positions at once: q . k. Four partial sums hide the latency of the dot instruction; their order is fixed.
static f32x16 score_chunk(const Model& m, const Cache& cache, size_t key, const float* q, const uint16_t* q16) {
  f32x16 part[4] = {f32x16::zero(), f32x16::zero(), f32x16::zero(), f32x16::zero()};
  if (cache.kind == Kind::f32) {
    const float* k = (const float*)cache.key + key;
    for (int d = 0; d < m.head_dim; d++) part[d & 3] = fma(f32x16::load(k + d * 16), f32x16::all(q[d]), part[d & 3]);
  } else {
    const uint16_t* k = (const uint16_t*)cache.key + key;
    for (int d = 0; d < m.head_dim; d += 8)
      for (int p = 0; p < 4; p++) part[p] = dot_bf16(part[p], k + (d + 2 * p) * 16, q16 + d + 2 * p);
  }
  return (part[0] + part[1]) + (part[2] + part[3]);
}

static inline f32x16 load_value(const Cache& cache, size_t at) {
  return cache.kind == Kind::f32 ? f32x16::load((const float*)cache.value + at) : f32x16::load_bf16((const uint16_t*)cache.value + at);
}

// out [head_dim] = softmax(q K^T) V over positions 0..last, for one query head. q is already scaled. scores: room for the context.
template <int kLanes>  // head_dim / 16
static void attend(const Model& m, const Cache& cache, int layer, int kv_head, const int32_t* table, int last, const float* q, float* scores, float* out) {
  uint16_t q16[kLanes * 16];
  for (int d = 0; d < kLanes; d++) f32x16::load(q + d * 16).store_bf16(q16 + d * 16);
  const int count = last + 1, block_size = cache.block_size;
  f32x16 highest = f32x16::all(-1e30f);
  for (int at = 0; at < count; at += 16) {
    const Slot slot = slot_of(m, cache, layer, table[at / block_size], kv_head, at % block_size);
    score_chunk(m, cache, slot.key, q, q16).store(scores + at);
    for (int i = count - at; i < 16; i++) scores[at + i] = -1e30f;  // beyond this row's own position
    highest = max(highest, f32x16::load(scores + at));
  }
  const f32x16 top = f32x16::all(maximum(highest));
  f32x16 total = f32x16::zero();
  for (int at = 0; at < count; at += 16) {
    const f32x16 e = exponential(f32x16::load(scores + at) - top);
    e.store(scores + at);
    for (int i = count - at; i < 16; i++) scores[at + i] = 0.0f;
    total = total + f32x16::load(scores + at);
  }
  f32x16 acc[kLanes];
  for (int d = 0; d < kLanes; d++) acc[d] = f32x16::zero();
  for (int at = 0; at < count; at += 16) {
    const Slot slot = slot_of(m, cache, layer, table[at / block_size], kv_head, at % block_size);
    const int positions = count - at < 16 ? count - at : 16;
    for (int i = 0; i < positions; i++) {
      const f32x16 weight = f32x16::all(scores[at + i]);
      for (int d = 0; d < kLanes; d++) acc[d] = fma(load_value(cache, slot.value + (size_t)i * m.head_dim + d * 16), weight, acc[d]);
    }
  }
  const f32x16 inverse = f32x16::all(1.0f / sum(total));
  for (int d = 0; d < kLanes; d++) (acc[d] * inverse).store(out + d * 16);
}

static void attend_head(const Model& m, const Cache& cache, int layer, int kv_head, const int32_t* table, int last, const float* q, float* scores, float* out) {
  switch (m.head_dim / 16) {
    case 1: return attend<1>(m, cache, layer, kv_head, table, last, q, scores, out);
    case 2: return attend<2>(m, cache, layer, kv_head, table, last, q, scores, out);
    case 3: return attend<3>(m, cache, layer, kv_head, table, last, q, scores, out);
    case 4: return attend<4>(m, cache, layer, kv_head, table, last, q, scores, out);
    case 5: return attend<5>(m, cache, layer, kv_head, table, last, q, scores, out);
    case 6: return attend<6>(m, cache, layer, kv_head, table, last, q, scores, out);
    case 8: return attend<8>(m, cache, layer, kv_head, table, last, q, scores, out);
    default: return attend<16>(m, cache, layer, kv_head, table, last, q, scores, out);
  }
}
