// Reads files of options with yaml-cpp.
#include "cli/options/config_file.h"

#include <algorithm>
#include <filesystem>

#include <yaml-cpp/yaml.h>

#include "cli/prompt_input.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

// YAML counts lines from 0.
template <typename... Args>
[[noreturn]] void fail_at(const std::string& path, const YAML::Mark& mark,
                          fmt::format_string<Args...> format, Args&&... args) {
  fail(ErrorCode::kInvalidArgument, "--config: {} line {}: {}", path, mark.line + 1,
       fmt::format(format, std::forward<Args>(args)...));
}

// YAML's words for a flag become those of the command line's readers.
std::string scalar_text(const YAML::Node& node) {
  // YAML 1.1 has more words for both, on and off among them, which are values of options here.
  const std::string text = node.Scalar();
  // A quoted text is what it is.
  if (node.Tag() == "!") return text;
  if (text == "true" || text == "True") return "1";
  if (text == "false" || text == "False") return "0";
  return text;
}

std::vector<std::string> values_of(const std::string& path, const std::string& name,
                                   const YAML::Node& node) {
  // `kv-store:` without a value is as if it were not there.
  if (node.IsNull()) return {};
  if (node.IsScalar()) return {scalar_text(node)};
  std::vector<std::string> values;
  for (const YAML::Node& item : node) {
    if (!node.IsSequence() || !item.IsScalar()) {
      fail_at(path, node.Mark(), "{} must be a value or a list of values", name);
    }
    values.push_back(scalar_text(item));
  }
  return values;
}

}  // namespace

std::vector<ConfigEntry> read_config_file(const std::string& path) {
  const std::string text = read_user_file("--config", path);
  // The order of the file is kept: errors name the first fault.
  std::vector<ConfigEntry> entries;
  try {
    const YAML::Node document = YAML::Load(text);
    // A file of comments.
    if (document.IsNull()) return entries;
    if (!document.IsMap()) {
      fail_at(path, document.Mark(), "it must be options and values, as `max-model-len: 32K`");
    }
    for (const auto& member : document) {
      const YAML::Node &key = member.first, &value = member.second;
      if (!key.IsScalar()) fail_at(path, key.Mark(), "the name of an option must be a text");
      std::string name = key.Scalar();
      // `--port: 1` is what some write.
      name.erase(0, std::min(name.find_first_not_of('-'), name.size()));
      std::ranges::replace(name, '_', '-');
      // YAML forbids it, and the library takes either of the two.
      if (std::ranges::find(entries, name, &ConfigEntry::name) != entries.end()) {
        fail_at(path, key.Mark(), "{} is there twice", name);
      }
      entries.push_back({name, values_of(path, name, value)});
    }
  } catch (const YAML::Exception& error) {
    fail_at(path, error.mark, "{}", error.msg);
  }
  return entries;
}

}  // namespace sluice::cli
