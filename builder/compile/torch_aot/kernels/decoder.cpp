// The transformer pass, compiled once for each instruction set (TANDEM_ISA names the factory, TANDEM_LANES the header).
#include "decoder.h"

#include <algorithm>
#include <cmath>

#include TANDEM_LANES
#include "matmul.h"
#include "attention.h"

namespace {

// Up to this many rows each thread prepares all rows for itself: a norm of 576 inputs takes 50 ns, a barrier more.
constexpr int kPrivateRows = 8;

struct Range {
  int first, last;
};
Range share(int count, int thread, int threads) { return {(int)((long)count * thread / threads), (int)((long)count * (thread + 1) / threads)}; }

class Pass final : public Decoder {
 public:
  Pass(const Model& model, Team& team, int max_seq_len) : m_(model), team_(team), own_(team.size()), scores_(team.size()) {
    for (auto& s : scores_) s.resize((max_seq_len + 15) / 16 * 16 + 16);
  }

  void layers(float* hidden, const Rows& rows, const Cache& cache, int start, int stop) override {
    reserve(rows.count);
    team_.run([&](int t) {
      const MatmulScope scope(rows.count);
      for (int i = start; i < stop; i++) layer(t, i, hidden, rows, cache);
    });
  }

  void products(int rows) override {
    reserve(rows);
    const std::vector<float> zeros((size_t)rows * widest());
    std::vector<float> out((size_t)rows * std::max({m_.head.n, 2 * m_.intermediate, qkv_width(), m_.hidden}));
    team_.run([&](int t) {
      const MatmulScope scope(rows);
      const auto stream = [&](const Matrix& w) { product(t, w, own_or_shared(t, rows), rows, out.data(), w.n); };
      for (int r = 0; r < rows; r++) prepare_row(own_or_shared(t, rows), r, zeros.data(), widest(), m_.head.kind, nullptr, 0);
      for (const Layer& l : m_.layers) stream(l.qkv), stream(l.output), stream(l.gate_up), stream(l.down);
      stream(m_.head);
    });
  }

  void head(const float* hidden, int rows, float* logits) override {
    reserve(rows);
    team_.run([&](int t) {
      const MatmulScope scope(rows);
      const Activations& x = prepare(t, hidden, m_.hidden, rows, m_.head, m_.final_norm);
      product(t, m_.head, x, rows, logits, m_.head.n);
    });
  }

  int argmax(const float* logits, int count) const override {
    f32x16 best = f32x16::all(-INFINITY);
    int i = 0;
    for (; i + 16 <= count; i += 16) best = max(best, f32x16::load(logits + i));
    float top = maximum(best);
    for (; i < count; i++) top = logits[i] > top ? logits[i] : top;
    return (int)(std::find(logits, logits + count, top) - logits) % count;  // not found when a logit is NaN: 0
  }

 private:
  int qkv_width() const { return m_.layers[0].qkv.n; }  // padded to whole units
  int attention_width() const { return m_.heads * m_.head_dim; }
  int widest() const { return std::max({m_.hidden, m_.intermediate, attention_width()}); }
  const Activations& own_or_shared(int t, int rows) const { return rows <= kPrivateRows ? own_[t] : shared_; }

  void reserve(int rows) {
    for (auto& x : own_) x.reserve(kPrivateRows, widest());
    if (rows > kPrivateRows) shared_.reserve(rows, widest());
    qkv_.resize(std::max(qkv_.size(), (size_t)rows * qkv_width()));
    attention_.resize(std::max(attention_.size(), (size_t)rows * attention_width()));
    middle_.resize(std::max(middle_.size(), (size_t)rows * m_.intermediate));
  }

  // The rows as input for matrix w, normalised when norm is given.
  const Activations& prepare(int t, const float* source, int k, int rows, const Matrix& w, const float* norm) {
    const bool private_rows = rows <= kPrivateRows;
    const Activations& x = own_or_shared(t, rows);
    const Range mine = private_rows ? Range{0, rows} : share(rows, t, team_.size());
    for (int r = mine.first; r < mine.last; r++) prepare_row(x, r, source + (size_t)r * k, k, w.kind, norm, m_.eps);
    if (!private_rows) team_.barrier();
    return x;
  }

  template <class Finish>
  void units(int t, const Matrix& w, const Activations& x, int rows, Finish&& finish) {
    const Range mine = share(w.n / kUnit, t, team_.size());
    matmul(w, x, rows, mine.first, mine.last, finish);
    team_.barrier();
  }

  void product(int t, const Matrix& w, const Activations& x, int rows, float* y, int width) {
    units(t, w, x, rows, [&](int row, int n, const float* out) {
      for (int i = 0; i < kUnit; i += 16) {
        f32x16 v = f32x16::load(out + i);
        if (w.bias) v = v + f32x16::load(w.bias + n + i);
        v.store(y + (size_t)row * width + n + i);
      }
    });
  }

  void add_product(int t, const Matrix& w, const Activations& x, int rows, float* y, int width) {
    units(t, w, x, rows, [&](int row, int n, const float* out) {
      for (int i = 0; i < kUnit; i += 16) {
        float* at = y + (size_t)row * width + n + i;
        f32x16 v = f32x16::load(out + i);
        if (w.bias) v = v + f32x16::load(w.bias + n + i);
        (f32x16::load(at) + v).store(at);
      }
    });
  }

  void gated_product(int t, const Matrix& w, const Activations& x, int rows, float* y, int width) {
    units(t, w, x, rows, [&](int row, int n, const float* out) {
      f32x16 gate = f32x16::load(out), up = f32x16::load(out + 16);
      if (w.bias) gate = gate + f32x16::load(w.bias + n), up = up + f32x16::load(w.bias + n + 16);
      gated(gate, up).store(y + (size_t)row * width + n / 2);
    });
  }

  // Rotates queries and keys of this thread's share of (row, kv head) and writes keys and values into the cache.
  void rope(int t, const Layer& layer, int index, const Rows& rows, const Cache& cache) {
    const int group = m_.heads / m_.kv_heads, d = m_.head_dim;
    const float scale = 1.0f / std::sqrt((float)d);
    const Range mine = share(rows.count * m_.kv_heads, t, team_.size());
    for (int task = mine.first; task < mine.last; task++) {
      const int row = task / m_.kv_heads, kv = task % m_.kv_heads, position = rows.position[row];
      float* q = qkv_.data() + (size_t)row * qkv_width();
      float* k = q + (m_.heads + kv) * d;
      for (int h = kv * group; h < (kv + 1) * group; h++) {
        rotate(q + h * d, m_, position, layer.query_norm);
        for (int i = 0; i < d; i++) q[h * d + i] *= scale;
      }
      rotate(k, m_, position, layer.key_norm);
      const int32_t* table = rows.block_table + (size_t)rows.sequence[row] * rows.width;
      const Slot slot = slot_of(m_, cache, index, table[position / cache.block_size], kv, position % cache.block_size);
      write_cache(m_, cache, slot, k, k + m_.kv_heads * d);
    }
    team_.barrier();
  }

  void attention(int t, int index, const Rows& rows, const Cache& cache) {
    const int group = m_.heads / m_.kv_heads, d = m_.head_dim;
    const Range mine = share(rows.count * m_.heads, t, team_.size());
    for (int task = mine.first; task < mine.last; task++) {
      const int row = task / m_.heads, h = task % m_.heads;
      const int32_t* table = rows.block_table + (size_t)rows.sequence[row] * rows.width;
      attend_head(m_, cache, index, h / group, table, rows.position[row], qkv_.data() + (size_t)row * qkv_width() + h * d, scores_[t].data(),
                  attention_.data() + (size_t)row * attention_width() + h * d);
    }
    team_.barrier();
  }

  void layer(int t, int index, float* hidden, const Rows& rows, const Cache& cache) {
    const Layer& layer = m_.layers[index];
    const int n = rows.count;
    product(t, layer.qkv, prepare(t, hidden, m_.hidden, n, layer.qkv, layer.attention_norm), n, qkv_.data(), qkv_width());
    rope(t, layer, index, rows, cache);
    attention(t, index, rows, cache);
    add_product(t, layer.output, prepare(t, attention_.data(), attention_width(), n, layer.output, nullptr), n, hidden, m_.hidden);
    gated_product(t, layer.gate_up, prepare(t, hidden, m_.hidden, n, layer.gate_up, layer.mlp_norm), n, middle_.data(), m_.intermediate);
    add_product(t, layer.down, prepare(t, middle_.data(), m_.intermediate, n, layer.down, nullptr), n, hidden, m_.hidden);
  }

  const Model& m_;
  Team& team_;
  std::vector<Activations> own_;  // one a thread
  Activations shared_;
  std::vector<std::vector<float>> scores_;       // one a thread
  std::vector<float> qkv_, attention_, middle_;  // [rows, width]
};

}  // namespace

Decoder* TANDEM_ISA(const Model& model, Team& team, int max_seq_len) { return new Pass(model, team, max_seq_len); }
