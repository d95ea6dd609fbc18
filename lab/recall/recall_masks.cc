// Reads masks and columns from the memory of policies, which is the host's on the CPU device.
#include "lab/recall/recall_masks.h"

#include <algorithm>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "attention/policy_pair.h"
#include "ops/reference/softmax_mass.h"

namespace sluice::lab {
namespace {

// The true mass of each token for the rows of each query tile: [q_tile][token].
using TokenMass = std::vector<std::vector<double>>;

// The mean over the query heads of a KV head.
TokenMass true_mass(RecallRig& rig, int32_t kv_head) {
  TokenMass mass;
  const int32_t group = rig.shape().group();
  const auto num_tiles = static_cast<int32_t>(rig.shape().num_tokens / kMaskTileTokens);
  for (int32_t q_tile = 0; q_tile < num_tiles; ++q_tile) {
    const auto heads = rig.token_masses(q_tile);
    const auto first = heads.begin() + int64_t{kv_head} * group;
    std::vector<double>& mean = mass.emplace_back(first->size());
    for (size_t token = 0; token < mean.size(); ++token) {
      for (auto head = first; head != first + group; ++head) mean[token] += (*head)[token] / group;
    }
  }
  return mass;
}

// "21.3 % of tiles and 96 tokens a row hold .912".
std::string describe(const MaskPanel& panel, const MaskPicture& picture, const TokenMass& mass) {
  double num_set = 0, num_visible = 0, num_columns = 0, held = 0;
  for (size_t q_tile = 0; q_tile < mass.size(); ++q_tile) {
    const std::vector<bool>& tiles = panel.tiles[q_tile];
    num_set += static_cast<double>(std::count(tiles.begin(), tiles.end(), true));
    num_visible += static_cast<double>(tiles.size());
    num_columns += static_cast<double>(panel.columns[q_tile].size());
    held += reference::mass_of_tiles(picture.mass[q_tile], tiles);
    for (const int32_t position : panel.columns[q_tile]) {
      held += mass[q_tile][static_cast<size_t>(position)];
    }
  }
  const auto num_rows = static_cast<double>(mass.size());
  const std::string tokens =
      num_columns > 0 ? fmt::format(" and {:.0f} tokens a row", num_columns / num_rows) : "";
  return fmt::format("{:.1f} % of tiles{}: mass {:.3f}", 100 * num_set / num_visible, tokens,
                     held / num_rows);
}

}  // namespace

MaskPicture picture_of_masks(RecallRig& rig, int32_t layer, int32_t kv_head,
                             const std::vector<NamedPolicy>& policies) {
  const TokenMass mass = true_mass(rig, kv_head);
  MaskPicture picture;
  for (const auto& tokens : mass) picture.mass.push_back(reference::tile_mass(tokens));
  for (const NamedPolicy& named : policies) {
    const std::unique_ptr<PolicyPair> pair = make_policies(named.sparse.policy, named.sparse);
    const Selection selection = rig.select(*pair, layer);
    const MaskedTiles everything;  // no mask
    const MaskedTiles* tiles = masked_in(selection);
    if (tiles == nullptr) tiles = &everything;
    MaskPanel panel{.name = named.name, .detail = {}, .tiles = {}, .columns = {}};
    for (int32_t q_tile = 0; q_tile < std::ssize(mass); ++q_tile) {
      RecallChoice choice = read_choice(tiles->mask, tiles->columns, kv_head, q_tile);
      panel.tiles.push_back(std::move(choice.tiles));
      panel.columns.push_back(std::move(choice.columns));
    }
    panel.detail = describe(panel, picture, mass);
    picture.panels.push_back(std::move(panel));
  }
  return picture;
}

}  // namespace sluice::lab
