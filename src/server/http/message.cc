#include "server/http/message.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include <fmt/format.h>
#include <sys/random.h>

#include "core/error.h"

namespace sluice::http {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

bool is_id_char(char c) {
  const char l = lower(c);
  return (l >= 'a' && l <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

}  // namespace

bool equal_names(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

const std::string* Request::find(std::string_view name) const {
  for (const Field& field : fields) {
    if (equal_names(field.name, name)) return &field.value;
  }
  return nullptr;
}

bool is_valid_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), is_id_char);
}

std::string make_request_id() {
  std::array<unsigned char, 16> bytes;
  ssize_t got = -1;
  do {
    got = getrandom(bytes.data(), bytes.size(), 0);
  } while (got < 0 && errno == EINTR);
  SLUICE_CHECK(got == static_cast<ssize_t>(bytes.size()), "getrandom gave {} bytes", got);
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

}  // namespace sluice::http
