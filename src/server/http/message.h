// Request and Answer: what a handler gets and gives, without sockets; and the id of a request.
//
// Used by everything in server/http and by the handlers above it. Thread rule: values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::http {

struct Field {
  std::string name;
  std::string value;
};

// A request whose framing has been checked. Made by parse_head and RequestReader.
struct Request {
  std::string method;
  std::string path;   // as sent, before the first '?'; starts with '/'
  std::string query;  // as sent, after the first '?'
  int minor_version = 1;
  std::vector<Field> fields;
  std::string body;
  std::string id;                     // X-Request-Id, the client's if it is valid
  std::vector<std::string> captures;  // of the route's pattern, in order, percent-decoded

  // The value of the first field of this name, in any case of letters; null if there is none.
  const std::string* find(std::string_view name) const;
};

// A complete answer. Bytes below 0x20 in the values of fields are sent as spaces.
struct Answer {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<Field> fields;
  std::string body;
  bool close = false;  // close the connection after the answer
};

// Compares ASCII letters in any case.
bool equal_names(std::string_view a, std::string_view b);

// Whether a client's X-Request-Id may be echoed: 1 to 128 of [A-Za-z0-9._-].
bool is_valid_request_id(std::string_view id);
// 32 random hexadecimal digits.
std::string make_request_id();

}  // namespace sluice::http
