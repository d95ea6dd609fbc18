// For programs and modules that have libstdc++ in them: std::random_device calls this function of
// glibc 2.36. With this one they run with older ones, as that of Ubuntu 22.04, 2.35.
#include <cstdint>
#include <cstdlib>

#include <sys/random.h>

// At most 256 bytes are never cut short, and it fails only where the kernel has no such call.
extern "C" uint32_t arc4random() noexcept {
  uint32_t value = 0;
  if (getrandom(&value, sizeof(value), 0) != sizeof(value)) std::abort();
  return value;
}
