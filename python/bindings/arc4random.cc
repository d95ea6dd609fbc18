// For the program of a release, which has libstdc++ in it: std::random_device calls this function
// of glibc 2.36. With this one the program runs with glibc 2.35, which Ubuntu 22.04 has.
#include <cstdint>
#include <cstdlib>

#include <sys/random.h>

// At most 256 bytes are never cut short, and it fails only where the kernel has no such call.
extern "C" uint32_t arc4random() noexcept {
  uint32_t value = 0;
  if (getrandom(&value, sizeof(value), 0) != sizeof(value)) std::abort();
  return value;
}
