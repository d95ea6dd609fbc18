// Files of options: the same names and values as on the command line, which wins.
#include "cli/options/config_file.h"

#include <string>

#include <gtest/gtest.h>

#include "cli/options/options.h"
#include "cli/parsed_words.h"
#include "io/temp_dir.h"

namespace sluice::cli {
namespace {

class ConfigFile : public ::testing::Test {
 protected:
  std::string file(const std::string& text) { return dir_.write("serve.yaml", text).string(); }
  std::string refusal_of(const std::string& text) {
    return refusal({"serve", "--config", file(text)});
  }

  TempDir dir_;
};

TEST_F(ConfigFile, HasTheNamesAndValuesOfTheCommandLine) {
  const std::string path = file(
      "# of vLLM, too\n"
      "model: models/needle\n"
      "max-model-len: 32K\n"
      "gpu_memory_utilization: 0.8\n"
      "served-model-name: [a, b]\n"
      "no-prefix-caching: true\n"
      "log-json: false\n"
      "kv-offload: \"off\"\n"
      "dtype: auto\n"
      "tensor-parallel-size: 1\n"
      "port: 9\n");
  const auto serve = parse<ServeCommand>({"serve", "--config", path});
  EXPECT_EQ(serve.engine.model, "models/needle");
  EXPECT_EQ(serve.engine.max_model_len, 32 << 10);
  EXPECT_EQ(serve.engine.gpu_memory_utilization, 0.8);
  EXPECT_EQ(serve.served_model_names, (Words{"a", "b"}));
  EXPECT_FALSE(serve.engine.enable_prefix_caching);
  EXPECT_FALSE(serve.log_json);
  EXPECT_EQ(serve.port, 9);
  EXPECT_EQ(parse<ServeCommand>({"serve", "d", "--config", file("")}).engine.model, "d");
}

TEST_F(ConfigFile, LosesAgainstCommandLineAndVariables) {
  const std::string path = file("model: m\nport: 1\nhost: 127.0.0.2\n");
  const ScopedEnvironment port("SLUICE_PORT", "2");
  const auto serve = parse<ServeCommand>({"serve", "d", "--config=" + path});
  EXPECT_EQ(serve.engine.model, "d");
  EXPECT_EQ(serve.port, 2);
  EXPECT_EQ(serve.host, "127.0.0.2");
  const ScopedEnvironment config("SLUICE_CONFIG", path.c_str());
  EXPECT_EQ(parse<ServeCommand>({"serve"}).engine.model, "m");
}

TEST_F(ConfigFile, FaultsAreNamedWithTheFile) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"model: d\nmax-model-lenn: 3\n", "unknown option '--max-model-lenn'; did you mean"},
      {"model: d\nctx-size: 3\n", "here it is --max-model-len"},
      {"model: d\nport: many\n", "port of "},
      {"model: d\nport: {a: 1}\n", "line 2: port must be a value or a list"},
      {"model: d\nport: 1\nport: 2\n", "port is there twice"},
      {"- a\n", "it must be options and values"},
      {"model: [\n", "line 2"},
      {"config: x\n", "names no other"}};
  for (const auto& [text, expected] : cases) {
    const std::string message = refusal_of(text);
    EXPECT_NE(message.find(expected), message.npos) << text << message;
    EXPECT_NE(message.find("serve.yaml"), message.npos) << message;
  }
  EXPECT_NE(refusal({"serve", "--config", "/no/such/file"}).find("/no/such/file"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice::cli
