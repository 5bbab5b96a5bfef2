// One persistent pool of threads; the calling thread is one of them.
//
// A job is `count` items, claimed one by one in order by whoever is free. The caller waits until every item is
// done, never for a worker to wake: with fewer free cores than threads, or in a forked child where the workers do
// not exist, it simply does more of the items itself. Items must not depend on each other, so that results do not
// depend on who ran what.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace kvw {

class ThreadPool {
 public:
  // `threads` counts the caller; at least 1. Throws RefusedError when the system has no more.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(item, thread) for every item in [0, count); thread is in [0, threads()), the caller's is 0.
  // Not reentrant. The task must not throw.
  template <class Task>
  void run(int64_t count, Task&& task) {
    run_job(count, &call<std::remove_reference_t<Task>>, const_cast<void*>(static_cast<const void*>(&task)));
  }

  // The same in two halves: after start() the workers are at it while the caller does other things; finish() helps,
  // then waits. The task must live until then. between() is called after each item that the caller did; no throwing.
  template <class Task>
  void start(int64_t count, Task& task) {
    open_job(count, &call<Task>, &task);
  }
  template <class Between>
  void finish(Between&& between) {
    if (forked()) return;  // items that lost threads had claimed will never be done
    const uint32_t epoch = current_epoch();
    while (claim_item(epoch, 0)) between();
    wait_until_done();
  }

 private:
  using Function = void (*)(void* context, int64_t item, int thread);

  template <class Task>
  static void call(void* context, int64_t item, int thread) {
    (*static_cast<Task*>(context))(item, thread);
  }

  void run_job(int64_t count, Function function, void* context);
  void open_job(int64_t count, Function function, void* context);
  void wait_until_done();
  uint32_t current_epoch() const;
  void work(int thread);
  void stop();
  bool forked() const;
  bool claim_item(uint32_t epoch, int thread);
  bool wait_for_job(uint32_t seen);

  // The epoch in the upper half and the next unclaimed item in the lower: a worker that wakes late can't take an
  // item of a newer job for one of its own.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  // Written only while no item is unclaimed or running; read by workers before they claim.
  alignas(64) std::atomic<int64_t> count_{0};
  std::atomic<Function> function_{nullptr};
  std::atomic<void*> context_{nullptr};

  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  struct Sleep {
    std::mutex mutex;
    std::condition_variable wake;
  };
  std::unique_ptr<Sleep> sleep_;
  std::vector<std::thread> workers_;
  int forks_at_start_ = 0;
};

}  // namespace kvw
