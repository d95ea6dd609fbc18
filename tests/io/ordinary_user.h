// AsOrdinaryUser: permissions that refuse, for tests that may run as root.
#pragma once

#include <cstdlib>

#include <unistd.h>

namespace sluice {

// Permissions mean nothing to root, so a test that is root goes on as another user meanwhile.
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
