#include "pool.h"

#include <pthread.h>
#include <signal.h>

#include <new>
#include <system_error>
#include <thread>

namespace quire {

// It is never destroyed: helpers sleep in it when the process ends. A child process has the memory but not the threads.
Pool &Pool::get() {
  static Pool *const pool = [] {
    pthread_atfork(nullptr, nullptr, [] { new (&get()) Pool; });
    return new Pool;
  }();
  return *pool;
}

void Pool::begin(int count, Call call, void *context) {
  if (count == 1 || is_taken_.test_and_set(std::memory_order_acquire)) return call(context, 0);
  start(count - 1);
  call_ = call, context_ = context, count_ = count;
  entered_.value.store(OPEN);
  num_jobs_.value.fetch_add(1);
  num_jobs_.wake();
  call(context, 0);
  entered_.value.fetch_and(~OPEN);
  entered_.wait([](uint32_t entered) { return entered == 0; }, LEAVING);
  is_taken_.clear(std::memory_order_release);
}

// Has `count` helpers, or as many as the system lets there be.
void Pool::start(int count) {
  if (num_helpers_ >= count) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  try {
    for (; num_helpers_ < count; num_helpers_++) std::thread(&Pool::help, this, num_helpers_ + 1).detach();
  } catch (const std::system_error &) {
    // The threads that are running do the work of the others.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Pool::help(int index) {
  pthread_setname_np(pthread_self(), "quire-compute");
  for (uint32_t seen = 0;;) {
    num_jobs_.wait([&seen](uint32_t jobs) { return jobs != seen; }, IDLE);
    seen = num_jobs_.value.load();
    if (!enter()) continue;
    if (index < count_) call_(context_, index);
    leave();
  }
}

bool Pool::enter() {
  uint32_t entered = entered_.value.load();
  while (entered & OPEN)
    if (entered_.value.compare_exchange_weak(entered, entered + 1)) return true;
  return false;
}

void Pool::leave() {
  if (entered_.value.fetch_sub(1) == 1) entered_.wake();
}

}  // namespace quire
