// PassKind: what a pass is, decided once by the scheduler (or by speculation) and then only read.
//
// Thread rule: a plain value.
#pragma once

#include <string_view>

namespace sluice {

// What a policy is for.
enum class Phase { kPrefill, kDecode };

struct PassKind {
  // The pass in which a policy of this phase selects.
  constexpr PassKind(Phase phase = Phase::kPrefill)  // NOLINT(google-explicit-constructor)
      : is_prefill(phase == Phase::kPrefill) {}
  static constexpr PassKind prefill() { return {}; }
  static constexpr PassKind decode() {
    PassKind kind;
    kind.is_prefill = false;
    return kind;
  }
  // A decode pass whose tokens are drafts: its rows never become valid.
  static constexpr PassKind draft() { return with(&PassKind::is_draft); }
  // A decode pass with rows for draft tokens after the newest token of a sequence. It attends to
  // everything, whatever the decode policy is.
  static constexpr PassKind verify() { return with(&PassKind::is_verify); }

  bool operator==(const PassKind&) const = default;

  // Rows are spans of prompts, of any length, written by way of the stage. Otherwise they follow a
  // prompt and are written to tails.
  bool is_prefill = true;
  bool is_draft = false;
  bool is_verify = false;

 private:
  static constexpr PassKind with(bool PassKind::*trait) {
    PassKind kind = decode();
    kind.*trait = true;
    return kind;
  }
};

std::string_view phase_name(Phase phase);
// "prefill", "decode" or "verify", for timelines.
std::string_view pass_name(PassKind kind);

}  // namespace sluice
