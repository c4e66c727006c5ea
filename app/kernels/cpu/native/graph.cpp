// Replays a list of records: one call for a whole step of the model.
#include "exported.h"
#include "pool.h"
#include "record.h"
#include "simd.h"

namespace quire {
namespace {

template <class Fields> using Operation = void (*)(const Fields &, int64_t, Worker);
template <class Fields, Operation<Fields> operation> void run(const void *fields, int64_t num_rows, Worker worker) {
  operation(*static_cast<const Fields *>(fields), num_rows, worker);
}

using Runner = void (*)(const void *, int64_t, Worker);
constexpr Runner RUNNERS[NUM_CODES] = {
    run<Embed, embed>,   run<Norm, norm>,           run<Add, add>,
    run<Gather, gather>, run<Quantize, quantize>,   run<Gate, gate>,
    run<Linear, linear>, run<Rotate, rotate>,       run<Attention, attention>,
    run<Attention, merge_attention>, run<Sample, sample>, run<Pack, pack>,
    run<Softcap, softcap>, run<Route, route>, run<Experts, experts>, run<Combine, combine>,
};
constexpr int64_t SIZES[] = {
    sizeof(Embed),  sizeof(Norm),    sizeof(Add),       sizeof(Gather),    sizeof(Quantize), sizeof(Gate),
    sizeof(Linear), sizeof(Rotate),  sizeof(Attention), sizeof(Attention), sizeof(Sample),
    sizeof(Pack),   sizeof(Softcap), sizeof(Route),     sizeof(Experts),   sizeof(Combine),
    sizeof(Record), sizeof(SamplingSettings),   sizeof(Penalties), sizeof(Blocks),
    sizeof(QuantizedGroup), SAMPLE_BLOCK, MAX_LOGPROBS,
};

int64_t num_rows_of(int32_t rows, int64_t num_tokens, int64_t num_outputs) {
  if (rows == OUTPUTS) return num_outputs;
  return rows < PAIRS ? num_tokens : num_tokens * (rows - PAIRS + 1);
}

}  // namespace
}  // namespace quire

// The size of the struct of each code, then of what else both sides must agree on; what binds the library compares them
// with its own.
QUIRE_EXPORTED int64_t quire_size(int32_t index) { return quire::SIZES[index]; }

// Runs `count` records in order with up to `num_threads` threads. `ticks`, if not null, gains each record's cycles.
QUIRE_EXPORTED void quire_replay(const quire::Record *records, int64_t count, int64_t num_tokens, int64_t num_outputs,
                                 int32_t num_threads, int64_t *ticks) {
  using namespace quire;
  Team team(num_threads);
  auto work = [&](int index) {
    Member member;
    const Worker worker(index, num_threads, team, member);
    uint64_t last = ticks != nullptr ? __rdtsc() : 0;
    for (int64_t i = 0; i < count; i++) {
      const Record &record = records[i];
      RUNNERS[record.code](record.fields, num_rows_of(record.rows, num_tokens, num_outputs), worker);
      if (ticks != nullptr && index == 0) {
        const uint64_t now = __rdtsc();
        ticks[i] += static_cast<int64_t>(now - last);
        last = now;
      }
    }
  };
  Pool::get().run(num_threads, work);
}
