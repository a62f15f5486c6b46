// BF16 matrix product on AMX tiles (Sapphire Rapids). A packed weight tile of 16 outputs x 32 inputs is 16 lines: exactly an AMX B tile.
// A product of 16 rows costs little more than one row's while weights stream from memory.
#pragma once

#include "tiles_amx.h"

// C tiles 0..3: (rows 0-15, 16-31) x (outputs 0-15, 16-31); A tiles 4, 5; B tiles 6, 7.
template <bool kTwo>
static void amx_unit(const uint16_t* w0, const uint16_t* w1, const uint16_t* x0, const uint16_t* x1, int k, int x_stride, float* out) {
  _tile_zero(0);
  _tile_zero(1);
  if (kTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int j = 0; j < k; j += 32) {
    for (int line = 0; line < 16; line++) {
      prefetch(w0 + (j + 2 * line) * 16 + 2048);
      prefetch(w1 + (j + 2 * line) * 16 + 2048);
    }
    _tile_loadd(6, w0 + j * 16, 64);
    _tile_loadd(7, w1 + j * 16, 64);
    _tile_loadd(4, x0 + j, x_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (kTwo) {
      _tile_loadd(5, x1 + j, x_stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out, kUnit * sizeof(float));
  _tile_stored(1, out + 16, kUnit * sizeof(float));
  if (kTwo) {
    _tile_stored(2, out + 16 * kUnit, kUnit * sizeof(float));
    _tile_stored(3, out + 16 * kUnit + 16, kUnit * sizeof(float));
  }
}

template <class Finish>
static void matmul_amx(const Matrix& w, const Activations& x, int rows, int first, int last, Finish&& finish) {
  alignas(64) static thread_local float out[32][kUnit];
  const size_t tile = (size_t)16 * w.k;
  const int stride = x.stride() * (int)sizeof(uint16_t);
  use_tiles(Shape::bf16, rows);
  for (int unit = first; unit < last; unit++) {
    const uint16_t* w0 = (const uint16_t*)w.weight + 2 * unit * tile;
    for (int row = 0; row < rows; row += 32) {
      const int left = rows - row, m = left < 32 ? left : 32;
      if (m > 16) amx_unit<true>(w0, w0 + tile, x.bf16(row), x.bf16(row + 16), w.k, stride, out[0]);
      else amx_unit<false>(w0, w0 + tile, x.bf16(row), nullptr, w.k, stride, out[0]);
      for (int i = 0; i < m; i++) finish(row + i, unit * kUnit, out[i]);
    }
  }
}
