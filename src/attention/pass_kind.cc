// Names of phases and passes.
#include "attention/pass_kind.h"

namespace sluice {

std::string_view phase_name(Phase phase) { return phase == Phase::kPrefill ? "prefill" : "decode"; }

std::string_view pass_name(PassKind kind) {
  if (kind.is_prefill) return "prefill";
  if (kind.is_verify) return "verify";
  return kind.is_draft ? "draft" : "decode";
}

}  // namespace sluice
