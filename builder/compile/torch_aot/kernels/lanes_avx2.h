// Sixteen lanes as two AVX2 registers (FMA; any x86-64 server since 2013).
#pragma once
#include <immintrin.h>

#include <cstdint>

constexpr int kMaxRows = 2;  // 2 tiles x 2 rows x 2 registers of 16

struct f32x16 {
  __m256 a, b;
  static f32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static f32x16 all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static __m256 widen(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
  }
  static f32x16 load_bf16(const uint16_t* p) { return {widen(p), widen(p + 8)}; }
  void store(float* p) const {
    _mm256_storeu_ps(p, a);
    _mm256_storeu_ps(p + 8, b);
  }
  static __m256i narrow(__m256 x) {  // to bf16, nearest even, in the low half of each 32 bits
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff)), 16);
  }
  void store_bf16(uint16_t* p) const {
    const __m256i packed = _mm256_packus_epi32(narrow(a), narrow(b));
    _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
  }
  void store_int8(int8_t* p) const {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b)), 0xd8);
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
};
static inline f32x16 operator+(f32x16 x, f32x16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline f32x16 operator-(f32x16 x, f32x16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline f32x16 operator*(f32x16 x, f32x16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static inline f32x16 operator/(f32x16 x, f32x16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
static inline f32x16 fma(f32x16 x, f32x16 y, f32x16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
static inline f32x16 max(f32x16 x, f32x16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline f32x16 min(f32x16 x, f32x16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
static inline f32x16 abs(f32x16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
static inline f32x16 round(f32x16 x) {
  return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline __m256 power_of_two(__m256 n) {  // n whole, -126..127
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
static inline f32x16 scale2(f32x16 x, f32x16 power) {
  return {_mm256_mul_ps(x.a, power_of_two(power.a)), _mm256_mul_ps(x.b, power_of_two(power.b))};
}
static inline float sum(f32x16 x) {
  float lane[8], total = 0;
  _mm256_storeu_ps(lane, _mm256_add_ps(x.a, x.b));
  for (float v : lane) total += v;
  return total;
}
static inline float maximum(f32x16 x) {
  float lane[8];
  _mm256_storeu_ps(lane, _mm256_max_ps(x.a, x.b));
  float best = lane[0];
  for (float v : lane) best = v > best ? v : best;
  return best;
}

struct i32x16 {
  __m256i a, b;
  static i32x16 all(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
};
static inline f32x16 to_float(i32x16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

static inline __m256 dot_half(__m256 acc, const uint16_t* line, __m256 first, __m256 second) {
  const __m256i pairs = _mm256_loadu_si256((const __m256i*)line);
  acc = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)), first, acc);
  return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(0xffff0000))), second, acc);
}
// line: 16 outputs x 2 inputs in bf16; pair: two bf16 inputs of one row.
static inline f32x16 dot_bf16(f32x16 acc, const uint16_t* line, const uint16_t* pair) {
  const __m256 first = _mm256_castsi256_ps(_mm256_set1_epi32((uint32_t)pair[0] << 16));
  const __m256 second = _mm256_castsi256_ps(_mm256_set1_epi32((uint32_t)pair[1] << 16));
  return {dot_half(acc.a, line, first, second), dot_half(acc.b, line + 16, first, second)};
}

// 64 bytes: 16 outputs x 4 inputs in each nibble half (0..15).
struct nibbles {
  __m256i low[2], high[2];
  explicit nibbles(const uint8_t* line) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int half = 0; half < 2; half++) {
      const __m256i v = _mm256_loadu_si256((const __m256i*)(line + 32 * half));
      low[half] = _mm256_and_si256(v, mask);
      high[half] = _mm256_and_si256(_mm256_srli_epi16(v, 4), mask);
    }
  }
};
static inline __m256i dot_quad(__m256i acc, __m256i w, int32_t quad) {  // 15 x 127 x 2 fits 16 bits: no saturation
  const __m256i words = _mm256_maddubs_epi16(w, _mm256_set1_epi32(quad));
  return _mm256_add_epi32(acc, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
}
// adds sum over 4 of u8 weight x s8 input; quads: 8 int8 inputs of one row, 4 for each nibble half.
static inline i32x16 dot_int4(i32x16 acc, const nibbles& w, const int8_t* quads) {
  const int32_t* quad = (const int32_t*)quads;
  return {dot_quad(dot_quad(acc.a, w.low[0], quad[0]), w.high[0], quad[1]), dot_quad(dot_quad(acc.b, w.low[1], quad[0]), w.high[1], quad[1])};
}

static inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
