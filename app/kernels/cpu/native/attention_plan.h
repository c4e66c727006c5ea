// What is computed together: strips of rows, cut into pieces by the work they are predicted to take.
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
  const PagedRows &p = a.paged_rows;
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

// How a step is cut into pieces: by strips, some of them by parts and by key heads. Every thread comes to the same plan.
//
// A strip that is a small part of the step is one piece, and so is one that lies within a thread's share. One that would
// keep the others waiting is cut between parts, if there are several and a slot holds its rows, else between key heads.
class Plan {
 public:
  Plan(const Attention &a, const Heads &heads, int64_t num_rows, int64_t num_threads)
      : heads_(heads), num_threads_(num_threads) {
    each_strip(a, num_rows, [this](const Strip &s, int64_t) { total_ += work(s); });
    each_strip(a, num_rows, [this](const Strip &s, int64_t before) {
      const Cut c = cut(s, before);
      num_pieces_ += c.num_pieces();
      if (c.is_split) num_folded_ += heads_.num_kv * s.count * heads_.repeats;
    });
  }

  // How many pieces there are, and query heads whose parts must be put together.
  int64_t num_pieces() const { return num_pieces_; }
  int64_t num_folded() const { return num_folded_; }

  // A strip's pieces: key heads in `num_groups`, of each of `num_parts`, or of all at once if it is not split.
  struct Cut {
    bool is_split;
    int64_t num_parts, num_groups;
    int64_t num_pieces() const { return num_parts * num_groups; }
  };

  // `before` is the work of all strips before.
  Cut cut(const Strip &s, int64_t before) const {
    if (num_threads_ == 1 || is_small(s) || owner(before) == owner(before + work(s) - 1)) return {false, 1, 1};
    const bool is_split = s.num_parts > 1 && s.count * heads_.num <= heads_.split;
    const int64_t num_parts = is_split ? s.num_parts : 1;
    const int64_t wanted = (PIECES * num_threads_ + num_parts - 1) / num_parts;
    return {is_split, num_parts, std::min(heads_.num_kv, wanted)};
  }

  // Calls `body(strip, before)` for each strip.
  template <class Body> void each_strip(const Attention &a, int64_t num_rows, Body body) const {
    int64_t before = 0;
    for (int64_t row = 0; row < num_rows;) {
      const Strip s = strip_at(a, heads_, row, num_rows);
      body(s, before);
      before += work(s);
      row += s.count;
    }
  }

  int64_t work(const Strip &s) const { return heads_.num_kv * per_token(s) * (s.end - s.begin + OVERHEAD); }

 private:
  // Cycles for each token of a key head, about: to load it, and for each query head.
  int64_t per_token(const Strip &s) const { return 20 + 8 * s.count * heads_.repeats; }
  static constexpr int64_t OVERHEAD = 16;  // tokens that would take as long as beginning and ending a strip
  static constexpr int64_t PIECES = 2;     // for each thread, of a strip that is cut, at least

  bool is_small(const Strip &s) const { return 8 * num_threads_ * work(s) < total_; }
  // The thread whose equal share of the work contains the unit after `before`.
  int64_t owner(int64_t before) const { return before * num_threads_ / std::max<int64_t>(1, total_); }

  const Heads &heads_;
  const int64_t num_threads_;
  int64_t total_ = 0, num_pieces_ = 0, num_folded_ = 0;
};

}  // namespace quire::attending
