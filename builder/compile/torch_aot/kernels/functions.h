// Functions of sixteen lanes that the layers need: exponential and gate.
#pragma once

// exp(x) for x <= 0, relative error about 2e-7: 2^n times a polynomial on |f| <= ln2 / 2 (coefficients: Taylor).
static inline f32x16 exponential(f32x16 x) {
  x = max(x, f32x16::all(-87.0f));
  const f32x16 n = round(x * f32x16::all(1.44269504f));
  f32x16 f = fma(n, f32x16::all(-0.693359375f), x);
  f = fma(n, f32x16::all(2.12194440e-4f), f);
  f32x16 p = f32x16::all(1.0f / 5040);
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = fma(p, f, f32x16::all(c));
  return scale2(p, n);
}

// silu(gate) * up. sigmoid(g) = e^min(g, 0) / (1 + e^-|g|) never overflows and needs no branch: one that guesses the sign of a gate is
// wrong every other time, and cost more than the whole product it follows.
static inline f32x16 gated(f32x16 gate, f32x16 up) {
  const f32x16 zero = f32x16::zero();
  return gate * (exponential(min(gate, zero)) / (f32x16::all(1.0f) + exponential(zero - abs(gate)))) * up;
}
