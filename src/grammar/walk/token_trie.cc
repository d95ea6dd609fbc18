#include "grammar/walk/token_trie.h"

#include <algorithm>
#include <limits>

namespace sluice {

// In the order of texts, a node is new where a text has more bytes than it shares with the one
// before it.
TokenTrie::TokenTrie(const std::vector<std::string>& texts) {
  for (size_t id = 0; id < texts.size(); ++id) {
    const bool has_node =
        !texts[id].empty() && texts[id].size() < std::numeric_limits<uint16_t>::max();
    if (!has_node) continue;
    tokens_.push_back(static_cast<int32_t>(id));
    max_token_ = static_cast<int32_t>(id);
  }
  const auto text = [&](int32_t id) -> const std::string& {
    return texts[static_cast<size_t>(id)];
  };
  std::ranges::stable_sort(tokens_, {}, text);
  std::vector<size_t> path = {0};  // nodes from the root to the newest
  nodes_.emplace_back();
  const auto close_to = [&](size_t depth) {
    for (; path.size() > depth + 1; path.pop_back()) {
      Node& node = nodes_[path.back()];
      Node& above = nodes_[path[path.size() - 2]];
      node.end = static_cast<int32_t>(nodes_.size());
      const bool is_mixed = !is_plain(node.byte) || node.height >= kMixed - 1;
      above.height =
          std::max(above.height, is_mixed ? kMixed : static_cast<uint8_t>(node.height + 1));
    }
  };
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& now = text(tokens_[i]);
    size_t num_shared = 0;
    if (i > 0) {
      const std::string& before = text(tokens_[i - 1]);
      num_shared = static_cast<size_t>(std::ranges::mismatch(before, now).in1 - before.begin());
    }
    close_to(num_shared);
    for (size_t depth = num_shared; depth < now.size(); ++depth) {
      path.push_back(nodes_.size());
      nodes_.push_back({.end = 0,
                        .first_token = static_cast<int32_t>(i),
                        .depth = static_cast<uint16_t>(depth + 1),
                        .byte = static_cast<uint8_t>(now[depth])});
    }
    max_depth_ = std::max(max_depth_, static_cast<int>(now.size()));
  }
  close_to(0);
  nodes_.front().end = static_cast<int32_t>(nodes_.size());
  nodes_.push_back({.end = static_cast<int32_t>(nodes_.size()) + 1,
                    .first_token = static_cast<int32_t>(tokens_.size()),
                    .depth = 0,
                    .byte = 0});
}

}  // namespace sluice
