// Rotary embedding, and writing keys and values into the paged cache.
#pragma once
#include "activations.h"

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

// Where one position of one kv head lives: the first element of its chunk of 16 positions, in keys and values alike, and its place there.
struct Slot {
  size_t chunk;
  int lane;
};

static Slot slot_of(const Model& m, const Cache& cache, int layer, int block, int kv_head, int offset) {
  const size_t base = (((size_t)layer * cache.blocks + block) * m.kv_heads + kv_head) * cache.block_size * m.head_dim;
  const size_t chunk = base + (size_t)(offset / 16) * 16 * m.head_dim;
  return {chunk, offset % 16};
}

static void write_cache(const Model& m, const Cache& cache, const Slot& slot, const float* key, const float* value) {
  if (cache.kind == Kind::f32) {
    float* k = (float*)cache.key + slot.chunk;
    for (int d = 0; d < m.head_dim; d++) k[d * 16 + slot.lane] = key[d];
    std::memcpy((float*)cache.value + slot.chunk + (size_t)slot.lane * m.head_dim, value, m.head_dim * sizeof(float));
    return;
  }
  uint16_t* k = (uint16_t*)cache.key + slot.chunk;
  uint16_t* v = (uint16_t*)cache.value + slot.chunk + (size_t)(slot.lane / 2) * m.head_dim * 2 + (slot.lane & 1);
  for (int d = 0; d < m.head_dim; d += 16) {
    alignas(32) uint16_t rounded[16];
    f32x16::load(key + d).store_bf16(rounded);
    for (int i = 0; i < 16; i++) k[((d + i) / 2 * 16 + slot.lane) * 2 + (i & 1)] = rounded[i];
    f32x16::load(value + d).store_bf16(rounded);
    for (int i = 0; i < 16; i++) v[(d + i) * 2] = rounded[i];
  }
}
