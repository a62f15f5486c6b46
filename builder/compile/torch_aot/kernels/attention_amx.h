// Attention on AMX tiles: up to sixteen queries are the rows of the A tile; cached keys and values lie like B tiles already.
#pragma once
#include "tiles_amx.h"

static void scores_amx(const Model& m, const Cache& cache, const Queries& queries, Scratch& scratch) {
  const uint16_t* q = scratch.rounded.data();
  const int q_stride = m.head_dim * (int)sizeof(uint16_t), stride = scratch.stride * (int)sizeof(float);
  for (int at = 0; at <= queries.longest; at += 16) {
    const uint16_t* keys = (const uint16_t*)cache.key + chunk_at(m, cache, queries, at);
    prefetch_chunk(m, cache, cache.key, queries, at + 16);
    _tile_zero(0);
    for (int d = 0; d < m.head_dim; d += 32) {
      _tile_loadd(4, q + d, q_stride);
      _tile_loadd(6, keys + d * 16, 64);
      _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, scratch.row(0) + at, stride);
  }
}

// Sums of 32 (or, with kFour, 64) dims from `dim` on.
template <bool kFour>
static void sums_amx(const Model& m, const Cache& cache, const Queries& queries, int dim, Scratch& scratch) {
  const int line = m.head_dim * 2 * (int)sizeof(uint16_t), stride = scratch.stride * (int)sizeof(float);
  constexpr int kDims = kFour ? 64 : 32, kOut = kDims * (int)sizeof(float);
  alignas(64) float out[kQueries][kDims];
  _tile_zero(0);
  _tile_zero(1);
  if (kFour) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int at = 0; at <= queries.longest; at += 16) {
    const uint16_t* values = values_at<uint16_t>(m, cache, queries, at, scratch) + 2 * dim;
    prefetch_chunk(m, cache, cache.value, queries, at + 16);
    _tile_loadd(5, scratch.weights(0) + at, stride);
    _tile_loadd(7, values, line);
    _tile_dpbf16ps(0, 5, 7);
    _tile_loadd(7, values + 32, line);
    _tile_dpbf16ps(1, 5, 7);
    if (kFour) {
      _tile_loadd(7, values + 64, line);
      _tile_dpbf16ps(2, 5, 7);
      _tile_loadd(7, values + 96, line);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out[0], kOut);
  _tile_stored(1, out[0] + 16, kOut);
  if (kFour) {
    _tile_stored(2, out[0] + 32, kOut);
    _tile_stored(3, out[0] + 48, kOut);
  }
  for (int i = 0; i < queries.count; i++)
    for (int d = 0; d < kDims; d += 16) (f32x16::load(out[i] + d) * f32x16::all(scratch.inverse[i])).store(queries.out[i] + dim + d);
}

static void attend_amx(const Model& m, const Cache& cache, const Queries& queries, Scratch& scratch) {
  use_tiles(Shape::attention, queries.count);
  scores_amx(m, cache, queries, scratch);
  for (int i = 0; i < queries.count; i++) softmax(queries, i, true, scratch);
  int dim = 0;
  for (; dim + 64 <= m.head_dim; dim += 64) sums_amx<true>(m, cache, queries, dim, scratch);
  for (; dim < m.head_dim; dim += 32) sums_amx<false>(m, cache, queries, dim, scratch);
}
