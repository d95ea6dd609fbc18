// Gate: which requests may reach a handler: keys, hosts, origins and content types.
//
// ServerOptions::gate of the HTTP server calls it before a body is read. Thread rule: immutable;
// any number of threads may call one object at the same time.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/app/cors_origins.h"
#include "server/http/fault.h"
#include "server/http/message.h"

namespace sluice::server {

struct GateOptions {
  // Empty: no key is asked for. Then the Host of each request must be a local name, an address or
  // one of `allowed_hosts`: a page elsewhere could else reach the server under a name of its own
  // that it lets point to this machine.
  std::vector<std::string> keys;
  std::vector<std::string> allowed_hosts;  // without ports; in any case of letters
  CorsOrigins cors_origins;                // whose pages may use the server
  bool is_local = true;                    // nothing but this machine can reach the server
};

class Gate {
 public:
  explicit Gate(const GateOptions& options);

  // Errors, as an answer: 400 for a field of keys that is given twice, of which a proxy before this
  // server may take the other one; 401 for a key that is missing or wrong, on all routes but those
  // that only say how the server is (/metrics is one if the server is local); 403 for a Host that
  // is not allowed without keys, and for an Origin that is neither the server's own nor allowed;
  // 415 for a POST that is not application/json, which a page could send without asking.
  std::optional<http::Fault> check(const http::Request& request) const;

 private:
  using Digest = std::array<unsigned char, 32>;

  static Digest digest_of(std::string_view text);
  bool needs_key(const http::Request& request) const;
  // Takes the same time for all keys.
  bool is_key(std::string_view key) const;
  std::optional<http::Fault> check_key_fields(const http::Request& request) const;
  std::optional<http::Fault> check_key(const http::Request& request) const;
  std::optional<http::Fault> check_host(const http::Request& request) const;
  std::optional<http::Fault> check_origin(const http::Request& request) const;

  std::vector<Digest> keys_;
  std::vector<std::string> allowed_hosts_;
  CorsOrigins cors_origins_;
  bool is_local_;
};

// Keys from a text with one on each line; empty lines do not count. Errors: kInvalidArgument that
// names `source`, for none and for one with other than 1 to 512 printable ASCII characters.
std::vector<std::string> parse_keys(std::string_view text, std::string_view source);

// The host without its port: "[::1]:8000" is "[::1]".
std::string_view host_without_port(std::string_view host);

// Whether the text is an IP address, v4 or v6, without brackets and port.
bool is_ip_address(std::string_view text);

// Whether the address, as ServerOptions::address has it, can be reached from this machine only.
bool is_loopback(std::string_view address);

}  // namespace sluice::server
