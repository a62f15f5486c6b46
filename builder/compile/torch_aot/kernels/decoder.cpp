// The transformer pass, compiled once for each instruction set (TANDEM_ISA names the factory, TANDEM_LANES the header).
#include "decoder.h"

#include <algorithm>
#include <atomic>
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

// The largest logit seen so far.
struct Best {
  float logit;
  int token;

  void see(const float* out, int n, int vocabulary, const float* bias) {
    f32x16 a = f32x16::load(out), b = f32x16::load(out + 16);
    if (bias) a = a + f32x16::load(bias + n), b = b + f32x16::load(bias + n + 16);
    if (n + kUnit <= vocabulary && !(maximum(max(a, b)) > logit)) return;
    float logits[kUnit];
    a.store(logits);
    b.store(logits + 16);
    for (int i = 0; i < kUnit && n + i < vocabulary; i++)
      if (logits[i] > logit) logit = logits[i], token = n + i;
  }
};

// The sum of exp(logit - largest so far): with it the largest logit becomes a probability (online softmax, Milakov and Gimelshein 2018).
struct Mass {
  float largest = -INFINITY, sum = 0.0f;

  void see(const float* out, int n, int vocabulary, const float* bias) {
    alignas(64) float logits[kUnit];
    for (int i = 0; i < kUnit; i += 16) {
      f32x16 v = f32x16::load(out + i);
      if (bias) v = v + f32x16::load(bias + n + i);
      v.store(logits + i);
    }
    for (int i = std::max(0, vocabulary - n); i < kUnit; i++) logits[i] = -INFINITY;  // the padding of the last unit
    const f32x16 a = f32x16::load(logits), b = f32x16::load(logits + 16);
    const float top = maximum(max(a, b));
    if (top > largest) sum *= std::exp(largest - top), largest = top;
    const f32x16 shift = f32x16::all(largest);
    sum += ::sum(exponential(a - shift) + exponential(b - shift));
  }
};

class Pass final : public Decoder {
 public:
  Pass(const Model& model, Team& team, int max_seq_len) : m_(model), team_(team), own_(team.size()), ones_(model.exit.map.n, 1.0f), scratch_(team.size()), next_(model.layers.size()) {
    for (auto& scratch : scratch_) scratch.reserve(max_seq_len, model.head_dim);
  }

  void layers(float* hidden, const Rows& rows, const Cache& cache, int start, int stop) override {
    reserve(rows.count);
    plan_attention(rows);
    team_.run([&](int t) {
      const TileScope scope;
      for (int i = start; i < stop; i++) layer(t, i, hidden, rows, cache);
    });
  }

  void products(int rows) override {
    reserve(rows);
    const std::vector<float> zeros((size_t)rows * widest());
    std::vector<float> out((size_t)rows * std::max({m_.head.n, 2 * m_.intermediate, qkv_width(), m_.hidden}));
    team_.run([&](int t) {
      const TileScope scope;
      const auto stream = [&](const Matrix& w) { product(t, w, own_or_shared(t, rows), rows, out.data(), w.n); };
      for (int r = 0; r < rows; r++) prepare_row(own_or_shared(t, rows), r, zeros.data(), widest(), m_.head.kind, nullptr, 0);
      for (const Layer& l : m_.layers) stream(l.qkv), stream(l.output), stream(l.gate_up), stream(l.down);
      stream(m_.head);
    });
  }

  void head(const float* hidden, int rows, float* logits) override {
    reserve(rows);
    team_.run([&](int t) {
      const TileScope scope;
      const Activations& x = prepare(t, mapped(t, hidden, rows), m_.hidden, rows, m_.head, m_.final_norm);
      product(t, m_.head, x, rows, logits, m_.head.n);
    });
  }

  // Each thread keeps the best of its own units. Units come in ascending order, so that `>` leaves a tie to the lowest id. A NaN is
  // never larger: a row of NaNs gives 0.
  void greedy(const float* hidden, int rows, int vocabulary, int32_t* tokens, float* confidence) override {
    reserve(rows);
    best_.resize((size_t)team_.size() * rows);
    if (confidence) mass_.assign((size_t)team_.size() * rows, Mass());
    team_.run([&](int t) {
      const TileScope scope;
      const Activations& x = prepare(t, mapped(t, hidden, rows), m_.hidden, rows, m_.head, m_.final_norm);
      Best* best = best_.data() + (size_t)t * rows;
      std::fill_n(best, rows, Best{-INFINITY, vocabulary});
      Mass* mass = confidence ? mass_.data() + (size_t)t * rows : nullptr;
      units(t, m_.head, x, rows, [&](int row, int n, const float* out) {
        best[row].see(out, n, vocabulary, m_.head.bias);
        if (mass) mass[row].see(out, n, vocabulary, m_.head.bias);
      });
    });
    for (int row = 0; row < rows; row++) {
      Best top{-INFINITY, vocabulary};
      for (int t = 0; t < team_.size(); t++) {
        const Best& mine = best_[(size_t)t * rows + row];
        if (mine.logit > top.logit) top = mine;
      }
      tokens[row] = top.token % vocabulary;
      if (confidence) {
        const float total = total_mass(row, rows, top.logit);  // 1 at least, but for rounding; NaN of NaNs
        confidence[row] = total > 0.5f ? std::min(1.0f, 1.0f / total) : 0.0f;
      }
    }
  }

 private:
  int qkv_width() const { return m_.layers.empty() ? 0 : m_.layers[0].qkv.n; }  // padded to whole units; an exit head has no layers
  int attention_width() const { return m_.heads * m_.head_dim; }
  int widest() const { return std::max({m_.hidden, m_.intermediate, attention_width(), m_.exit.up.n}); }
  const Activations& own_or_shared(int t, int rows) const { return rows <= kPrivateRows ? own_[t] : shared_; }

  void reserve(int rows) {
    for (auto& x : own_) x.reserve(kPrivateRows, widest());
    if (rows > kPrivateRows) shared_.reserve(rows, widest());
    qkv_.resize(std::max(qkv_.size(), (size_t)rows * qkv_width()));
    attention_.resize(std::max(attention_.size(), (size_t)rows * attention_width()));
    middle_.resize(std::max(middle_.size(), (size_t)rows * m_.intermediate));
    mapped_.resize(std::max(mapped_.size(), (size_t)rows * m_.exit.map.n));
    narrow_.resize(std::max(narrow_.size(), (size_t)rows * m_.exit.up.n));
  }

  // What norm and head read: the state itself, or what the exit map makes of it.
  const float* mapped(int t, const float* hidden, int rows) {
    const ExitMap& exit = m_.exit;
    if (!exit.map.n) return hidden;
    const Activations& x = prepare(t, hidden, m_.hidden, rows, exit.map, ones_.data());
    if (exit.up.n) {
      units(t, exit.up, x, rows, [&](int row, int n, const float* out) {
        for (int i = 0; i < kUnit; i += 16) gated(f32x16::load(out + i), f32x16::all(1.0f)).store(narrow_.data() + (size_t)row * exit.up.n + n + i);
      });
    }
    units(t, exit.map, x, rows, [&](int row, int n, const float* out) {
      const float* source = hidden + (size_t)row * m_.hidden;
      const f32x16 inverse = f32x16::all(inverse_rms(source, m_.hidden, m_.eps));
      for (int i = 0; i < kUnit; i += 16) {
        const f32x16 mapped = f32x16::load(out + i) + f32x16::load(exit.map.bias + n + i);
        fma(f32x16::load(source + n + i), inverse, mapped).store(mapped_.data() + (size_t)row * m_.hidden + n + i);
      }
    });
    if (exit.up.n) add_product(t, exit.down, prepare(t, narrow_.data(), exit.up.n, rows, exit.down, nullptr), rows, mapped_.data(), m_.hidden);
    return mapped_.data();
  }

  float total_mass(int row, int rows, float largest) const {
    float total = 0.0f;
    for (int t = 0; t < team_.size(); t++) {
      const Mass& mine = mass_[(size_t)t * rows + row];
      if (mine.sum > 0.0f) total += mine.sum * std::exp(mine.largest - largest);
    }
    return total;
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

  // Runs of rows of one sequence whose queries of a kv head fit one batch, the longest contexts first: threads take tasks as they
  // get free, and what is left for the end should be small.
  void plan_attention(const Rows& rows) {
    const int most = std::max(1, kQueries / (m_.heads / m_.kv_heads));
    runs_.clear();
    for (int row = 0; row < rows.count; row++) {
      const bool joins = row && rows.sequence[row] == rows.sequence[row - 1] && row - runs_.back().first < most;
      if (joins) runs_.back().last = row + 1;
      else runs_.push_back({row, row + 1});
    }
    std::stable_sort(runs_.begin(), runs_.end(), [&](Range a, Range b) { return rows.position[a.last - 1] > rows.position[b.last - 1]; });
    for (auto& next : next_) next.store(0, std::memory_order_relaxed);
  }

  void attention(int t, int index, const Rows& rows, const Cache& cache) {
    const int tasks = (int)runs_.size() * m_.kv_heads;
    for (int task; (task = next_[index].fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      const Range run = runs_[task / m_.kv_heads];
      attend_run(t, index, run, task % m_.kv_heads, rows, cache);
    }
    team_.barrier();
  }

  // All queries of one kv head in a run of rows, sixteen at a time.
  void attend_run(int t, int index, Range run, int kv_head, const Rows& rows, const Cache& cache) {
    const int group = m_.heads / m_.kv_heads, d = m_.head_dim;
    Queries queries;
    queries.layer = index, queries.kv_head = kv_head;
    queries.table = rows.block_table + (size_t)rows.sequence[run.first] * rows.width;
    for (int row = run.first; row < run.last; row++) {
      for (int h = kv_head * group; h < (kv_head + 1) * group; h++) {
        const int i = queries.count++;
        queries.last[i] = queries.longest = rows.position[row];
        queries.q[i] = qkv_.data() + (size_t)row * qkv_width() + h * d;
        queries.out[i] = attention_.data() + (size_t)row * attention_width() + h * d;
        if (queries.count == kQueries || (row + 1 == run.last && h + 1 == (kv_head + 1) * group)) {
          attend(m_, cache, queries, scratch_[t]);
          queries.count = 0;
        }
      }
    }
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
  const std::vector<float> ones_;                // a norm without weights, of an exit head
  std::vector<Best> best_;                       // [threads][rows]
  std::vector<Mass> mass_;                       // [threads][rows]
  std::vector<Scratch> scratch_;                 // one a thread
  std::vector<Range> runs_;                      // of rows that attend together
  std::vector<std::atomic<int>> next_;           // task of each layer's attention to be taken next
  std::vector<float> qkv_, attention_, middle_;  // [rows, width]
  std::vector<float> mapped_, narrow_;           // of an exit head: [rows, width]
};

}  // namespace

Decoder* TANDEM_ISA(const Model& model, Team& team, int max_seq_len) { return new Pass(model, team, max_seq_len); }
