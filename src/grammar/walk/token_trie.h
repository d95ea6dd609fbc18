// TokenTrie: the texts of a vocabulary as a tree over bytes, in one array.
//
// Nodes are in the order of a walk: children follow their parent, and a node knows where the part
// of the tree under it ends, so that a walk skips it by one assignment. Used by net_walker.h for
// masks. Thread rule: never changes; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sluice {

class TokenTrie {
 public:
  struct Node {
    int32_t end = 0;          // the first node that is not under this one
    int32_t first_token = 0;  // in `tokens`: its own come first, then those under it
    uint16_t depth = 0;       // bytes up to this node, 0 for the root
    uint8_t byte = 0;         // its last one
    uint8_t height = 0;       // most bytes under it, or kMixed if some are not plain
  };

  static constexpr uint8_t kMixed = 255;

  // Texts by token id; those that are empty have no node.
  // REQUIRES: texts of less than 65,536 bytes; longer ones are left out.
  explicit TokenTrie(const std::vector<std::string>& texts);

  // The root is the first one; one more at the end stands for what follows all.
  std::span<const Node> nodes() const { return nodes_; }
  // The tokens whose text ends at one of the nodes [first, last).
  std::span<const int32_t> tokens_in(size_t first, size_t last) const {
    const auto begin = static_cast<size_t>(nodes_[first].first_token);
    return std::span(tokens_).subspan(begin, static_cast<size_t>(nodes_[last].first_token) - begin);
  }
  // ASCII that texts of JSON have as it is: most of a vocabulary has nothing else.
  static bool is_plain(uint8_t byte) {
    return byte >= ' ' && byte <= '~' && byte != '"' && byte != '\\';
  }
  int max_depth() const { return max_depth_; }
  int32_t max_token() const { return max_token_; }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;  // in the order of their texts
  int max_depth_ = 0;
  int32_t max_token_ = 0;
};

}  // namespace sluice
