#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <string>
#include <system_error>

#include "memory.h"

namespace kvw {
namespace {

using Clock = std::chrono::steady_clock;

// A decode step opens a new job every few microseconds; between steps Python takes longer than this.
constexpr auto kSpin = std::chrono::microseconds(60);
constexpr int kPausesPerLook = 32;
constexpr uint64_t kClosed = 0xffffffffu;  // no job has so many items

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How often this process and its ancestors forked: a pool made under another count has no threads here.
std::atomic<int> forks{0};

void count_forks_from_now_on() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); }); });
}

uint32_t epoch_of(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 32); }
int64_t item_of(uint64_t ticket) { return static_cast<int64_t>(ticket & 0xffffffffu); }

}  // namespace

ThreadPool::ThreadPool(int threads) : sleep_(std::make_unique<Sleep>()) {
  count_forks_from_now_on();
  forks_at_start_ = forks.load();
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    stop();  // those that started must end before the members do
    throw RefusedError("can't start " + std::to_string(threads) + " threads: " + error.what());
  }
}

ThreadPool::~ThreadPool() {
  if (!forked()) {
    stop();
    return;
  }
  // Nothing to join; and destroying what the lost threads slept on would wait for them.
  for (auto& worker : workers_) worker.detach();
  static_cast<void>(sleep_.release());
}

bool ThreadPool::forked() const { return forks.load(std::memory_order_relaxed) != forks_at_start_; }

void ThreadPool::stop() {
  {
    std::lock_guard lock(sleep_->mutex);
    stop_.store(true);
  }
  sleep_->wake.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run_job(int64_t count, Function function, void* context) {
  if (count <= 0) return;
  if (workers_.empty() || count == 1 || forked()) {
    for (int64_t item = 0; item < count; ++item) function(context, item, 0);
    return;
  }
  open_job(count, function, context);
  const uint32_t epoch = current_epoch();
  while (claim_item(epoch, 0)) {
  }
  wait_until_done();
}

void ThreadPool::open_job(int64_t count, Function function, void* context) {
  // Close the last job before its description changes: its exhausted ticket must not look claimable under a new count.
  const uint32_t epoch = current_epoch() + 1;
  ticket_.store((uint64_t{epoch - 1} << 32) | kClosed, std::memory_order_seq_cst);
  done_.store(0, std::memory_order_relaxed);
  // Release: a late worker that reads any of these also sees that its own job is closed.
  count_.store(count, std::memory_order_release);
  function_.store(function, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  ticket_.store(uint64_t{epoch} << 32, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    { std::lock_guard lock(sleep_->mutex); }  // a worker between its last look and its sleep has the lock
    sleep_->wake.notify_all();
  }
}

// Does one unclaimed item of the job; false when there is none.
bool ThreadPool::claim_item(uint32_t epoch, int thread) {
  const int64_t count = count_.load(std::memory_order_acquire);
  const Function function = function_.load(std::memory_order_acquire);
  void* const context = context_.load(std::memory_order_acquire);
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (epoch_of(ticket) == epoch && item_of(ticket) < count) {
    // Success means that this job still had an unclaimed item, so what was read above belongs to it.
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    function(context, item_of(ticket), thread);
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }
  return false;
}

void ThreadPool::wait_until_done() {
  const int64_t count = count_.load(std::memory_order_relaxed);
  for (int looks = 0; done_.load(std::memory_order_acquire) < count; ++looks) {
    if (looks < 2000) {
      pause();
    } else {
      sched_yield();  // a worker with an item may need this core
    }
  }
}

uint32_t ThreadPool::current_epoch() const { return epoch_of(ticket_.load(std::memory_order_relaxed)); }

bool ThreadPool::wait_for_job(uint32_t seen) {
  const auto spin_until = Clock::now() + kSpin;
  auto is_new = [&] { return epoch_of(ticket_.load(std::memory_order_seq_cst)) != seen; };
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (epoch_of(ticket_.load(std::memory_order_acquire)) != seen) return true;
      pause();
    }
    if (stop_.load(std::memory_order_relaxed)) return false;
  } while (Clock::now() < spin_until);
  std::unique_lock lock(sleep_->mutex);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  sleep_->wake.wait(lock, [&] { return is_new() || stop_.load(); });
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  return !stop_.load();
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  while (wait_for_job(seen)) {
    const uint32_t epoch = epoch_of(ticket_.load(std::memory_order_acquire));
    seen = epoch;
    while (claim_item(epoch, thread)) {
    }
  }
}

}  // namespace kvw
