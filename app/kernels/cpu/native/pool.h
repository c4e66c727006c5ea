// Helper threads of the thread that computes a step: started when first needed, asleep while there is no work.
//
// A step does not wait for a helper that has not begun: beside other programs a helper may wait for its core for as
// long as several steps take. OpenMP waits for all threads at both ends of each parallel region.
#pragma once

#include "waitable_counter.h"

namespace quire {

class Pool {
 public:
  static Pool &get();

  // Calls `work(index)` with index 0 here, and in helpers with 1 to count - 1, of which all, some or none may come in
  // time. Returns when no helper is in it any more. Where another step has the helpers, index 0 does the work alone.
  template <class Work> void run(int count, Work &work) {
    begin(count, [](void *context, int index) { (*static_cast<Work *>(context))(index); }, &work);
  }

 private:
  using Call = void (*)(void *, int);
  static constexpr uint32_t OPEN = 1u << 31;  // of `entered_`: helpers may come in; the other bits count them
  // Between two steps of a small model, so that its helpers are awake; and for a helper that is in its last piece.
  static constexpr std::chrono::microseconds IDLE{1000}, LEAVING{50};

  void begin(int count, Call call, void *context);
  void start(int count);
  void help(int index);
  bool enter();
  void leave();

  std::atomic_flag is_taken_ = ATOMIC_FLAG_INIT;
  int num_helpers_ = 0;
  // The work; written before the pool opens.
  Call call_ = nullptr;
  void *context_ = nullptr;
  int count_ = 0;
  alignas(64) WaitableCounter num_jobs_;
  alignas(64) WaitableCounter entered_;
};

}  // namespace quire
