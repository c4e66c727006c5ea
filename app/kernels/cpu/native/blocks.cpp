// Copies of KV blocks, within a cache or between a cache and host memory.
#include <cstdint>
#include <cstring>

#include "exported.h"
#include "record.h"

using quire::Blocks;

// Copies block pairs[2 i] of `source` to block pairs[2 i + 1] of `target`, keys and values of all layers. By one thread:
// it is bound by memory, and on a busy machine a second one would only be waited for.
QUIRE_EXPORTED void quire_copy_blocks(const Blocks *source, const Blocks *target, int64_t num_layers, int64_t num_bytes,
                                      const int64_t *pairs, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    for (int64_t layer = 0; layer < num_layers; layer++)
      for (int64_t half = 0; half < 2; half++)
        std::memcpy(target->at(layer, half, pairs[2 * i + 1]), source->at(layer, half, pairs[2 * i]),
                    static_cast<size_t>(num_bytes));
}
