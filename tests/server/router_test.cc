// Paths to handlers: captures, percent encoding, 404 and 405.
#include "server/http/router.h"

#include <string>

#include <gtest/gtest.h>

namespace sluice::http {
namespace {

Router make_router() {
  Router router;
  const Handler none = [](const Request&, const auto&) {};
  router.add("GET", "/", none);
  router.add("GET", "/v1/models", none);
  router.add("GET", "/v1/models/{}", none);
  router.add("POST", "/pins", none);
  router.add("GET", "/pins", none);
  router.add("GET", "/ui/{*}", none);
  router.add_prefix("/v1");
  return router;
}

TEST(Router, CapturesSegments) {
  const Router router = make_router();
  const auto captures = [&](std::string_view path) {
    return std::get<Router::Match>(router.find("GET", path)).captures;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(captures("/"), Texts{});
  EXPECT_EQ(captures("/v1/models"), Texts{});
  EXPECT_EQ(captures("/v1/models/Qwen%2fQwen3"), Texts{"Qwen/Qwen3"});
  EXPECT_EQ(captures("/ui/a/b%20c.js"), Texts{"a/b c.js"});
}

TEST(Router, NamesThePatternOfAPath) {
  const Router router = make_router();
  EXPECT_EQ(std::get<Router::Match>(router.find("GET", "/v1/models/a")).pattern, "/v1/models/{}");
  EXPECT_EQ(router.pattern_of("/pins"), "/pins");
  EXPECT_EQ(router.pattern_of("/ui/a/b"), "/ui/{*}");
  EXPECT_EQ(router.pattern_of("/models"), "/v1/models") << "without the prefix";
  EXPECT_EQ(router.pattern_of("/models/a"), "/v1/models/{}");
  for (const char* path : {"/v1", "/v1/models/%zz", "/ui", "/v1/v1/models", "/v1/pins"}) {
    EXPECT_EQ(router.pattern_of(path), "") << path;
  }
}

TEST(Router, FaultsNameTheRemedy) {
  const Router router = make_router();
  const auto fault = [&](std::string_view method, std::string_view path) {
    return std::get<Fault>(router.find(method, path));
  };
  for (const char* path : {"/v1", "/v1/models/a/b", "/v1/models/a/", "//", "/ui", "/V1/models",
                           "/v1/models/", "/models/", "/ui/", "/v1/v1/models"}) {
    EXPECT_EQ(fault("GET", path).status, 404) << path;
  }
  for (const char* path : {"/%", "/%1", "/%zz", "/ui/%00"}) {
    EXPECT_EQ(fault("GET", path).status, 400) << path;
  }
  EXPECT_EQ(fault("DELETE", "/models").status, 405);
  const Fault wrong = fault("DELETE", "/pins");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.fields.at(0).name, "Allow");
  EXPECT_EQ(wrong.fields.at(0).value, "POST, GET");
}

}  // namespace
}  // namespace sluice::http
