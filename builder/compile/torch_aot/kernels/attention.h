// Attention over the paged cache. Queries of one sequence that share a kv head are answered together, up to sixteen at a time: keys
// and values are read once for all. A query's own sums are added in one fixed order whatever its company, so its bits never change.
#pragma once
#include "functions.h"
#include "kv_cache.h"

constexpr int kQueries = 16;

// Queries of one sequence and kv head. Query i sees positions 0..last[i]; q and out have head_dim floats, q is scaled already.
struct Queries {
  int count = 0, longest = 0;  // longest: the largest of last
  int layer, kv_head;
  const int32_t* table;  // block ids of the sequence
  int last[kQueries];
  const float* q[kQueries];
  float* out[kQueries];
};

// What a thread needs to answer a batch of queries. Row i of `scores` holds query i's scores, then its weights (bf16 in place, or f32).
struct Scratch {
  int stride = 0;  // floats of a row
  std::vector<float> scores;
  std::vector<uint16_t> rounded;  // bf16 queries, [kQueries][head_dim]
  std::vector<float> tail;        // the last chunk of values, with zeros where no position is
  float inverse[kQueries];        // 1 / sum of the weights

  void reserve(int context, int head_dim) {
    stride = (context + 15) / 16 * 16;
    scores.resize((size_t)kQueries * stride);
    rounded.resize((size_t)kQueries * head_dim);
    tail.resize((size_t)16 * head_dim);
  }
  float* row(int query) { return scores.data() + (size_t)query * stride; }
  const uint16_t* weights(int query) { return (const uint16_t*)row(query); }
};

static size_t chunk_at(const Model& m, const Cache& cache, const Queries& queries, int at) {
  return slot_of(m, cache, queries.layer, queries.table[at / cache.block_size], queries.kv_head, at % cache.block_size).chunk;
}

// The next chunk of a sequence may lie anywhere: the processor cannot guess it.
static void prefetch_chunk(const Model& m, const Cache& cache, const void* plane, const Queries& queries, int at) {
  if (at > queries.longest) return;
  const size_t size = cache.kind == Kind::f32 ? 4 : 2, chunk = chunk_at(m, cache, queries, at);
  for (int line = 0; line < 16 * m.head_dim * (int)size; line += 64) prefetch((const char*)plane + chunk * size + line);
}

// Scores of Q queries from `first` on, all chunks. Four partial sums a query hide the latency of the dot instruction.
template <int Q>
static void scores_of(const Model& m, const Cache& cache, const Queries& queries, int first, Scratch& scratch) {
  const uint16_t* q16 = scratch.rounded.data() + (size_t)first * m.head_dim;
  for (int at = 0; at <= queries.longest; at += 16) {
    const size_t chunk = chunk_at(m, cache, queries, at);
    prefetch_chunk(m, cache, cache.key, queries, at + 16);
    f32x16 part[Q][4];
    for (int i = 0; i < Q; i++) part[i][0] = part[i][1] = part[i][2] = part[i][3] = f32x16::zero();
    if (cache.kind == Kind::f32) {
      const float* k = (const float*)cache.key + chunk;
      for (int d = 0; d < m.head_dim; d += 4)
        for (int p = 0; p < 4; p++)
          for (int i = 0; i < Q; i++) part[i][p] = fma(f32x16::load(k + (d + p) * 16), f32x16::all(queries.q[first + i][d + p]), part[i][p]);
    } else {
      const uint16_t* k = (const uint16_t*)cache.key + chunk;
      for (int d = 0; d < m.head_dim; d += 8)
        for (int p = 0; p < 4; p++)
          for (int i = 0; i < Q; i++) part[i][p] = dot_bf16(part[i][p], k + (d + 2 * p) * 16, q16 + (size_t)i * m.head_dim + d + 2 * p);
    }
    for (int i = 0; i < Q; i++) ((part[i][0] + part[i][1]) + (part[i][2] + part[i][3])).store(scratch.row(first + i) + at);
  }
}

// Scores of query i to weights e^(score - highest), zero beyond its own position. bf16 weights replace the scores in place.
static void softmax(const Queries& queries, int i, bool bf16, Scratch& scratch) {
  float* scores = scratch.row(i);
  uint16_t* rounded = (uint16_t*)scores;
  const int count = queries.last[i] + 1, whole = (count + 15) / 16 * 16;
  for (int at = count; at < whole; at++) scores[at] = -1e30f;
  f32x16 highest = f32x16::all(-1e30f), total = f32x16::zero();
  for (int at = 0; at < whole; at += 16) highest = max(highest, f32x16::load(scores + at));
  const f32x16 top = f32x16::all(maximum(highest));
  for (int at = 0; at < whole; at += 16) {
    float e[16];
    exponential(f32x16::load(scores + at) - top).store(e);
    for (int lane = count - at; lane < 16; lane++) e[lane] = 0.0f;
    const f32x16 weight = f32x16::load(e);
    total = total + weight;
    if (bf16) weight.store_bf16(rounded + at);
    else weight.store(scores + at);
  }
  for (int at = whole; at <= queries.longest; at += 16) {
    if (bf16) f32x16::zero().store_bf16(rounded + at);
    else f32x16::zero().store(scores + at);
  }
  scratch.inverse[i] = 1.0f / sum(total);
}

// Values of the chunk at `at`. What lies beyond the last position was never written for this sequence, and 0 times it may be NaN.
template <class T>
static const T* values_at(const Model& m, const Cache& cache, const Queries& queries, int at, Scratch& scratch) {
  const T* values = (const T*)cache.value + chunk_at(m, cache, queries, at);
  const int positions = queries.longest + 1 - at;
  if (positions >= 16) return values;
  T* tail = (T*)scratch.tail.data();
  constexpr int kWidth = sizeof(T) == 2 ? 2 : 1;  // positions of a line
  const int width = m.head_dim * kWidth, full = positions / kWidth;
  std::memset(tail, 0, 16 * m.head_dim * sizeof(T));
  std::memcpy(tail, values, (size_t)full * width * sizeof(T));
  if (positions % kWidth)
    for (int d = 0; d < m.head_dim; d++) tail[(size_t)full * width + 2 * d] = values[(size_t)full * width + 2 * d];
  return tail;
}

// Weighted sums of L x 16 dims from `dim` on, for Q queries from `first` on.
template <int Q, int L>
static void sums_of(const Model& m, const Cache& cache, const Queries& queries, int first, int dim, Scratch& scratch) {
  f32x16 sums[Q][L];
  for (int i = 0; i < Q; i++)
    for (int l = 0; l < L; l++) sums[i][l] = f32x16::zero();
  for (int at = 0; at <= queries.longest; at += 16) {
    prefetch_chunk(m, cache, cache.value, queries, at + 16);
    if (cache.kind == Kind::f32) {
      const float* values = values_at<float>(m, cache, queries, at, scratch) + dim;
      for (int p = 0; p < 16; p++)
        for (int i = 0; i < Q; i++) {
          const f32x16 weight = f32x16::all(scratch.row(first + i)[at + p]);
          for (int l = 0; l < L; l++) sums[i][l] = fma(f32x16::load(values + (size_t)p * m.head_dim + l * 16), weight, sums[i][l]);
        }
    } else {
      const uint16_t* values = values_at<uint16_t>(m, cache, queries, at, scratch) + 2 * dim;
      for (int p = 0; p < 16; p += 2)
        for (int i = 0; i < Q; i++)
          for (int l = 0; l < L; l++)
            sums[i][l] = dot_bf16(sums[i][l], values + (size_t)p * m.head_dim + l * 32, scratch.weights(first + i) + at + p);
    }
  }
  for (int i = 0; i < Q; i++)
    for (int l = 0; l < L; l++) (sums[i][l] * f32x16::all(scratch.inverse[first + i])).store(queries.out[first + i] + dim + l * 16);
}

template <int Q>
static void sums_of(const Model& m, const Cache& cache, const Queries& queries, int first, Scratch& scratch) {
  int dim = 0;
  for (; dim + 64 <= m.head_dim; dim += 64) sums_of<Q, 4>(m, cache, queries, first, dim, scratch);
  for (; dim < m.head_dim; dim += 16) sums_of<Q, 1>(m, cache, queries, first, dim, scratch);
}

// Calls work<Q> for queries first.. in blocks of at most kBlock, whose accumulators fit the registers.
#if TANDEM_WIDE
#define IN_BLOCKS(work)                                                            \
  for (int first = 0; first < queries.count; first += 4) switch (queries.count - first) { \
      case 1: work<1>(m, cache, queries, first, scratch); break;                   \
      case 2: work<2>(m, cache, queries, first, scratch); break;                   \
      case 3: work<3>(m, cache, queries, first, scratch); break;                   \
      default: work<4>(m, cache, queries, first, scratch);                         \
    }
#else
#define IN_BLOCKS(work) \
  for (int first = 0; first < queries.count; first++) work<1>(m, cache, queries, first, scratch);
#endif

#if TANDEM_AMX
#include "attention_amx.h"
#endif

// out = softmax(q K^T) V of each query.
static void attend(const Model& m, const Cache& cache, const Queries& queries, Scratch& scratch) {
  const bool bf16 = cache.kind != Kind::f32;
  if (bf16)
    for (int i = 0; i < queries.count; i++)
      for (int d = 0; d < m.head_dim; d += 16) f32x16::load(queries.q[i] + d).store_bf16(scratch.rounded.data() + (size_t)i * m.head_dim + d);
#if TANDEM_AMX
  if (bf16 && m.head_dim % 32 == 0) return attend_amx(m, cache, queries, scratch);
#endif
  IN_BLOCKS(scores_of)
  for (int i = 0; i < queries.count; i++) softmax(queries, i, bf16, scratch);
  IN_BLOCKS(sums_of)
}

#undef IN_BLOCKS
