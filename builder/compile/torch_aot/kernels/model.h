// What the kernels work on: packed weights, a paged key-value cache, ragged rows. Plain pointers; binding.cpp owns the tensors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

enum class Kind { f32, bf16, int4 };

// y = W x + bias, W [n, k]. Tiles of 16 outputs; one 64-byte line holds 16 outputs x {1 f32 | 2 bf16 | 8 int4} inputs, so that one load
// feeds every activation row by broadcast. Lines of a tile follow each other along k. n and k are multiples of 32.
struct Matrix {
  Kind kind = Kind::f32;
  int n = 0, k = 0;
  const void* weight = nullptr;
  const uint16_t* scale = nullptr;    // int4: bf16 [n/16][k/group][16]
  const uint16_t* minimum = nullptr;  // int4, asymmetric: same shape, w = q scale + minimum; else w = (q - 8) scale
  int group = 32;                     // int4: inputs that share a scale
  const float* bias = nullptr;        // [n]
};

struct Layer {
  const float* attention_norm;  // [hidden]
  const float* mlp_norm;        // [hidden]
  const float* query_norm;      // [head_dim] or null
  const float* key_norm;        // [head_dim] or null
  Matrix qkv;                   // rows: queries, keys, values
  Matrix output;
  Matrix gate_up;  // tiles alternate: 16 gate outputs, 16 up outputs
  Matrix down;
};

// What an exit head makes of an inner layer's state h before norm and head: u + map u + down silu(up u), u = h / rms(h).
struct ExitMap {
  Matrix map;       // [hidden, hidden]; n is 0 in a model that is no exit head
  Matrix up, down;  // [width, hidden] and [hidden, width]; n is 0 without them
};

struct Model {
  int hidden, intermediate, heads, kv_heads, head_dim;
  float eps;
  const float* cosine;  // [max_seq_len, head_dim / 2]
  const float* sine;
  std::vector<Layer> layers;
  ExitMap exit;
  const float* final_norm;
  Matrix head;
};

// Keys and values lie like weight tiles, so that both products of attention read whole lines: bf16 keys 16 positions x 2 dims a line,
// bf16 values 16 dims x 2 positions a line, and float32 one of either where bf16 has two.
//   key   [layer][block][kv_head][block_size / 16][head_dim / 2][16][2]   or  [..][head_dim][16]
//   value [layer][block][kv_head][block_size / 2][head_dim][2]            or  [..][block_size][head_dim]
struct Cache {
  Kind kind = Kind::bf16;  // bf16 or f32
  void* key = nullptr;
  void* value = nullptr;
  int blocks = 0, block_size = 0;
};

struct Rows {
  int count;
  const int32_t* position;     // [count]
  const int32_t* sequence;     // [count], index into block_table
  const int32_t* block_table;  // [sequences, width]
  int width;
};
