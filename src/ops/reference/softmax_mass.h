// Softmax mass of tokens and tiles in double precision, and how much of it a choice holds.
//
// Used by `sluice-lab recall` as the truth that estimators are compared with, and by the
// reference and the tests of audit_mass. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::reference {

// Adds the softmax of a row's scores to `mass`, score by score. The sum over rows, divided by their
// number, is the mean mass of each token. A row whose largest score is not finite, or which holds
// NaN, adds nothing and returns false.
// REQUIRES: scores.size() <= mass.size(); the tokens are those that the row sees, from 0 on.
bool add_token_mass(std::span<const double> scores, std::span<double> mass);

// The mass of each tile of kMaskTileTokens tokens, from that of its tokens, added in ascending
// order. The last tile may be shorter.
std::vector<double> tile_mass(std::span<const double> token_mass);

// The mass of the tiles that are set. REQUIRES: as many flags as tiles.
double mass_of_tiles(std::span<const double> tile_mass, const std::vector<bool>& is_set);

// The mass of the `count` tokens that have the largest `choice`, lower tokens first among equals;
// of all tokens if there are fewer. REQUIRES: as many choices as masses.
double mass_of_best_tokens(std::span<const double> choice, std::span<const double> token_mass,
                           int64_t count);

}  // namespace sluice::reference
