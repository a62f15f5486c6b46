// One decoder per instruction set behind one table of functions.
#pragma once
#include "model.h"
#include "team.h"

struct Decoder {
  virtual ~Decoder() = default;
  // Runs layers start..stop-1 in place on hidden [rows, model.hidden]; writes their keys and values.
  virtual void layers(float* hidden, const Rows& rows, const Cache& cache, int start, int stop) = 0;
  // Every matrix product of a pass over `rows` dummy rows and nothing else: what the weights alone cost (the limit `bench` compares with).
  virtual void products(int rows) = 0;
  // logits [rows, model.head.n] of hidden [rows, model.hidden].
  virtual void head(const float* hidden, int rows, float* logits) = 0;
  // Token with the largest logit of each row among the first `vocabulary`, the lowest of equals; no logits are kept. With
  // `confidence` also its probability, 1 / sum of exp(logit - largest).
  virtual void greedy(const float* hidden, int rows, int vocabulary, int32_t* tokens, float* confidence = nullptr) = 0;
};

Decoder* make_decoder_amx(const Model&, Team&, int max_seq_len);
Decoder* make_decoder_avx512(const Model&, Team&, int max_seq_len);
Decoder* make_decoder_avx2(const Model&, Team&, int max_seq_len);
Decoder* make_decoder_generic(const Model&, Team&, int max_seq_len);
