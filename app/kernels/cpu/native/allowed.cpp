// Whether the operating system lets this process use the instructions.
#include <cstdint>
#include <sys/syscall.h>
#include <unistd.h>

#include "exported.h"

// Whether this process may use all instructions of the library. Linux gives AMX's registers only to processes that ask,
// once for all threads.
QUIRE_EXPORTED int32_t quire_is_allowed() {
#ifdef __AMX_TILE__
  constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
  return 1;
#endif
}
