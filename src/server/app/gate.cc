// Keys are kept and compared as digests of equal length, so that the time of a comparison tells
// nothing of a key.
#include "server/app/gate.h"

#include <algorithm>

#include <boost/asio/ip/address.hpp>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include "core/error.h"

namespace sluice::server {
namespace {

constexpr size_t kMaxKeyBytes = 512;

bool is_ip_literal(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return is_ip_address(host);
}

// "Bearer KEY" of Authorization, with the scheme in any case.
std::optional<std::string_view> bearer_of(const http::Request& request) {
  const std::string* value = request.find("Authorization");
  constexpr std::string_view kScheme = "Bearer ";
  if (value == nullptr || value->size() < kScheme.size()) return std::nullopt;
  const std::string_view text = *value;
  if (!http::equal_names(text.substr(0, kScheme.size()), kScheme)) return std::nullopt;
  return text.substr(kScheme.size());
}

std::optional<http::Fault> check_type(const http::Request& request) {
  if (request.method != "POST") return std::nullopt;
  const std::string* type = request.find("Content-Type");
  const std::string_view media =
      type == nullptr ? std::string_view() : std::string_view(*type).substr(0, type->find(';'));
  const size_t end = media.find_last_not_of(" \t");
  if (http::equal_names(media.substr(0, end + 1), "application/json")) return std::nullopt;
  return http::Fault{.status = 415, .message = "Content-Type must be application/json"};
}

}  // namespace

Gate::Gate(const GateOptions& options)
    : allowed_hosts_(options.allowed_hosts),
      cors_origins_(options.cors_origins),
      is_local_(options.is_local) {
  for (const std::string& key : options.keys) keys_.push_back(digest_of(key));
}

Gate::Digest Gate::digest_of(std::string_view text) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

bool Gate::is_key(std::string_view key) const {
  const Digest given = digest_of(key);
  bool found = false;
  for (const Digest& known : keys_) {
    found |= CRYPTO_memcmp(known.data(), given.data(), given.size()) == 0;
  }
  return found;
}

// A browser asks with OPTIONS what a page may send, and it does so without the page's key.
bool Gate::needs_key(const http::Request& request) const {
  constexpr std::string_view kOpen[] = {"/health", "/live", "/ping", "/version", "/openapi.json"};
  if (request.method == "OPTIONS") return false;
  if (std::ranges::find(kOpen, request.path) != std::end(kOpen)) return false;
  // The page is the same for all, and asks for the key itself.
  if (request.path == "/" || request.path.starts_with("/ui/")) return false;
  return request.path != "/metrics" || !is_local_;
}

std::optional<http::Fault> Gate::check_key(const http::Request& request) const {
  if (keys_.empty() || !needs_key(request)) return std::nullopt;
  // A client may send an old or empty x-api-key of its settings beside the key it was given.
  const std::optional<std::string_view> bearer = bearer_of(request);
  const std::string* field = request.find("x-api-key");
  if ((bearer && is_key(*bearer)) || (field != nullptr && is_key(*field))) return std::nullopt;
  const bool has_key = bearer || field != nullptr;
  return http::Fault{.status = 401,
                     .message = has_key
                                    ? "the key is wrong"
                                    : "a key is needed: Authorization: Bearer KEY, or x-api-key",
                     // Without the second, agents ask with the same key for minutes.
                     .fields = {{"WWW-Authenticate", "Bearer"}, {"x-should-retry", "false"}}};
}

std::optional<http::Fault> Gate::check_key_fields(const http::Request& request) const {
  for (const std::string_view name : {"Authorization", "x-api-key"}) {
    const auto has_name = [&](const http::Field& field) {
      return http::equal_names(field.name, name);
    };
    if (std::ranges::count_if(request.fields, has_name) < 2) continue;
    return http::Fault{.message = std::string(name) + " is given twice; send one"};
  }
  return std::nullopt;
}

std::optional<http::Fault> Gate::check_host(const http::Request& request) const {
  if (!keys_.empty()) return std::nullopt;
  const std::string* field = request.find("Host");
  if (field == nullptr) return std::nullopt;  // HTTP/1.0; the reader asks 1.1 for it
  const std::string_view host = host_without_port(*field);
  const auto is_host = [&](const std::string& name) { return http::equal_names(name, host); };
  if (is_host("localhost") || is_ip_literal(host) || std::ranges::any_of(allowed_hosts_, is_host)) {
    return std::nullopt;
  }
  return http::Fault{.status = 403,
                     .message = "the host \"" + std::string(host) +
                                "\" is not one of --allowed-hosts, and the server has no keys"};
}

// A browser sends Origin with the requests of pages; those of the server's own pages name its host.
std::optional<http::Fault> Gate::check_origin(const http::Request& request) const {
  const std::string* origin = request.find("Origin");
  if (origin == nullptr || cors_origins_.allows(*origin)) return std::nullopt;
  const std::string* host = request.find("Host");
  const size_t scheme = origin->find("://");
  if (host != nullptr && scheme != std::string::npos &&
      http::equal_names(std::string_view(*origin).substr(scheme + 3), *host)) {
    return std::nullopt;
  }
  return http::Fault{.status = 403,
                     .message =
                         "pages of this origin may not use the server; it is not one of "
                         "--cors-origins"};
}

std::optional<http::Fault> Gate::check(const http::Request& request) const {
  for (const auto& fault : {check_key_fields(request), check_host(request), check_origin(request),
                            check_key(request)}) {
    if (fault) return fault;
  }
  return check_type(request);
}

std::vector<std::string> parse_keys(std::string_view text, std::string_view source) {
  std::vector<std::string> keys;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) continue;
    const bool is_printable = std::ranges::all_of(line, [](char c) { return c > ' ' && c < 127; });
    if (!is_printable || line.size() > kMaxKeyBytes) {
      fail(ErrorCode::kInvalidArgument,
           "{}: key {} must be 1 to {} printable ASCII characters without spaces", source,
           keys.size() + 1, kMaxKeyBytes);
    }
    keys.emplace_back(line);
  }
  if (keys.empty()) fail(ErrorCode::kInvalidArgument, "{} has no key", source);
  return keys;
}

std::string_view host_without_port(std::string_view host) {
  const size_t bracket = host.rfind(']');
  const size_t colon = host.rfind(':');
  if (colon == std::string_view::npos) return host;
  if (bracket != std::string_view::npos && colon < bracket) return host;
  return host.substr(0, colon);
}

bool is_ip_address(std::string_view text) {
  boost::system::error_code error;
  boost::asio::ip::make_address(std::string(text), error);
  return !error;
}

bool is_loopback(std::string_view address) {
  boost::system::error_code error;
  const auto parsed = boost::asio::ip::make_address(std::string(address), error);
  return !error && parsed.is_loopback();
}

}  // namespace sluice::server
