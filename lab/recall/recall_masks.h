// What prefill policies select for one KV head of a layer, beside the true mass of its tiles.
//
// Used by `sluice-lab recall --masks`: the policies are those of the engine, with their options,
// on the activations that the rig holds. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/policy_list.h"
#include "lab/recall/mask_picture.h"
#include "lab/recall/recall_rig.h"

namespace sluice::lab {

// Mass and panels for the whole query tiles of the text; the caller adds the titles. A panel's
// detail is the share of visible tiles that are set, and the mass that tiles and columns hold: the
// mean over all rows, those included that a rule makes dense. `layer` is that of the activations,
// which policies may treat differently.
// REQUIRES: at least one whole query tile. Errors: those of make_policies.
MaskPicture picture_of_masks(RecallRig& rig, int32_t layer, int32_t kv_head,
                             const std::vector<cli::NamedPolicy>& policies);

}  // namespace sluice::lab
