#include "team.h"

#include <map>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif

#if defined(__x86_64__)
#include <immintrin.h>
static inline void relax() { _mm_pause(); }
#else
static inline void relax() { std::this_thread::yield(); }
#endif

namespace {
// Spins about 100 us before it yields (a draft step follows another within that time), yields about 1 ms before it sleeps.
constexpr int kSpins = 2000, kYields = 1000;

void wait_while(const std::atomic<unsigned>& value, unsigned old, bool may_sleep) {
  for (int i = 0; i < kSpins; i++) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  for (int i = 0; !may_sleep || i < kYields; i++) {
    if (value.load(std::memory_order_acquire) != old) return;
    std::this_thread::yield();
  }
  value.wait(old, std::memory_order_acquire);
}
}  // namespace

namespace {
// Ties this thread to a core while it lives. The thread that calls run() is not the team's own: what it starts later must not inherit it.
class Tied {
 public:
  Tied(const std::vector<int>& cpus, int index) {
#if defined(__linux__)
    if (cpus.empty() || sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpus[index % cpus.size()], &one);
    tied_ = sched_setaffinity(0, sizeof(one), &one) == 0;  // refused where a container shrank meanwhile: slower, not wrong
#else
    (void)cpus, (void)index;
#endif
  }
  ~Tied() {
#if defined(__linux__)
    if (tied_) sched_setaffinity(0, sizeof(before_), &before_);
#endif
  }
  Tied(const Tied&) = delete;
  Tied& operator=(const Tied&) = delete;

 private:
#if defined(__linux__)
  cpu_set_t before_;
  bool tied_ = false;
#endif
};
}  // namespace

std::shared_ptr<Team> Team::of_size(int size, const std::vector<int>& cpus) {
  static std::mutex guard;
  static std::map<std::pair<int, std::vector<int>>, std::weak_ptr<Team>> teams;
  const std::lock_guard lock(guard);
  auto& place = teams[{size, cpus}];
  auto team = place.lock();
  if (!team) place = team = std::make_shared<Team>(size, cpus);
  return team;
}

Team::Team(int size, const std::vector<int>& cpus) : size_(size), cpus_(cpus) {
  for (int i = 1; i < size; i++) threads_.emplace_back([this, i] { worker(i); });
}

Team::~Team() {
  ended_.store(true, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
  const std::lock_guard lock(running_);
  const Tied tied(cpus_, 0);
  if (size_ > 1) {
    work_ = &work;
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
  }
  work(0);
  barrier();
}

void Team::barrier() {
  if (size_ == 1) return;
  const unsigned phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
  } else {
    wait_while(phase_, phase, false);
  }
}

void Team::worker(int index) {
  const Tied tied(cpus_, index);
  for (unsigned seen = 0;;) {
    wait_while(generation_, seen, true);
    seen = generation_.load(std::memory_order_acquire);
    if (ended_.load(std::memory_order_acquire)) return;
    (*work_)(index);
    barrier();
  }
}
