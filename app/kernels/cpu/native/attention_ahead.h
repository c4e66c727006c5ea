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

class Ahead {
 public:
  Ahead(const Layout &layout, Tokens tokens)
      : layout_(layout),
        tokens_(tokens),
        line_(nullptr),
        end_(nullptr),
        is_whole_(layout.piece_bytes == layout.token_bytes) {}

  // About how many lines there are.
  int64_t lines() const { return (tokens_.end - tokens_.begin) * (layout_.piece_bytes / LINE + 1); }

  void pull(int64_t count) {
    for (; count > 0; count -= is_whole_ ? 4 : 2) {
      if (line_ >= end_ && !next()) return;
      prefetch(line_), prefetch(line_ + LINE);
      if (is_whole_) prefetch(line_ + 2 * LINE), prefetch(line_ + 3 * LINE);
      line_ += (is_whole_ ? 4 : 2) * LINE;
    }
  }

 private:
  static constexpr int64_t LINE = 64;

  // Goes on to what lies together: tokens of a block if all their heads are wanted, else one token's.
  bool next() {
    if (tokens_.begin >= tokens_.end) return false;
    const int64_t block = tokens_.begin / layout_.block_size, slot = tokens_.begin % layout_.block_size;
    const int64_t count = is_whole_ ? std::min(layout_.block_size - slot, tokens_.end - tokens_.begin) : 1;
    const char *start = layout_.data + tokens_.table[block] * layout_.block_bytes + slot * layout_.token_bytes;
    line_ = start - reinterpret_cast<uintptr_t>(start) % LINE;
    end_ = start + (count - 1) * layout_.token_bytes + layout_.piece_bytes;
    tokens_.begin += count;
    return true;
  }

  const Layout layout_;
  Tokens tokens_;
  const char *line_, *end_;
  const bool is_whole_;
};

}  // namespace quire::attending
