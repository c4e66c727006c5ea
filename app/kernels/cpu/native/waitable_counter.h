// A counter that threads wait for: they spin for a while, then sleep.
//
// A sleeping thread leaves its core to the thread that it waits for. One that spins for ever, or only yields, looks
// busy to the system: a thread that shares another core with a busy program would not be moved to this one.
#pragma once

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace quire {

class WaitableCounter {
 public:
  // A thread that changes it calls `wake`. After a plain store, `wake` may read the number of sleepers before the store
  // is visible, and a fence would take 0.1 us: those that wait pass a `nap`, after which they look again.
  std::atomic<uint32_t> value{0};

  // Returns when `is_reached(value)`; spins for about `patience`, then sleeps, for `nap` at a time if it is not null.
  template <class IsReached>
  void wait(IsReached is_reached, std::chrono::microseconds patience, const timespec *nap = nullptr) {
    if (is_reached(value.load(std::memory_order_acquire))) return;
    const auto end = std::chrono::steady_clock::now() + patience;
    for (int spins = 1; spins % LOOK != 0 || std::chrono::steady_clock::now() < end; spins++) {
      _mm_pause();
      if (is_reached(value.load(std::memory_order_acquire))) return;
    }
    num_asleep_.fetch_add(1);
    for (uint32_t seen; !is_reached(seen = value.load());) call(FUTEX_WAIT_PRIVATE, seen, nap);
    num_asleep_.fetch_sub(1);
  }

  void wake() {
    if (num_asleep_.load() > 0) call(FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr);
  }

 private:
  static constexpr int LOOK = 64;  // spins between two looks at the clock

  void call(int operation, uint32_t argument, const timespec *timeout) {
    syscall(SYS_futex, reinterpret_cast<uint32_t *>(&value), operation, argument, timeout, nullptr, 0);
  }

  std::atomic<int> num_asleep_{0};
};

}  // namespace quire
