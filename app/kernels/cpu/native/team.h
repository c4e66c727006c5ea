// The team of threads that replay a step together, with work stealing.
//
// The work of an operation is cut into pieces of one or several outputs. Every thread has a list of pieces, which it
// processes from the front; a thread whose list is empty steals from the ends of the others' lists. While all threads
// have a core, each has the same part in every operation and step, and reads long streams of memory. A thread that
// loses its core delays the others by one piece, not by its whole part. Pieces are claimed, so that no thread waits for
// one that has claimed none: a late thread finds the work done and continues with the next operation.
#pragma once

#include <algorithm>
#include <memory>

#include "waitable_counter.h"

namespace quire {

class Team {
 public:
  explicit Team(int count) : lists_(new List[static_cast<size_t>(count)]) {}

  // Claims a piece of an owner's list of `size`: the owner the first unclaimed one, others the last; -1: there is none.
  // A list from which no piece was claimed in this round is complete.
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
      const uint64_t next = static_cast<uint64_t>(round) << ROUND_SHIFT | left;
      if (list.compare_exchange_weak(state, next, std::memory_order_relaxed))
        return static_cast<int64_t>(is_mine ? front : end - 1);
    }
  }

  // Whether no piece of an owner's list was claimed in this round yet.
  bool is_untouched(int owner, uint32_t round) const {
    return lists_[owner].state.load(std::memory_order_relaxed) >> ROUND_SHIFT < round;
  }

  bool is_over(uint32_t round) const { return num_over_.value.load(std::memory_order_acquire) >= round; }

  // Counts `done` of the round's `total` pieces as done; returns whether it is over.
  bool count(uint32_t round, int64_t done, int64_t total) {
    if (done == 0 || num_done_.fetch_add(done, std::memory_order_acq_rel) + done < total) return is_over(round);
    num_done_.store(0, std::memory_order_relaxed);
    num_over_.value.store(round, std::memory_order_release);
    num_over_.wake();
    return true;
  }

  // Spins for a moment; returns whether the round is over.
  bool linger(uint32_t round) const {
    for (int spins = 0; spins < MOMENT && !is_over(round); spins++) _mm_pause();
    return is_over(round);
  }

  void wait(uint32_t round) {
    num_over_.wait([round](uint32_t num_over) { return num_over >= round; }, PATIENCE, &NAP);
  }

 private:
  static constexpr std::chrono::microseconds PATIENCE{100};
  static constexpr timespec NAP{0, 1'000'000};
  static constexpr int MOMENT = 64;  // pauses: one to three microseconds

  // The unclaimed pieces of a list: the round in 24 bits, the first piece and the end in 20 each.
  static constexpr int FRONT_SHIFT = 20, ROUND_SHIFT = 40;
  static constexpr uint64_t MOST = (1 << FRONT_SHIFT) - 1;
  struct alignas(64) List {
    std::atomic<uint64_t> state{0};
  };

  const std::unique_ptr<List[]> lists_;
  alignas(64) std::atomic<int64_t> num_done_{0};
  alignas(64) WaitableCounter num_over_;  // rounds
};

// A thread's round, and whether no other thread had begun the last one.
struct Member {
  uint32_t round = 0;
  bool is_alone = true;
};

// One thread of the team.
class Worker {
 public:
  const int index, count;

  Worker(int index, int count, Team &team, Member &member) : index(index), count(count), team_(team), member_(member) {}

  // A thread's part of `n` equal units: [begin, end).
  int64_t begin(int64_t n, int owner) const { return n * owner / count; }
  int64_t end(int64_t n, int owner) const { return n * (owner + 1) / count; }

  // Calls `body(owner, piece)` for pieces of all owners' lists, which have `length(owner)` pieces; one thread processes
  // each piece. Returns when all are done.
  template <class Length, class Body> void each_piece(Length length, Body body) const {
    int64_t total = 0, done = 0;
    for (int owner = 0; owner < count; owner++) total += length(owner);
    if (total == 0) return;
    const uint32_t round = ++member_.round;
    if (count > 1 && team_.is_over(round)) return;
    const auto take = [&](int owner) {
      const int64_t size = length(owner);
      for (int64_t piece; (piece = team_.claim(owner, size, round, owner == index)) >= 0; done++) body(owner, piece);
    };
    take(index);
    if (team_.count(round, done, total)) return;
    // While all threads have a core they end together, and stealing would only delay the others.
    if (!member_.is_alone && team_.linger(round)) return;
    done = 0;
    member_.is_alone = true;
    for (int i = 1; i < count; i++) {
      const int owner = (index + i) % count;
      member_.is_alone &= team_.is_untouched(owner, round);
      take(owner);
    }
    if (!team_.count(round, done, total)) team_.wait(round);
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
  static constexpr int64_t MOST_STRETCHES = 64;  // of a list: enough to divide what one thread leaves

  Team &team_;
  Member &member_;
};

}  // namespace quire
