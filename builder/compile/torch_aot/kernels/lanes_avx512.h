// Sixteen lanes on AVX-512 with BF16 and VNNI (Zen 4, Sapphire Rapids and later).
#pragma once
#include <immintrin.h>

#include <cstdint>

constexpr int kMaxRows = 8;  // activation rows that one pass over a weight tile feeds: 2 x 8 accumulators of 32 registers

struct f32x16 {
  __m512 v;
  static f32x16 zero() { return {_mm512_setzero_ps()}; }
  static f32x16 all(float x) { return {_mm512_set1_ps(x)}; }
  static f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static f32x16 load_bf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_bf16(uint16_t* p) const { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(v)); }
  void store_int8(int8_t* p) const {  // rounds to nearest even
    _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
  }
};
static inline f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline f32x16 abs(f32x16 a) { return {_mm512_abs_ps(a.v)}; }
static inline f32x16 round(f32x16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
static inline f32x16 scale2(f32x16 a, f32x16 power) { return {_mm512_scalef_ps(a.v, power.v)}; }  // a * 2^power
static inline float sum(f32x16 a) { return _mm512_reduce_add_ps(a.v); }
static inline float maximum(f32x16 a) { return _mm512_reduce_max_ps(a.v); }

struct i32x16 {
  __m512i v;
  static i32x16 all(int32_t x) { return {_mm512_set1_epi32(x)}; }
};
static inline f32x16 to_float(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

// line: 16 outputs x 2 inputs in bf16; pair: two bf16 inputs of one row.
static inline f32x16 dot_bf16(f32x16 acc, const uint16_t* line, const uint16_t* pair) {
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)_mm512_loadu_si512(line), (__m512bh)_mm512_set1_epi32(*(const int32_t*)pair))};
}

// 64 bytes: 16 outputs x 4 inputs in each nibble half (0..15).
struct nibbles {
  __m512i low, high;
  explicit nibbles(const uint8_t* line) {
    const __m512i v = _mm512_loadu_si512(line), mask = _mm512_set1_epi8(15);
    low = _mm512_and_si512(v, mask);
    high = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
  }
};
// adds sum over 4 of u8 weight x s8 input; quads: 8 int8 inputs of one row, 4 for each nibble half.
static inline i32x16 dot_int4(i32x16 acc, const nibbles& w, const int8_t* quads) {
  const int32_t* quad = (const int32_t*)quads;
  acc.v = _mm512_dpbusd_epi32(acc.v, w.low, _mm512_set1_epi32(quad[0]));
  return {_mm512_dpbusd_epi32(acc.v, w.high, _mm512_set1_epi32(quad[1]))};
}

static inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
