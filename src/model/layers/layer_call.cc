#include "model/layers/layer_call.h"

#include <string>

#include <fmt/format.h>

namespace sluice {

// The name is built only when a sink is present: formatting costs more than the branch.
void LayerCall::tap(const char* what, int64_t row_begin, const TensorView& rows) const {
  if (taps == nullptr) return;
  const std::string name = fmt::format("layer.{}.{}", layer.value, what);
  if (taps->wants(name)) taps->tap(stream, name, row_begin, rows);
}

}  // namespace sluice
