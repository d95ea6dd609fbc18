// AsOrdinaryUser: makes file permissions take effect in tests that may run as root.
#pragma once

#include <cstdlib>

#include <unistd.h>

namespace sluice {

// Root ignores permissions, so a test that runs as root becomes another user for the object's
// lifetime.
class AsOrdinaryUser {
 public:
  AsOrdinaryUser() { is_one_ = geteuid() != 0 || seteuid(65534) == 0; }
  ~AsOrdinaryUser() {
    if (geteuid() != getuid() && seteuid(getuid()) != 0) std::abort();
  }
  bool is_one() const { return is_one_; }

 private:
  bool is_one_ = false;
};

}  // namespace sluice
