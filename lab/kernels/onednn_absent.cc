// Replaces onednn_matmul.cc where oneDNN is not installed: the benchmark then prints no comparison.
#include "onednn_matmul.h"

namespace sluice::bench {

void limit_onednn_to_avx2() {}

std::string onednn_isa() { return {}; }

std::function<void()> make_onednn_matmul(const OneDnnShape&) { return {}; }

}  // namespace sluice::bench
