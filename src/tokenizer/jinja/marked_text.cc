// Keeps marks as the offsets at which they change: most texts have none.
#include "tokenizer/jinja/marked_text.h"

#include <algorithm>

namespace sluice::jinja {

void MarkedText::set_mark_at_end(bool given) {
  if (bytes_.empty()) {
    starts_given_ = given;
  } else if ((starts_given_ != (borders_.size() % 2 == 1)) != given) {
    borders_.push_back(bytes_.size());
  }
}

void MarkedText::append(std::string_view bytes, bool given) {
  if (bytes.empty()) return;
  set_mark_at_end(given);
  bytes_.append(bytes);
}

void MarkedText::append(const MarkedText& other, size_t begin, size_t end) {
  other.for_each_run(begin, end, [this](std::string_view run, bool given) { append(run, given); });
}

MarkedText MarkedText::slice(size_t begin, size_t end) const {
  MarkedText part;
  if (begin < end) part.append(*this, begin, end);
  return part;
}

size_t MarkedText::first_border_after(size_t offset) const {
  return static_cast<size_t>(std::upper_bound(borders_.begin(), borders_.end(), offset) -
                             borders_.begin());
}

}  // namespace sluice::jinja
