// The threads that replay a step together, and how they share out its work.
//
// The work of an operation is cut into pieces, each a whole output or several. Every thread has a list of its own, which
// it begins at the front; who is done takes from the ends of the others' lists. So a thread has the same part from one
// operation to the next and step by step, in long streams of memory, while all have their cores; and one that loses its
// core delays the others by the piece that it is in, not by its part. Pieces are claimed, so that nobody waits for a
// thread that has none: one that comes late finds the work done and goes on to where the others are.
#pragma once

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace quire {

class Team {
 public:
  explicit Team(int count) : lists_(new List[static_cast<size_t>(count)]) {}

  // Claims a piece of an owner's list of `size`: the first that nobody has, or the last one; -1 if there is none. A list
  // that nobody has touched in this round is whole.
  int64_t claim(int owner, int64_t size, uint32_t round, bool is_mine) {
    std::atomic<uint64_t> &list = lists_[owner].state;
    uint64_t state = list.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t found = state >> ROUND_SHIFT;
      if (found > round) return -1;  // this thread is late
      const uint64_t front = found < round ? 0 : state >> FRONT_SHIFT & MOST;
      const uint64_t end = found < round ? static_cast<uint64_t>(size) : state & MOST;
      if (front >= end) return -1;
      const uint64_t left = is_mine ? (front + 1) << FRONT_SHIFT | end : front << FRONT_SHIFT | (end - 1);
      if (list.compare_exchange_weak(state, static_cast<uint64_t>(round) << ROUND_SHIFT | left, std::memory_order_relaxed))
        return static_cast<int64_t>(is_mine ? front : end - 1);
    }
  }

  bool is_over(uint32_t round) const { return rounds_over_.load(std::memory_order_acquire) >= round; }

  // Counts `done` of the round's `total` pieces as done, and waits until all are.
  void finish(uint32_t round, int64_t done, int64_t total) {
    if (done > 0 && num_done_.fetch_add(done, std::memory_order_acq_rel) + done == total) {
      num_done_.store(0, std::memory_order_relaxed);
      rounds_over_.store(round);
      if (num_asleep_.load() > 0) futex(FUTEX_WAKE_PRIVATE, INT32_MAX);
      return;
    }
    for (int spins = 0; spins < PATIENCE; spins++) {
      if (is_over(round)) return;
      _mm_pause();
    }
    // Somebody has lost its core: this one is free for it now. A thread that only yields seems to need its own.
    num_asleep_.fetch_add(1);
    while (rounds_over_.load() < round) futex(FUTEX_WAIT_PRIVATE, round - 1);
    num_asleep_.fetch_sub(1);
  }

 private:
  static constexpr int PATIENCE = 2000;  // pauses: 50 to 100 us

  // What is left of a list: the round in 24 bits, the first piece that nobody has and the end of them in 20 each.
  static constexpr int FRONT_SHIFT = 20, ROUND_SHIFT = 40;
  static constexpr uint64_t MOST = (1 << FRONT_SHIFT) - 1;
  struct alignas(64) List {
    std::atomic<uint64_t> state{0};
  };

  void futex(int operation, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t *>(&rounds_over_), operation, value, nullptr, nullptr, 0);
  }

  const std::unique_ptr<List[]> lists_;
  alignas(64) std::atomic<int64_t> num_done_{0};
  alignas(64) std::atomic<uint32_t> rounds_over_{0};
  std::atomic<int> num_asleep_{0};
};

// A thread's place in the team that replays a step.
class Worker {
 public:
  const int index, count;

  Worker(int index, int count, Team &team, uint32_t &round) : index(index), count(count), team_(team), round_(round) {}

  // A thread's part of `n` equal units: [begin, end).
  int64_t begin(int64_t n, int owner) const { return n * owner / count; }
  int64_t end(int64_t n, int owner) const { return n * (owner + 1) / count; }

  // Calls `body(owner, piece)` for pieces of all owners' lists, which have `length(owner)` pieces; together the threads
  // take each piece once. Returns when all are done.
  template <class Length, class Body> void each_piece(Length length, Body body) const {
    int64_t total = 0, done = 0;
    for (int owner = 0; owner < count; owner++) total += length(owner);
    if (total == 0) return;
    const uint32_t round = ++round_;
    if (count > 1 && team_.is_over(round)) return;
    for (int i = 0; i < count; i++) {
      const int owner = (index + i) % count;
      const int64_t size = length(owner);
      for (int64_t piece; (piece = team_.claim(owner, size, round, i == 0)) >= 0; done++) body(owner, piece);
    }
    team_.finish(round, done, total);
  }

  // Calls `body(begin, end)` for stretches of `n` units, of about `grain` units or more.
  template <class Body> void each(int64_t n, int64_t grain, Body body) const {
    const int64_t size = std::max(grain, n / (count * MOST_STRETCHES));
    const auto length = [&](int owner) { return (end(n, owner) - begin(n, owner) + size - 1) / size; };
    each_piece(length, [&](int owner, int64_t piece) {
      const int64_t first = begin(n, owner) + piece * size;
      body(first, std::min(first + size, end(n, owner)));
    });
  }

 private:
  static constexpr int64_t MOST_STRETCHES = 64;  // of a list: enough to share out what one thread leaves

  Team &team_;
  uint32_t &round_;  // how many this thread has been in
};

}  // namespace quire
