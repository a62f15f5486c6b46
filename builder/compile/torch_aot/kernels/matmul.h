// y = W x for packed weights. Every activation row has accumulators of its own that add along k in one fixed order, so a row's
// bits do not depend on how many rows share the pass: what makes greedy speculation equal plain decoding.
#pragma once
#include "activations.h"

constexpr int kUnit = 32;  // outputs of one work unit: two tiles

// The M rows of a block, unrolled so that their accumulators stay in registers.
#define EACH_ROW _Pragma("GCC unroll 8") for (int m = 0; m < M; m++)

// Outputs [32] of M rows for the two weight tiles at w0 and w1.
template <int M>
static void unit_bf16(const Matrix& w, int unit, const Activations& x, int row, float (*out)[kUnit]) {
  const size_t tile = (size_t)16 * w.k;
  const uint16_t* w0 = (const uint16_t*)w.weight + 2 * unit * tile;
  const uint16_t* w1 = w0 + tile;
  const uint16_t* in = x.bf16(row);
  const int stride = x.stride(), inputs = w.k;
  f32x16 a[M], b[M];
  EACH_ROW a[m] = b[m] = f32x16::zero();
  for (int k = 0; k < inputs; k += 2) {
    prefetch(w0 + k * 16 + 1024);
    prefetch(w1 + k * 16 + 1024);
    EACH_ROW {
      a[m] = dot_bf16(a[m], w0 + k * 16, in + m * stride + k);
      b[m] = dot_bf16(b[m], w1 + k * 16, in + m * stride + k);
    }
  }
  EACH_ROW a[m].store(out[m]), b[m].store(out[m] + 16);
}

template <int M>
static void unit_f32(const Matrix& w, int unit, const Activations& x, int row, float (*out)[kUnit]) {
  const size_t tile = (size_t)16 * w.k;
  const float* w0 = (const float*)w.weight + 2 * unit * tile;
  const float* w1 = w0 + tile;
  const float* in = x.f32(row);
  const int stride = x.stride(), inputs = w.k;
  f32x16 a[M], b[M];
  EACH_ROW a[m] = b[m] = f32x16::zero();
  for (int k = 0; k < inputs; k++) {
    const f32x16 u = f32x16::load(w0 + k * 16), v = f32x16::load(w1 + k * 16);
    EACH_ROW {
      const f32x16 xm = f32x16::all(in[m * stride + k]);
      a[m] = fma(u, xm, a[m]);
      b[m] = fma(v, xm, b[m]);
    }
  }
  EACH_ROW a[m].store(out[m]), b[m].store(out[m] + 16);
}

// Per group of 32 inputs: an exact integer dot product, then one scaled add. Activations carry a scale a group too.
template <int M, bool kAsymmetric>
static void tile_int4(const Matrix& w, int tile, const Activations& x, int row, float* out) {
  const int groups = w.k / kGroup, per_scale = w.group / kGroup, scales = w.k / w.group;
  const uint8_t* lines = (const uint8_t*)w.weight + (size_t)tile * groups * 256;
  const uint16_t* scale = w.scale + (size_t)tile * scales * 16;
  const uint16_t* minimum = kAsymmetric ? w.minimum + (size_t)tile * scales * 16 : nullptr;
  const int8_t* in = x.int8(row);
  const float* in_scale = x.group_scale(row);
  const int32_t* in_sum = x.group_sum(row);
  const int stride = x.stride(), group_stride = stride / kGroup;
  f32x16 acc[M];
  EACH_ROW acc[m] = f32x16::zero();
  for (int g = 0; g < groups; g++) {
    i32x16 dot[M];
    EACH_ROW dot[m] = i32x16::all(kAsymmetric ? 0 : -8 * in_sum[m * group_stride + g]);
#pragma GCC unroll 4
    for (int line = 0; line < 4; line++) {
      const uint8_t* at = lines + g * 256 + line * 64;
      prefetch(at + 2048);
      const nibbles weights(at);
      EACH_ROW dot[m] = dot_int4(dot[m], weights, in + m * stride + g * kGroup + line * 8);
    }
    const f32x16 s = f32x16::load_bf16(scale + g / per_scale * 16);
    EACH_ROW {
      const float xs = in_scale[m * group_stride + g];
      acc[m] = fma(to_float(dot[m]), s * f32x16::all(xs), acc[m]);
      if (kAsymmetric) acc[m] = fma(f32x16::load_bf16(minimum + g / per_scale * 16), f32x16::all(xs * in_sum[m * group_stride + g]), acc[m]);
    }
  }
  EACH_ROW acc[m].store(out + m * kUnit);
}

template <int M>
static void unit_int4(const Matrix& w, int unit, const Activations& x, int row, float (*out)[kUnit]) {
  for (int half = 0; half < 2; half++) {
    if (w.minimum) tile_int4<M, true>(w, 2 * unit + half, x, row, out[0] + 16 * half);
    else tile_int4<M, false>(w, 2 * unit + half, x, row, out[0] + 16 * half);
  }
}

template <int M>
static void unit_rows(const Matrix& w, int unit, const Activations& x, int row, float (*out)[kUnit]) {
  switch (w.kind) {
    case Kind::f32: return unit_f32<M>(w, unit, x, row, out);
    case Kind::bf16: return unit_bf16<M>(w, unit, x, row, out);
    case Kind::int4: return unit_int4<M>(w, unit, x, row, out);
  }
}

static void unit_block(int m, const Matrix& w, int unit, const Activations& x, int row, float (*out)[kUnit]) {
  switch (m) {
    case 1: return unit_rows<1>(w, unit, x, row, out);
    case 2: return unit_rows<2>(w, unit, x, row, out);
#if TANDEM_WIDE
    case 3: return unit_rows<3>(w, unit, x, row, out);
    case 4: return unit_rows<4>(w, unit, x, row, out);
    case 5: return unit_rows<5>(w, unit, x, row, out);
    case 6: return unit_rows<6>(w, unit, x, row, out);
    case 7: return unit_rows<7>(w, unit, x, row, out);
    default: return unit_rows<8>(w, unit, x, row, out);
#endif
  }
}

#undef EACH_ROW

#if TANDEM_AMX
#include "matmul_amx.h"
// A thread gives its tiles back after a pass: the kernel need not save them any more.
struct TileScope {
  ~TileScope() { use_tiles(Shape::none, 0); }
};
#else
struct TileScope {
  TileScope() {}
};
#endif

// Runs units first..last-1 for all rows and hands each row's 32 outputs to finish(row, first output, outputs).
template <class Finish>
static void matmul(const Matrix& w, const Activations& x, int rows, int first, int last, Finish&& finish) {
#if TANDEM_AMX
  if (w.kind == Kind::bf16) return matmul_amx(w, x, rows, first, last, finish);
#endif
  alignas(64) float out[kMaxRows][kUnit];
  for (int unit = first; unit < last; unit++) {
    for (int row = 0; row < rows; row += kMaxRows) {
      const int m = rows - row < kMaxRows ? rows - row : kMaxRows;
      unit_block(m, w, unit, x, row, out);
      for (int i = 0; i < m; i++) finish(row + i, unit * kUnit, out[i]);
    }
  }
}
