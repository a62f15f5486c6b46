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
    const nibbles weights(lines + line * 64);
    _mm512_store_si512(bytes + line * 128, _mm512_sub_epi8(weights.low, offset));
    _mm512_store_si512(bytes + line * 128 + 64, _mm512_sub_epi8(weights.high, offset));
  }
}

// Exact dot products of sixteen rows, group by group: dots [count][2 tiles][16 rows][16 outputs], from group g0 on. Apart from the scaled
// adds, since a vector load right behind a tile store waits for it. `next`: packed weights of the unit to come, fetched meanwhile.
static void dots_int8(const Activations& x, int row, const int8_t* tile0, const int8_t* tile1, const uint8_t* next, int g0, int count, int32_t* dots) {
  const int8_t* in = x.int8(row);
  const int stride = x.stride();
  for (int i = 0; i < count; i++, dots += 512) {
    const int g = g0 + i;
    for (int line = 0; line < 8; line++) prefetch(next + (g * 8 + line) * 64);
    _tile_loadd(4, in + g * kGroup, stride);
    _tile_loadd(6, tile0 + g * kGroup * 16, 64);
    _tile_loadd(7, tile1 + g * kGroup * 16, 64);
    _tile_zero(0);
    _tile_dpbssd(0, 4, 6);
    _tile_zero(1);
    _tile_dpbssd(1, 4, 7);
    _tile_stored(0, dots, 64);
    _tile_stored(1, dots + 256, 64);
  }
}

// acc[m] += dots * scale of the weights * scale of row m's inputs, in the order of tile_int4. dots as above, of one of the two tiles.
template <bool kAsymmetric>
static void add_scaled(const Matrix& w, int tile, const Activations& x, int row, int g0, int count, const int32_t* dots, f32x16 (&acc)[16]) {
  const int per_scale = w.group / kGroup, scales = w.k / w.group, group_stride = x.stride() / kGroup;
  const uint16_t* scale = w.scale + (size_t)tile * scales * 16;
  const uint16_t* minimum = kAsymmetric ? w.minimum + (size_t)tile * scales * 16 : nullptr;
  for (int i = 0; i < count; i++, dots += 512) {
    const int g = g0 + i;
    const float* in_scale = x.group_scale(row) + g;
    const int32_t* in_sum = x.group_sum(row) + g;
    const f32x16 s = f32x16::load_bf16(scale + g / per_scale * 16);
#pragma GCC unroll 16
    for (int m = 0; m < 16; m++) {
      const float xs = in_scale[m * group_stride];
      acc[m] = fma(to_float(i32x16{_mm512_load_si512(dots + m * 16)}), s * f32x16::all(xs), acc[m]);
      if (kAsymmetric) acc[m] = fma(f32x16::load_bf16(minimum + g / per_scale * 16), f32x16::all(xs * in_sum[m * group_stride]), acc[m]);
    }
  }
}

constexpr int kGroups = 8;  // whose dot products wait in the first-level cache: 16 KiB

// Sixteen rows from `row` on against one unit; out [16][kUnit].
template <bool kAsymmetric>
static void unit_int8(const Matrix& w, int unit, const int8_t* tile0, const int8_t* tile1, const Activations& x, int row, float (*out)[kUnit]) {
  alignas(64) int32_t dots[kGroups * 512];
  f32x16 a[16], b[16];
  for (int m = 0; m < 16; m++) a[m] = b[m] = f32x16::zero();
  const int groups = w.k / kGroup;
  const uint8_t* next = (const uint8_t*)w.weight + (size_t)(unit + 1) * kUnit * w.k / 2;
  for (int g = 0; g < groups; g += kGroups) {
    const int count = groups - g < kGroups ? groups - g : kGroups;
    dots_int8(x, row, tile0, tile1, next, g, count, dots);
    add_scaled<kAsymmetric>(w, 2 * unit, x, row, g, count, dots, a);
    add_scaled<kAsymmetric>(w, 2 * unit + 1, x, row, g, count, dots + 256, b);
  }
  for (int m = 0; m < 16; m++) a[m].store(out[m]), b[m].store(out[m] + 16);
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
      if (w.minimum) unit_int8<true>(w, unit, bytes, bytes + (size_t)w.k * 16, x, row, out);
      else unit_int8<false>(w, unit, bytes, bytes + (size_t)w.k * 16, x, row, out);
      for (int i = 0; i < (rows - row < 16 ? rows - row : 16); i++) finish(row + i, unit * kUnit, out[i]);
    }
  }
}
