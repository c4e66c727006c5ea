// Asks for keys or values that will be needed soon, a few cache lines at a time between other work.
//
// A block is walked once for all heads that are computed together: memory then sees long reads. Without this, keys and
// values that come from memory take twice as long.
#pragma once

#include <cstdint>

#include "attention.h"
#include "simd.h"

namespace quire::attending {

// Tokens [begin, end) of a sequence.
struct Tokens {
  const int32_t *table;
  int64_t begin, end;
};
constexpr Tokens NO_TOKENS{nullptr, 0, 0};

// How the tokens of some adjacent key heads lie in a cache, in bytes.
struct Layout {
  const char *data;  // of the first of these heads, in block 0
  int64_t block_bytes, token_bytes, piece_bytes;  // a piece is these heads of one token
  int64_t block_size;                             // tokens
};

// A stretch of tokens is walked from several places at once: the hardware's own prefetching then runs ahead in each.
class Ahead {
 public:
  Ahead(const Layout &layout, Tokens tokens)
      : layout_(layout), is_whole_(layout.piece_bytes == layout.token_bytes), num_tokens_(tokens.end - tokens.begin) {
    const int64_t blocks = (num_tokens_ + layout.block_size - 1) / layout.block_size;
    int64_t begin = tokens.begin;
    for (int64_t i = 0; i < NUM_WALKS; i++) {
      const int64_t end = std::min(tokens.end, tokens.begin + blocks * (i + 1) / NUM_WALKS * layout.block_size);
      walks_[i] = {{tokens.table, begin, end}, nullptr, nullptr};
      begin = end;
    }
  }

  // About how many lines there are.
  int64_t lines() const { return num_tokens_ * (layout_.piece_bytes / LINE + 1); }

  // Asks for about `count` lines, each time from another place.
  void pull(int64_t count) {
    Walk &walk = walks_[turn_++ % NUM_WALKS];
    while (count > 0) {
      if (walk.line >= walk.end && !next(walk)) return;
      const char *end = std::min(walk.end, walk.line + count * LINE);
      count -= (end - walk.line + LINE - 1) / LINE;
      for (; walk.line < end; walk.line += LINE) prefetch(walk.line);
    }
  }

 private:
  static constexpr int64_t LINE = 64, NUM_WALKS = 4;

  struct Walk {
    Tokens tokens;
    const char *line, *end;
  };

  // Goes on to what lies together: tokens of a block if all their heads are wanted, else one token's.
  bool next(Walk &walk) {
    Tokens &tokens = walk.tokens;
    if (tokens.begin >= tokens.end) return false;
    const int64_t block = tokens.begin / layout_.block_size, slot = tokens.begin % layout_.block_size;
    const int64_t count = is_whole_ ? std::min(layout_.block_size - slot, tokens.end - tokens.begin) : 1;
    const char *start = layout_.data + tokens.table[block] * layout_.block_bytes + slot * layout_.token_bytes;
    walk.line = start - reinterpret_cast<uintptr_t>(start) % LINE;
    walk.end = start + (count - 1) * layout_.token_bytes + layout_.piece_bytes;
    tokens.begin += count;
    return true;
  }

  const Layout layout_;
  const bool is_whole_;
  const int64_t num_tokens_;
  Walk walks_[NUM_WALKS];
  uint64_t turn_ = 0;
};

}  // namespace quire::attending
