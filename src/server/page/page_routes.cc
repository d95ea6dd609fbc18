// The files are constants, so a request needs no worker and no model: the page also tells how far
// the model is loaded. Names are compared with those of the files, so that no path from a request
// is ever opened.
#include "server/page/page_routes.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "server/page/page_file.h"

namespace sluice::server {
namespace {

constexpr std::string_view kIndex = "index.html";

// With nosniff a browser runs a script only if its type says so.
std::string_view type_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kTypes = {{
      {".html", "text/html; charset=utf-8"},
      {".css", "text/css; charset=utf-8"},
      {".js", "text/javascript; charset=utf-8"},
      {".mjs", "text/javascript; charset=utf-8"},
      {".svg", "image/svg+xml"},
  }};
  for (const auto& [ending, type] : kTypes) {
    if (name.ends_with(ending)) return type;
  }
  return "application/octet-stream";
}

// Coarse: a client that names gzip with q=0 does not exist in practice.
bool takes_gzip(const http::Request& request) {
  const std::string* accepted = request.find("Accept-Encoding");
  return accepted != nullptr && accepted->find("gzip") != std::string::npos;
}

// The field may list several tags, and weak ones; a tag is long enough to be found as text.
bool has_newest(const http::Request& request, const PageFile& file) {
  const std::string* known = request.find("If-None-Match");
  return known != nullptr && known->find(file.etag) != std::string::npos;
}

// Browsers ask again each time, and mostly learn that nothing has changed: a new version of the
// server has a new page at once.
http::Answer answer_of(const PageFile& file, const http::Request& request) {
  if (!takes_gzip(request)) {
    return http::fault_answer({.status = 406,
                               .message = "the page is sent as gzip alone; send Accept-Encoding: "
                                          "gzip (curl --compressed)"});
  }
  http::Answer answer{.content_type = std::string(type_of(file.name)),
                      .fields = {{"Content-Encoding", "gzip"},
                                 {"ETag", std::string(file.etag)},
                                 {"Cache-Control", "no-cache"},
                                 {"Vary", "Accept-Encoding"},
                                 {"Content-Security-Policy",
                                  "default-src 'self'; frame-ancestors 'none'; base-uri 'none'"},
                                 {"X-Content-Type-Options", "nosniff"},
                                 {"Referrer-Policy", "no-referrer"}}};
  if (has_newest(request, file)) {
    answer.status = 304;
    return answer;
  }
  answer.body = std::string(file.gzip);
  return answer;
}

// "/" captures nothing, "/ui/{}" the name of a file.
http::Answer page(const http::Request& request) {
  const std::string_view name = request.captures.empty() ? kIndex : request.captures[0];
  const auto files = page_files();
  const auto file = std::ranges::find(files, name, &PageFile::name);
  if (file != files.end()) return answer_of(*file, request);
  return http::fault_answer(
      {.status = 404, .message = "there is no file of this name", .param = "path"});
}

}  // namespace

void add_page_routes(http::Router& router, ServerContext& context) {
  for (const char* pattern : {"/", "/ui/{}"}) {
    const auto handler = [&context, pattern](const http::Request& request,
                                             const std::shared_ptr<http::Exchange>& exchange) {
      http::Answer answer = page(request);
      context.state.http_metrics().answered(pattern, answer.status);
      exchange->answer(std::move(answer));
    };
    for (const char* method : {"GET", "HEAD"}) router.add(method, pattern, handler);
  }
}

}  // namespace sluice::server
