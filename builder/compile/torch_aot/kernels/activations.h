// Rows on their way into a matrix product: converted to what the weights want (f32, bf16, or int8 with a scale for each 32 inputs).
#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>

#include "model.h"

constexpr int kGroup = 32;  // inputs that share an int8 scale

class Activations {
 public:
  // Room for `rows` rows of k inputs; AMX reads rows by sixteens, so the count is rounded up and the room zeroed.
  void reserve(int rows, int k) {
    rows = (rows + 15) / 16 * 16;
    if (rows <= rows_ && k <= k_) return;
    rows_ = rows > rows_ ? rows : rows_;
    k_ = k > k_ ? k : k_;
    const size_t bytes = (size_t)rows_ * k_ * sizeof(float);
    data_.reset((float*)std::aligned_alloc(64, bytes));
    std::memset(data_.get(), 0, bytes);
    scale_.reset(new float[(size_t)rows_ * (k_ / kGroup)]);
    sum_.reset(new int32_t[(size_t)rows_ * (k_ / kGroup)]);
  }
  int stride() const { return k_; }  // elements from row to row
  float* f32(int row) const { return data_.get() + (size_t)row * k_; }
  uint16_t* bf16(int row) const { return (uint16_t*)data_.get() + (size_t)row * k_; }
  int8_t* int8(int row) const { return (int8_t*)data_.get() + (size_t)row * k_; }
  float* group_scale(int row) const { return scale_.get() + (size_t)row * (k_ / kGroup); }
  int32_t* group_sum(int row) const { return sum_.get() + (size_t)row * (k_ / kGroup); }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  int rows_ = 0, k_ = 0;
  std::unique_ptr<float, Free> data_;
  std::unique_ptr<float[]> scale_;   // int8: [rows][k / 32]
  std::unique_ptr<int32_t[]> sum_;   // int8: sum of the quantised inputs of each group
};

static void quantise_group(const Activations& x, int row, int k, f32x16 a, f32x16 b) {
  const float largest = maximum(max(abs(a), abs(b)));
  const f32x16 inverse = f32x16::all(largest > 0 ? 127.0f / largest : 0.0f);
  int8_t* q = x.int8(row) + k;
  (a * inverse).store_int8(q);
  (b * inverse).store_int8(q + 16);
  int32_t total = 0;
  for (int i = 0; i < kGroup; i++) total += q[i];
  x.group_scale(row)[k / kGroup] = largest / 127.0f;
  x.group_sum(row)[k / kGroup] = total;
}

static float inverse_rms(const float* x, int n, float eps) {
  f32x16 squares = f32x16::zero();
  for (int i = 0; i < n; i += 16) {
    const f32x16 v = f32x16::load(x + i);
    squares = fma(v, v, squares);
  }
  return 1.0f / std::sqrt(sum(squares) / (float)n + eps);
}

// One row of source [k], RMS-normalised when norm is given (Zhang and Sennrich 2019: x / rms(x) * weight).
static void prepare_row(const Activations& x, int row, const float* source, int k, Kind kind, const float* norm, float eps) {
  const f32x16 inverse = f32x16::all(norm ? inverse_rms(source, k, eps) : 1.0f);
  for (int i = 0; i < k; i += kGroup) {
    f32x16 a = f32x16::load(source + i), b = f32x16::load(source + i + 16);
    if (norm) {
      a = a * inverse * f32x16::load(norm + i);
      b = b * inverse * f32x16::load(norm + i + 16);
    }
    switch (kind) {
      case Kind::f32: a.store(x.f32(row) + i), b.store(x.f32(row) + i + 16); break;
      case Kind::bf16: a.store_bf16(x.bf16(row) + i), b.store_bf16(x.bf16(row) + i + 16); break;
      case Kind::int4: quantise_group(x, row, i, a, b); break;
    }
  }
}
