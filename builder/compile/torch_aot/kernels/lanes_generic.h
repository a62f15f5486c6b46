// Sixteen lanes in plain C++: any processor; the compiler vectorises as far as the base architecture allows.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

constexpr int kMaxRows = 2;

static inline float widen_bf16(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
static inline uint16_t narrow_bf16(float x) {  // nearest even
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#define LANES for (int i = 0; i < 16; i++)

struct f32x16 {
  float v[16];
  static f32x16 zero() { return all(0.0f); }
  static f32x16 all(float x) { f32x16 r; LANES r.v[i] = x; return r; }
  static f32x16 load(const float* p) { f32x16 r; LANES r.v[i] = p[i]; return r; }
  static f32x16 load_bf16(const uint16_t* p) { f32x16 r; LANES r.v[i] = widen_bf16(p[i]); return r; }
  void store(float* p) const { LANES p[i] = v[i]; }
  void store_bf16(uint16_t* p) const { LANES p[i] = narrow_bf16(v[i]); }
  void store_int8(int8_t* p) const { LANES p[i] = (int8_t)std::nearbyint(v[i]); }
};
static inline f32x16 operator+(f32x16 a, f32x16 b) { LANES a.v[i] += b.v[i]; return a; }
static inline f32x16 operator-(f32x16 a, f32x16 b) { LANES a.v[i] -= b.v[i]; return a; }
static inline f32x16 operator*(f32x16 a, f32x16 b) { LANES a.v[i] *= b.v[i]; return a; }
static inline f32x16 operator/(f32x16 a, f32x16 b) { LANES a.v[i] /= b.v[i]; return a; }
static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { LANES c.v[i] = a.v[i] * b.v[i] + c.v[i]; return c; }
static inline f32x16 max(f32x16 a, f32x16 b) { LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
static inline f32x16 min(f32x16 a, f32x16 b) { LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
static inline f32x16 abs(f32x16 a) { LANES a.v[i] = std::fabs(a.v[i]); return a; }
static inline f32x16 round(f32x16 a) { LANES a.v[i] = std::nearbyint(a.v[i]); return a; }
static inline f32x16 scale2(f32x16 a, f32x16 power) { LANES a.v[i] = std::ldexp(a.v[i], (int)power.v[i]); return a; }
static inline float sum(f32x16 a) { float r = 0; LANES r += a.v[i]; return r; }
static inline float maximum(f32x16 a) { float r = a.v[0]; LANES r = a.v[i] > r ? a.v[i] : r; return r; }

struct i32x16 {
  int32_t v[16];
  static i32x16 all(int32_t x) { i32x16 r; LANES r.v[i] = x; return r; }
};
static inline f32x16 to_float(i32x16 a) { f32x16 r; LANES r.v[i] = (float)a.v[i]; return r; }

// line: 16 outputs x 2 inputs in bf16; pair: two bf16 inputs of one row.
static inline f32x16 dot_bf16(f32x16 acc, const uint16_t* line, const uint16_t* pair) {
  const float first = widen_bf16(pair[0]), second = widen_bf16(pair[1]);
  LANES acc.v[i] = acc.v[i] + widen_bf16(line[2 * i]) * first + widen_bf16(line[2 * i + 1]) * second;
  return acc;
}

// 64 bytes: 16 outputs x 4 inputs in each nibble half (0..15).
struct nibbles {
  const uint8_t* line;
  explicit nibbles(const uint8_t* line) : line(line) {}
};
// adds sum over 4 of u8 weight x s8 input; quads: 8 int8 inputs of one row, 4 for each nibble half.
static inline i32x16 dot_int4(i32x16 acc, const nibbles& w, const int8_t* quads) {
  LANES for (int j = 0; j < 4; j++) acc.v[i] += (w.line[4 * i + j] & 15) * quads[j] + (w.line[4 * i + j] >> 4) * quads[4 + j];
  return acc;
}

#undef LANES

static inline void prefetch(const void*) {}
