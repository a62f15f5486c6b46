// The torch class `tandem.Decoder`: owns the tensors, checks them, picks the instruction set, and runs passes on its own thread team.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>

#include "decoder.h"

#include <sys/mman.h>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
// The kernel hands out AMX tile data only on request (arch_prctl ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
static bool amx_permitted() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }
#else
static bool amx_permitted() { return false; }
#endif

namespace {

using Tensors = c10::Dict<std::string, at::Tensor>;
using Sizes = c10::Dict<std::string, int64_t>;

std::vector<std::string> supported() {
  std::vector<std::string> names;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
  unsigned a = 7, b = 0, c = 0, d = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  const bool amx_bf16 = d >> 22 & 1, amx_tile = d >> 24 & 1;
  if (avx512 && amx_bf16 && amx_tile && amx_permitted()) names.push_back("amx");
  if (avx512) names.push_back("avx512");
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) names.push_back("avx2");
#endif
  names.push_back("generic");
  return names;
}

// Zeroed bytes on 2 MiB pages where the kernel grants them. A decode pass touches every weight once: with 4 KiB pages the address
// translation of a virtual machine costs as much as the read itself (measured on 2 cores of a Sapphire Rapids: 19 ms against 9 ms).
at::Tensor huge_pages(int64_t bytes) {
  constexpr int64_t kPage = 2 << 20;
  const int64_t whole = (bytes + kPage - 1) / kPage * kPage + kPage;  // one page more, so that the start can be aligned
  void* base = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(base != MAP_FAILED, "no memory for ", bytes, " bytes");
  char* start = (char*)(((uintptr_t)base + kPage - 1) / kPage * kPage);
#ifdef MADV_HUGEPAGE
  madvise(start, whole - kPage, MADV_HUGEPAGE);  // refused where huge pages are off: slower, not wrong
#endif
  return at::from_blob(start, {bytes}, [base, whole](void*) { munmap(base, whole); }, at::TensorOptions(at::kByte));
}

class TorchDecoder : public torch::CustomClassHolder {
 public:
  TorchDecoder(Sizes sizes, double eps, Tensors tensors, std::string instruction_set, int64_t threads, std::vector<int64_t> cpus)
      : tensors_(std::move(tensors)), sizes_(std::move(sizes)), team_(Team::of_size((int)threads, std::vector<int>(cpus.begin(), cpus.end()))) {
    model_.hidden = size("hidden_size");
    model_.intermediate = size("intermediate_size");
    model_.heads = size("num_heads");
    model_.kv_heads = size("num_kv_heads");
    model_.head_dim = size("head_dim");
    model_.eps = (float)eps;
    model_.cosine = floats("rope.cosine");
    model_.sine = floats("rope.sine");
    for (int i = 0; i < size("num_layers"); i++) model_.layers.push_back(layer("layers." + std::to_string(i) + "."));
    if (tensors_.contains("map.weight")) {
      model_.exit.map = matrix("map", model_.hidden);
      TORCH_CHECK(model_.exit.map.n == model_.hidden && model_.exit.map.bias, "an exit head's map must be square, with a bias");
    }
    if (tensors_.contains("up.weight")) {
      model_.exit.up = matrix("up", model_.hidden);
      model_.exit.down = matrix("down", model_.exit.up.n);
      TORCH_CHECK(model_.exit.map.n && model_.exit.down.n == model_.hidden, "an exit head's MLP must lie beside its map and lead back to its width");
    }
    model_.final_norm = floats("norm");
    model_.head = matrix("head", model_.hidden);
    if (tensors_.contains("vocabulary")) {
      vocabulary_ = tensor("vocabulary");
      TORCH_CHECK(vocabulary_.scalar_type() == at::kInt && vocabulary_.dim() == 1 && vocabulary_.numel() <= model_.head.n, "vocabulary must be int32, one id a row of the head");
    }
    decoder_.reset(make(instruction_set));
  }

  void set_cache(at::Tensor key, at::Tensor value) {
    TORCH_CHECK(key.is_contiguous() && value.is_contiguous() && key.scalar_type() == value.scalar_type(), "key and value caches must be contiguous and of one type");
    TORCH_CHECK(value.dim() == 5 && value.size(0) >= (int64_t)model_.layers.size() && value.size(2) == model_.kv_heads && value.size(4) == model_.head_dim,
                "value cache must be [layers, blocks, kv_heads, block_size, head_dim]");
    key_ = key;
    value_ = value;
    cache_.kind = value.scalar_type() == at::kFloat ? Kind::f32 : Kind::bf16;
    cache_.key = key.data_ptr();
    cache_.value = value.data_ptr();
    cache_.blocks = (int)value.size(1);
    cache_.block_size = (int)value.size(3);
  }

  void set_embedding(at::Tensor embedding) {
    TORCH_CHECK(embedding.is_contiguous() && embedding.dim() == 2 && embedding.size(1) == model_.hidden && (embedding.scalar_type() == at::kFloat || embedding.scalar_type() == at::kBFloat16),
                "embedding must be contiguous float32 or bfloat16 [vocabulary, hidden_size]");
    embedding_ = embedding;
  }

  void layers(const at::Tensor& hidden, const at::Tensor& position, const at::Tensor& sequence, const at::Tensor& block_table, int64_t start, int64_t stop) {
    TORCH_CHECK(cache_.key, "no cache: call set_cache first");
    check_hidden(hidden);
    TORCH_CHECK(0 <= start && start <= stop && stop <= (int64_t)model_.layers.size(), "layer range ", start, "..", stop, " is outside the model");
    const Rows rows{(int)hidden.size(0), ints(position, hidden.size(0)), ints(sequence, hidden.size(0)), ints(block_table, block_table.numel()), (int)block_table.size(1)};
    check_rows(rows, (int)block_table.size(0));
    decoder_->layers(hidden.data_ptr<float>(), rows, cache_, (int)start, (int)stop);
  }

  at::Tensor head(const at::Tensor& hidden) {
    check_hidden(hidden);
    at::Tensor logits = at::empty({hidden.size(0), model_.head.n}, hidden.options());
    decoder_->head(hidden.data_ptr<float>(), (int)hidden.size(0), logits.data_ptr<float>());
    return logits;
  }

  // With `confidence` also the probability of each token.
  std::vector<at::Tensor> judge(const at::Tensor& hidden, int64_t vocabulary) {
    check_hidden(hidden);
    TORCH_CHECK(0 < vocabulary && vocabulary <= model_.head.n, "the head has ", model_.head.n, " outputs, not ", vocabulary);
    at::Tensor tokens = at::empty({hidden.size(0)}, hidden.options().dtype(at::kInt)), confidence = at::empty({hidden.size(0)}, hidden.options());
    decoder_->greedy(hidden.data_ptr<float>(), (int)hidden.size(0), (int)vocabulary, tokens.data_ptr<int32_t>(), confidence.data_ptr<float>());
    return {tokens, confidence};
  }

  at::Tensor greedy(const at::Tensor& hidden, int64_t vocabulary) {
    check_hidden(hidden);
    TORCH_CHECK(0 < vocabulary && vocabulary <= model_.head.n, "the head has ", model_.head.n, " outputs, not ", vocabulary);
    at::Tensor tokens = at::empty({hidden.size(0)}, hidden.options().dtype(at::kInt));
    decoder_->greedy(hidden.data_ptr<float>(), (int)hidden.size(0), (int)vocabulary, tokens.data_ptr<int32_t>());
    return tokens;
  }

  // Greedy continuations of rows that belong to different sequences, up to length[row] tokens each: int32 [rows, longest] (-1 beyond a
  // row's end) and their probabilities, float32 [rows, longest]. One call for a whole draft: between two passes nothing leaves this
  // function, where the way through Python and torch costs 0.6 ms a step on code that the last pass has driven out of the caches.
  // chances [bins], if not empty: how often a token of this probability is kept. A row ends with the token that takes the product of
  // its chances below `least`. Without, probabilities are not computed.
  std::vector<at::Tensor> continue_greedily(const at::Tensor& token, const at::Tensor& position, const at::Tensor& sequence, const at::Tensor& block_table,
                                            const at::Tensor& length, const at::Tensor& chances, double least) {
    const int rows = (int)token.numel(), scored = (int)(vocabulary_.defined() ? vocabulary_.numel() : embedding_.size(0));
    const int32_t* ids = vocabulary_.defined() ? vocabulary_.data_ptr<int32_t>() : nullptr;
    const int32_t* lengths = ints(length, rows);
    const int longest = rows ? *std::max_element(lengths, lengths + rows) : 0, bins = (int)chances.numel();
    TORCH_CHECK(chances.is_contiguous() && chances.scalar_type() == at::kFloat, "chances must be contiguous float32 [bins]");
    at::Tensor drafted = at::full({rows, longest}, -1, token.options());
    at::Tensor confidence = at::zeros({bins ? rows : 0, longest}, chances.options());
    std::vector<int32_t> last(ints(token, rows), ints(token, rows) + rows), at(ints(position, rows), ints(position, rows) + rows);
    std::vector<int32_t> left(lengths, lengths + rows);  // tokens still wanted
    std::vector<float> hope(rows, 1.0f);                 // chance that all of a row's tokens are kept
    for (int step = 0; step < longest; step++) {
      std::vector<int32_t> row, positions, sequences;
      for (int r = 0; r < rows; r++) {
        if (left[r] <= 0) continue;
        left[r]--;
        row.push_back(r);
        positions.push_back(at[r]++);
        sequences.push_back(ints(sequence, rows)[r]);
      }
      const int count = (int)row.size();
      if (!count) break;
      const Rows batch{count, positions.data(), sequences.data(), ints(block_table, block_table.numel()), (int)block_table.size(1)};
      check_rows(batch, (int)block_table.size(0));
      hidden_.resize((size_t)count * model_.hidden);
      for (int i = 0; i < count; i++) embed(last[row[i]], hidden_.data() + (size_t)i * model_.hidden);
      decoder_->layers(hidden_.data(), batch, cache_, 0, (int)model_.layers.size());
      best_.resize(count);
      confidence_.resize(count);
      decoder_->greedy(hidden_.data(), count, scored, best_.data(), bins ? confidence_.data() : nullptr);
      for (int i = 0; i < count; i++) {
        const int r = row[i];
        last[r] = drafted.data_ptr<int32_t>()[(size_t)r * longest + step] = ids ? ids[best_[i]] : best_[i];
        if (!bins) continue;
        confidence.data_ptr<float>()[(size_t)r * longest + step] = confidence_[i];
        hope[r] *= chances.data_ptr<float>()[std::clamp((int)(confidence_[i] * bins), 0, bins - 1)];
        if (!(hope[r] >= least)) left[r] = 0;
      }
    }
    return {drafted, confidence};
  }

  // Runs layers start.. in place on hidden, through the exits after layers stops[i] (ascending), and stops at the first whose head is
  // sure enough (thresholds[i]) of one of the `asked` rows, else before layer `stop`: one call where no row leaves. Returns the exit it
  // stopped at (`stop`: the number of exits), and of the asked rows there the token (-1: none) and its probability.
  std::tuple<int64_t, at::Tensor, at::Tensor> to_exit(const at::Tensor& hidden, const at::Tensor& position, const at::Tensor& sequence, const at::Tensor& block_table,
                                                      int64_t start, int64_t stop, const at::Tensor& asked, const std::vector<int64_t>& stops,
                                                      const c10::List<c10::intrusive_ptr<TorchDecoder>>& heads, const std::vector<double>& thresholds) {
    TORCH_CHECK(stops.size() == heads.size() && stops.size() == thresholds.size(), "every exit needs a layer, a head and a threshold");
    const int count = (int)asked.numel(), width = model_.hidden;
    const int32_t* rows = ints(asked, count);
    for (int i = 0; i < count; i++) TORCH_CHECK(rows[i] >= 0 && rows[i] < hidden.size(0), "row ", rows[i], " is outside the pass");
    at::Tensor tokens = at::empty({count}, asked.options()), confidence = at::empty({count}, hidden.options());
    for (size_t place = 0; place < stops.size(); place++) {
      layers(hidden, position, sequence, block_table, start, stops[place]);
      start = stops[place];
      if (!count) continue;
      const c10::intrusive_ptr<TorchDecoder> head = heads.get(place);
      TORCH_CHECK(head->model_.hidden == width && head->vocabulary_.defined(), "no exit head of this model");
      hidden_.resize((size_t)count * width);
      for (int i = 0; i < count; i++) std::copy_n(hidden.data_ptr<float>() + (size_t)rows[i] * width, width, hidden_.data() + (size_t)i * width);
      const int known = (int)head->vocabulary_.numel();
      int32_t* token = tokens.data_ptr<int32_t>();
      float* sure = confidence.data_ptr<float>();
      head->decoder_->greedy(hidden_.data(), count, known + 1, token, sure);
      bool leaves = false;
      for (int i = 0; i < count; i++) {
        const bool knows = token[i] < known;
        token[i] = knows ? head->vocabulary_.data_ptr<int32_t>()[token[i]] : -1;
        if (!knows) sure[i] = 0.0f;
        leaves |= knows && sure[i] >= thresholds[place];
      }
      if (leaves) return {(int64_t)place, tokens, confidence};
    }
    layers(hidden, position, sequence, block_table, start, stop);
    return {(int64_t)stops.size(), tokens, confidence};
  }

  // Drafts by the first `stop` layers and an exit head: up to length[row] tokens after each row, int32 [rows, longest], -1 from where the
  // head names no token or is less sure than `threshold`. states [longest + 1, rows, hidden]: [i, row] is what the layers made of the
  // row's token (i = 0) and of its i-th drafted one; they were run as far for each, and the layers above go on from there.
  std::vector<at::Tensor> draft_to_exit(const at::Tensor& token, const at::Tensor& position, const at::Tensor& sequence, const at::Tensor& block_table,
                                        const at::Tensor& length, const c10::intrusive_ptr<TorchDecoder>& head, int64_t stop, double threshold) {
    TORCH_CHECK(cache_.key, "no cache: call set_cache first");
    TORCH_CHECK(0 < stop && stop <= (int64_t)model_.layers.size() && head->model_.hidden == model_.hidden && head->vocabulary_.defined(), "no exit head of this model");
    const int rows = (int)token.numel(), known = (int)head->vocabulary_.numel(), width = model_.hidden;
    const int32_t *ids = head->vocabulary_.data_ptr<int32_t>(), *lengths = ints(length, rows), *owners = ints(sequence, rows);
    const int longest = rows ? *std::max_element(lengths, lengths + rows) : 0;
    at::Tensor drafted = at::full({rows, longest}, -1, token.options());
    at::Tensor states = at::empty({longest + 1, rows, width}, at::kFloat);
    std::vector<int32_t> last(ints(token, rows), ints(token, rows) + rows), at(ints(position, rows), ints(position, rows) + rows), active(rows);
    std::iota(active.begin(), active.end(), 0);
    for (int step = 0; !active.empty(); step++) {
      std::vector<int32_t> positions, sequences, asked;
      hidden_.resize(active.size() * width);
      for (size_t i = 0; i < active.size(); i++) {
        const int row = active[i];
        positions.push_back(at[row]++), sequences.push_back(owners[row]);
        embed(last[row], hidden_.data() + i * width);
      }
      const Rows batch{(int)active.size(), positions.data(), sequences.data(), ints(block_table, block_table.numel()), (int)block_table.size(1)};
      check_rows(batch, (int)block_table.size(0));
      decoder_->layers(hidden_.data(), batch, cache_, 0, (int)stop);
      for (size_t i = 0; i < active.size(); i++) {
        std::copy_n(hidden_.data() + i * width, width, states.data_ptr<float>() + ((size_t)step * rows + active[i]) * width);
        if (step >= lengths[active[i]]) continue;
        if (asked.size() < i) std::copy_n(hidden_.data() + i * width, width, hidden_.data() + asked.size() * width);
        asked.push_back(active[i]);
      }
      active.clear();
      if (asked.empty()) break;
      best_.resize(asked.size()), confidence_.resize(asked.size());
      head->decoder_->greedy(hidden_.data(), (int)asked.size(), known + 1, best_.data(), confidence_.data());
      for (size_t i = 0; i < asked.size(); i++) {
        if (best_[i] >= known || !(confidence_[i] >= threshold)) continue;
        last[asked[i]] = drafted.data_ptr<int32_t>()[(size_t)asked[i] * longest + step] = ids[best_[i]];
        active.push_back(asked[i]);
      }
    }
    return {drafted, states};
  }

  void products(int64_t rows) { decoder_->products((int)rows); }

  std::string instruction_set() const { return chosen_; }

 private:
  void check_hidden(const at::Tensor& hidden) const {
    TORCH_CHECK(hidden.is_contiguous() && hidden.scalar_type() == at::kFloat && hidden.dim() == 2 && hidden.size(1) == model_.hidden,
                "hidden must be float32 [rows, hidden_size]");
  }
  int size(const std::string& name) const { return (int)sizes_.at(name); }

  at::Tensor tensor(const std::string& name) const {
    TORCH_CHECK(tensors_.contains(name), "engine lacks tensor ", name);
    const auto found = tensors_.find(name);
    held_.push_back(found->value());
    TORCH_CHECK(held_.back().is_contiguous(), name, " must be contiguous");
    return held_.back();
  }
  const float* floats(const std::string& name) const {
    const at::Tensor t = tensor(name);
    TORCH_CHECK(t.scalar_type() == at::kFloat, name, " must be float32");
    return t.data_ptr<float>();
  }
  const float* floats_or_null(const std::string& name) const { return tensors_.contains(name) ? floats(name) : nullptr; }
  static const int32_t* ints(const at::Tensor& t, int64_t count) {
    TORCH_CHECK(t.is_contiguous() && t.scalar_type() == at::kInt && t.numel() == count, "row indices must be contiguous int32 [rows]");
    return t.data_ptr<int32_t>();
  }

  Matrix matrix(const std::string& name, int k) const {
    const at::Tensor w = tensor(name + ".weight");
    Matrix m;
    m.k = k;
    m.weight = w.data_ptr();
    if (w.scalar_type() == at::kByte) {
      m.kind = Kind::int4;
      m.n = (int)(w.numel() * 2 / k);
      const at::Tensor scale = tensor(name + ".scale");
      m.scale = (const uint16_t*)scale.data_ptr();
      m.group = (int)((int64_t)m.n * k / scale.numel());
      if (tensors_.contains(name + ".minimum")) m.minimum = (const uint16_t*)tensor(name + ".minimum").data_ptr();
    } else {
      TORCH_CHECK(w.scalar_type() == at::kFloat || w.scalar_type() == at::kBFloat16, name, " must be float32, bfloat16 or packed int4 (uint8)");
      m.kind = w.scalar_type() == at::kFloat ? Kind::f32 : Kind::bf16;
      m.n = (int)(w.numel() / k);
    }
    TORCH_CHECK(m.n % 32 == 0 && k % 32 == 0, name, ": packed sizes must be multiples of 32, got ", m.n, " x ", k);
    m.bias = floats_or_null(name + ".bias");
    return m;
  }

  Layer layer(const std::string& prefix) const {
    Layer l;
    l.attention_norm = floats(prefix + "attention_norm");
    l.mlp_norm = floats(prefix + "mlp_norm");
    l.query_norm = floats_or_null(prefix + "query_norm");
    l.key_norm = floats_or_null(prefix + "key_norm");
    l.qkv = matrix(prefix + "qkv", model_.hidden);
    l.output = matrix(prefix + "output", model_.heads * model_.head_dim);
    l.gate_up = matrix(prefix + "gate_up", model_.hidden);
    l.down = matrix(prefix + "down", model_.intermediate);
    return l;
  }

  Decoder* make(const std::string& wanted) {
    const auto names = supported();
    chosen_ = wanted == "auto" ? names.front() : wanted;
    TORCH_CHECK(std::find(names.begin(), names.end(), chosen_) != names.end(), "this processor has no ", chosen_);
    const int context = (int)tensors_.at("rope.cosine").size(0);
#if defined(__x86_64__)
    if (chosen_ == "amx") return make_decoder_amx(model_, *team_, context);
    if (chosen_ == "avx512") return make_decoder_avx512(model_, *team_, context);
    if (chosen_ == "avx2") return make_decoder_avx2(model_, *team_, context);
#endif
    return make_decoder_generic(model_, *team_, context);
  }

  void embed(int token, float* hidden) const {
    TORCH_CHECK(token >= 0 && token < embedding_.size(0), "token ", token, " is outside the vocabulary");
    const int64_t start = (int64_t)token * model_.hidden;
    if (embedding_.scalar_type() == at::kFloat) {
      std::copy_n(embedding_.data_ptr<float>() + start, model_.hidden, hidden);
    } else {
      std::copy_n(embedding_.data_ptr<at::BFloat16>() + start, model_.hidden, hidden);
    }
  }

  // A wrong index would read or write another sequence's cache: refuse it before the pass.
  void check_rows(const Rows& rows, int sequences) const {
    const int context = (int)tensors_.at("rope.cosine").size(0);
    for (int r = 0; r < rows.count; r++) {
      const int position = rows.position[r], sequence = rows.sequence[r];
      TORCH_CHECK(position >= 0 && position < context, "position ", position, " is outside the context of ", context);
      TORCH_CHECK(sequence >= 0 && sequence < sequences, "sequence ", sequence, " is outside the block table");
      const int place = position / cache_.block_size;
      TORCH_CHECK(place < rows.width, "position ", position, " is beyond the block table");
      const bool last_of_sequence = r + 1 == rows.count || rows.sequence[r + 1] != sequence;
      for (int i = last_of_sequence ? 0 : place; i <= place; i++) {
        const int block = rows.block_table[(size_t)sequence * rows.width + i];
        TORCH_CHECK(block >= 0 && block < cache_.blocks, "block ", block, " is outside the cache");
      }
    }
  }

  Tensors tensors_;
  Sizes sizes_;
  mutable std::vector<at::Tensor> held_;  // keeps the storage behind the raw pointers alive
  std::shared_ptr<Team> team_;
  Model model_;
  Cache cache_;
  at::Tensor key_, value_, embedding_;
  at::Tensor vocabulary_;  // token of each row of the head, when it does not score all
  std::vector<float> hidden_, confidence_;
  std::vector<int32_t> best_;
  std::string chosen_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace

TORCH_LIBRARY(tandem, m) {
  m.def("huge_pages(int bytes) -> Tensor", huge_pages);
  m.def("instruction_sets() -> str[]", [] { return supported(); });
  m.class_<TorchDecoder>("Decoder")
      .def(torch::init<Sizes, double, Tensors, std::string, int64_t, std::vector<int64_t>>())
      .def("set_cache", &TorchDecoder::set_cache)
      .def("set_embedding", &TorchDecoder::set_embedding)
      .def("layers", &TorchDecoder::layers)
      .def("continue_greedily", &TorchDecoder::continue_greedily)
      .def("head", &TorchDecoder::head)
      .def("greedy", &TorchDecoder::greedy)
      .def("judge", &TorchDecoder::judge)
      .def("to_exit", &TorchDecoder::to_exit)
      .def("draft_to_exit", &TorchDecoder::draft_to_exit)
      .def("products", &TorchDecoder::products)
      .def("instruction_set", &TorchDecoder::instruction_set);
}
