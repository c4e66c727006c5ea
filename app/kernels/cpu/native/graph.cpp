// Replays a list of records: one call for a whole step of the model, in one parallel region.
#include <omp.h>
#include <sched.h>

#include <atomic>

#include "record.h"
#include "simd.h"

namespace quire {
namespace {

// All threads of a team wait for each other: about 0.1 us between cores that share a cache. A thread that lost its core
// keeps the others spinning, so after a while they give theirs away.
class Barrier {
 public:
  void wait(int count) {
    if (count == 1) return;
    const int phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == count - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; spins++) {
      if (spins < PATIENCE) _mm_pause();
      else sched_yield();
    }
  }

 private:
  static constexpr int PATIENCE = 5000;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> phase_{0};
};

template <class Fields> using Operation = void (*)(const Fields &, int64_t, Worker);
template <class Fields, Operation<Fields> operation> void run(const void *fields, int64_t num_rows, Worker worker) {
  operation(*static_cast<const Fields *>(fields), num_rows, worker);
}

using Runner = void (*)(const void *, int64_t, Worker);
constexpr Runner RUNNERS[NUM_CODES] = {
    run<Embed, embed>,   run<Norm, norm>,           run<Add, add>,
    run<Gather, gather>, run<Quantize, quantize>,   run<SiluMul, silu_mul>,
    run<Linear, linear>, run<Rotate, rotate>,       run<Attention, attention>,
    run<Attention, merge_attention>, run<Sample, sample>,
};
constexpr int64_t SIZES[] = {
    sizeof(Embed),  sizeof(Norm),   sizeof(Add),       sizeof(Gather),    sizeof(Quantize), sizeof(SiluMul),
    sizeof(Linear), sizeof(Rotate), sizeof(Attention), sizeof(Attention), sizeof(Sample),
    sizeof(Record), sizeof(Draw),   sizeof(Adjustments), sizeof(Blocks), SAMPLE_BLOCK, MAX_LOGPROBS,
};

}  // namespace
}  // namespace quire

// The size of the struct of each code, then of what else both sides must agree on; what binds the library compares them
// with its own.
extern "C" int64_t quire_size(int32_t index) { return quire::SIZES[index]; }

// Runs `count` records in order with up to `num_threads` threads. `ticks`, if not null, gains each record's cycles.
extern "C" void quire_replay(const quire::Record *records, int64_t count, int64_t num_tokens, int64_t num_outputs,
                             int32_t num_threads, int64_t *ticks) {
  using namespace quire;
  Barrier barrier;
#pragma omp parallel num_threads(num_threads)
  {
    const Worker worker{omp_get_thread_num(), omp_get_num_threads()};
    uint64_t last = ticks != nullptr ? __rdtsc() : 0;
    for (int64_t i = 0; i < count; i++) {
      const Record &record = records[i];
      RUNNERS[record.code](record.fields, record.rows == OUTPUTS ? num_outputs : num_tokens, worker);
      barrier.wait(worker.count);
      if (ticks != nullptr && worker.index == 0) {
        const uint64_t now = __rdtsc();
        ticks[i] += static_cast<int64_t>(now - last);
        last = now;
      }
    }
  }
}
