// A fixed team of threads that run one function together and meet at barriers. Waiting spins first (a barrier costs well under a
// microsecond, a decode pass has some two hundred), then yields, then sleeps, so that an idle engine costs nothing.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

class Team {
 public:
  // The process's one team of this size and cores. Target and draft share it: a second team would spin against the first.
  static std::shared_ptr<Team> of_size(int size, const std::vector<int>& cpus);

  Team(int size, const std::vector<int>& cpus);  // thread i is tied to cpus[i mod count]; none: the system places them
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  void run(const std::function<void(int)>& work);  // work(thread index) on every thread; returns when all are done
  void barrier();                                  // called by every thread from within work

 private:
  void worker(int index);

  const int size_;
  const std::vector<int> cpus_;
  std::mutex running_;  // one run at a time
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> phase_{0};       // barriers passed; only equality counts, so it may wrap
  std::atomic<unsigned> generation_{0};  // runs started
  std::atomic<bool> ended_{false};
  const std::function<void(int)>* work_ = nullptr;
  std::vector<std::thread> threads_;
};
