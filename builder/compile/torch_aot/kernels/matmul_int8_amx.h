// INT4 matrix product for many rows on AMX tiles. The integer dot product of a group is exact on either path and the scaled adds follow
// in the same order, so a row's bits are those of tile_int4.
#pragma once
#include "tiles_amx.h"

constexpr int kFewInt4Rows = 4;  // up to here the weights' stream is the limit, and vector dot products keep up with it

// 16 outputs x k inputs to signed bytes, four inputs of an output side by side as a B tile wants them.
static void unpack_tile(const Matrix& w, int tile, int8_t* bytes) {
  const uint8_t* lines = (const uint8_t*)w.weight + (size_t)tile * w.k * 8;
  const __m512i offset = _mm512_set1_epi8(w.minimum ? 0 : 8);
  for (int line = 0; line < w.k / 8; line++) {
    prefetch(lines + line * 64 + 2048);
    const nibbles weights(lines + line * 64);
    _mm512_store_si512(bytes + line * 128, _mm512_sub_epi8(weights.low, offset));
    _mm512_store_si512(bytes + line * 128 + 64, _mm512_sub_epi8(weights.high, offset));
  }
}

// Sixteen rows from `row` on against one unpacked tile; out [16][kUnit].
template <bool kAsymmetric>
static void tile_int8(const Matrix& w, int tile, const int8_t* bytes, const Activations& x, int row, float* out) {
  const int groups = w.k / kGroup, per_scale = w.group / kGroup, scales = w.k / w.group;
  const uint16_t* scale = w.scale + (size_t)tile * scales * 16;
  const uint16_t* minimum = kAsymmetric ? w.minimum + (size_t)tile * scales * 16 : nullptr;
  const int8_t* in = x.int8(row);
  const float* in_scale = x.group_scale(row);
  const int32_t* in_sum = x.group_sum(row);
  const int stride = x.stride(), group_stride = stride / kGroup;
  alignas(64) int32_t dots[4][16][16];  // a few, so that one group's tile is stored while another's is read
  f32x16 acc[16];
  for (int m = 0; m < 16; m++) acc[m] = f32x16::zero();
  for (int g = 0; g < groups; g++) {
    int32_t(*dot)[16] = dots[g & 3];
    _tile_zero(0);
    _tile_loadd(4, in + g * kGroup, stride);
    _tile_loadd(6, bytes + g * kGroup * 16, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_stored(0, dot, 64);
    const f32x16 s = f32x16::load_bf16(scale + g / per_scale * 16);
#pragma GCC unroll 16
    for (int m = 0; m < 16; m++) {
      const float xs = in_scale[m * group_stride + g];
      acc[m] = fma(to_float(i32x16{_mm512_load_si512(dot[m])}), s * f32x16::all(xs), acc[m]);
      if (kAsymmetric) acc[m] = fma(f32x16::load_bf16(minimum + g / per_scale * 16), f32x16::all(xs * in_sum[m * group_stride + g]), acc[m]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < 16; m++) acc[m].store(out + m * kUnit);
}

template <class Finish>
static void matmul_int8_amx(const Matrix& w, const Activations& x, int rows, int first, int last, Finish&& finish) {
  alignas(64) static thread_local float out[16][kUnit];
  static thread_local std::vector<int8_t> room;
  room.resize((size_t)w.k * 32 + 64);
  int8_t* bytes = (int8_t*)(((uintptr_t)room.data() + 63) / 64 * 64);
  use_tiles(Shape::int8, 16);
  for (int unit = first; unit < last; unit++) {
    for (int half = 0; half < 2; half++) unpack_tile(w, 2 * unit + half, bytes + (size_t)half * w.k * 16);
    for (int row = 0; row < rows; row += 16) {
      for (int half = 0; half < 2; half++) {
        const int8_t* tile = bytes + (size_t)half * w.k * 16;
        if (w.minimum) tile_int8<true>(w, 2 * unit + half, tile, x, row, out[0] + 16 * half);
        else tile_int8<false>(w, 2 * unit + half, tile, x, row, out[0] + 16 * half);
      }
      for (int i = 0; i < (rows - row < 16 ? rows - row : 16); i++) finish(row + i, unit * kUnit, out[i]);
    }
  }
}
