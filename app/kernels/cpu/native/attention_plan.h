// Who computes what: strips of rows, shared out among threads by the work they are predicted to take.
#pragma once

#include "attention.h"

namespace quire::attending {

// Adjacent rows of one sequence at adjacent positions, which share the loading of keys and values.
struct Strip {
  int64_t row, count, position, sequence;  // the first row, how many there are, and where the first one stands
  const int32_t *table;
  int64_t begin, end;  // the tokens that any of them sees
  int part_shift;
  int64_t first_part, num_parts;

  int64_t part_begin(int64_t part) const { return std::max(begin, (first_part + part) << part_shift); }
  int64_t part_end(int64_t part) const { return std::min(end, (first_part + part + 1) << part_shift); }
};

static inline Strip strip_at(const Attention &a, const Heads &heads, int64_t row, int64_t num_rows) {
  const Places &p = a.places;
  Strip s;
  s.row = row, s.count = 1, s.position = p.positions[row], s.sequence = p.state_rows[row];
  const int64_t most = std::min(num_rows - row, heads.strip_rows - (s.position & (heads.strip_rows - 1)));
  while (s.count < most && p.state_rows[row + s.count] == s.sequence &&
         p.positions[row + s.count] == s.position + s.count)
    s.count++;
  s.table = p.block_tables + s.sequence * p.table_stride;
  s.begin = first_seen(s.position, a.window);
  s.end = s.position + s.count;
  s.part_shift = part_shift(s.position, a.window);
  s.first_part = s.begin >> s.part_shift;
  s.num_parts = ((s.end - 1) >> s.part_shift) + 1 - s.first_part;
  return s;
}

// What a thread computes of a strip: key heads [first, last) of one part, or of ALL.
struct Unit {
  int64_t first, last;
};
constexpr int64_t ALL = -1;

// The predicted work of a step, in order: by strips, then parts, then key heads. A thread's share is a stretch of it.
//
// A strip that is a small part of the step goes to one thread as a whole. Others are cut between key heads; and between
// parts, if there are several and a slot holds their rows. Every thread comes to the same plan.
class Plan {
 public:
  Plan(const Attention &a, const Heads &heads, int64_t num_rows, int64_t num_threads)
      : heads_(heads), num_threads_(num_threads), total_(0) {
    for (int64_t row = 0; row < num_rows;) {
      const Strip s = strip_at(a, heads, row, num_rows);
      total_ += work(s);
      row += s.count;
    }
  }

  int64_t work(const Strip &s) const { return heads_.num_kv * per_token(s) * (s.end - s.begin + OVERHEAD); }

  // Who does the work that `before` comes before.
  int64_t owner(int64_t before) const {
    return std::min(num_threads_ - 1, before * num_threads_ / std::max<int64_t>(1, total_));
  }

  // Whether the parts of a strip go to several threads.
  bool is_split(const Strip &s, int64_t before) const {
    return s.num_parts > 1 && s.count * heads_.num <= heads_.split && !is_small(s) &&
           owner_of(s, before, 0, 0) != owner_of(s, before, s.num_parts - 1, heads_.num_kv - 1);
  }

  // Which key heads are `thread`'s.
  Unit unit(const Strip &s, int64_t before, int64_t part, int64_t thread) const {
    if (is_small(s)) return {0, owner(before + work(s) / 2) == thread ? heads_.num_kv : 0};
    Unit u{0, 0};
    while (u.first < heads_.num_kv && owner_of(s, before, part, u.first) < thread) u.first++;
    u.last = u.first;
    while (u.last < heads_.num_kv && owner_of(s, before, part, u.last) == thread) u.last++;
    return u;
  }

 private:
  // Cycles for each token of a key head, about: to load it, and for each query head.
  int64_t per_token(const Strip &s) const { return 20 + 8 * s.count * heads_.repeats; }
  static constexpr int64_t OVERHEAD = 16;  // tokens that would take as long as beginning and ending a strip

  bool is_small(const Strip &s) const { return 8 * num_threads_ * work(s) < total_; }

  int64_t owner_of(const Strip &s, int64_t before, int64_t part, int64_t head) const {
    if (part == ALL) return owner(before + work(s) * (2 * head + 1) / (2 * heads_.num_kv));
    const int64_t begin = s.part_begin(part), length = s.part_end(part) - begin;
    return owner(before + per_token(s) * (heads_.num_kv * (begin - s.begin) + head * length + length / 2));
  }

  const Heads &heads_;
  const int64_t num_threads_;
  int64_t total_;
};

}  // namespace quire::attending
