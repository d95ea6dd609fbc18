// Reads the document part by part. An unknown key is refused: it might change ids, and wrong ids
// would give wrong answers without an error.
#include "tokenizer/tokenizer_file.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/printable.h"
#include "io/json.h"
#include "io/json_type.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/nfc.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::string_view kSupported =
    "Sluice reads byte-level BPE as Qwen2/3, Llama 3, GPT-2 and SmolLM2 have it";

// Throws kUnsupported for a well-formed value that Sluice does not implement.
[[noreturn]] void refuse(const JsonObject& object, std::string_view key, std::string_view why) {
  const std::string found = object.has(key) ? describe_json(object.get(key)) : "missing";
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{} is {}: {}; {}", printable(key), found, why, kSupported),
              object.name());
}

// Refuses an object with a key that is not in `known`.
void check_keys(const JsonObject& object, std::initializer_list<std::string_view> known) {
  for (const std::string& key : object.keys()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      refuse(object, key, "Sluice does not know this field");
    }
  }
}

// Refuses a flag that has the value that Sluice does not implement.
void require_absent_or(const JsonObject& object, std::string_view key, bool allowed) {
  const auto value = object.find_bool(key);
  if (value && *value != allowed) refuse(object, key, "this setting is not supported");
}

// Calls visit(JsonObject) for every member of a list of objects.
template <typename Visit>
void for_each_object(const JsonObject& object, std::string_view key, Visit&& visit) {
  const json& list = object.get(key);
  if (!list.is_array()) object.fail(key, "a list of objects");
  for (size_t i = 0; i < list.size(); ++i) {
    visit(JsonObject(list[i], fmt::format("{}: {}[{}]", object.name(), key, i)));
  }
}

// Ids by content. Most contents represent bytes and are in the vocabulary's index. Contents that do
// not, and added tokens outside the model's vocabulary, are kept here: merging never gives them.
class ContentIndex {
 public:
  explicit ContentIndex(Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  // False when the id is taken or the content has another id.
  bool add(int32_t id, const std::string& content) {
    if (const auto bytes = bytes_of_token(content)) return vocabulary_.add(id, *bytes, true);
    return odd_.emplace(content, id).second && vocabulary_.add(id, content, false);
  }
  // The same for an added token that is not in the model's vocabulary.
  bool add_apart(int32_t id, const std::string& content) {
    if (find(content) || vocabulary_.has(id)) return false;
    odd_.emplace(content, id);
    return vocabulary_.add(id, bytes_of_token(content).value_or(content), false);
  }
  std::optional<int32_t> find(const std::string& content) const {
    if (const auto bytes = bytes_of_token(content)) {
      if (const auto id = vocabulary_.find(*bytes)) return id;
    }
    const auto it = odd_.find(content);
    return it == odd_.end() ? std::nullopt : std::optional(it->second);
  }

 private:
  Vocabulary& vocabulary_;
  std::unordered_map<std::string, int32_t> odd_;
};

// The id of a token. Errors: kModel if it is no integer from 0 to kMaxTokenIds - 1.
int32_t checked_id(const JsonObject& owner, std::string_view content, const json& value) {
  const bool in_range = value.is_number_integer() && value >= 0 && value < kMaxTokenIds;
  if (!in_range) {
    throw Error(ErrorCode::kModel,
                fmt::format("the token \"{}\" has id {}; ids are integers from 0 to {}",
                            printable(content), describe_json(value), kMaxTokenIds - 1),
                owner.name());
  }
  return value.get<int32_t>();
}

// Fills a TokenizerFile. Order: the normalizer comes before the tokens, since added tokens may be
// normalized; merges and the template name tokens, so they come after.
class FileReader {
 public:
  FileReader(const json& document, std::string_view name) : root_(document, std::string(name)) {}

  TokenizerFile read() {
    // Truncation and padding are ignored, as in transformers: they concern batches.
    check_keys(root_, {"version", "truncation", "padding", "added_tokens", "normalizer",
                       "pre_tokenizer", "post_processor", "decoder", "model"});
    const auto version = root_.find_string("version");
    if (version && *version != "1.0") refuse(root_, "version", "only version 1.0 is known");
    const JsonObject model = root_.get_object("model");
    read_model_settings(model);
    if (const auto part = root_.find_object("normalizer")) read_normalizer(*part);
    read_tokens(model);
    read_merges(model);
    const auto pre_tokenizer = root_.find_object("pre_tokenizer");
    if (pre_tokenizer) read_pre_tokenizer(*pre_tokenizer);
    if (!byte_level_) refuse(root_, "pre_tokenizer", "no ByteLevel step in it");
    if (const auto part = root_.find_object("post_processor")) read_post_processor(*part);
    read_decoder(root_.get_object("decoder"));
    return std::move(file_);
  }

 private:
  // Reads the settings of the BPE model except its tokens; refuses those that change ids in ways
  // that Sluice does not implement.
  void read_model_settings(const JsonObject& model) {
    // Old files have no type.
    if (model.find_string("type").value_or("BPE") != "BPE") {
      refuse(model, "type", "not a byte-pair model");
    }
    check_keys(model,
               {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (model.has("dropout") && model.get("dropout") != 0.0) {
      refuse(model, "dropout", "encoding would be random");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!model.find_string(key).value_or("").empty()) {
        refuse(model, key, "byte-level vocabularies have none");
      }
    }
    require_absent_or(model, "byte_fallback", false);
    file_.ignore_merges = model.find_bool("ignore_merges").value_or(false);
  }

  // Fills the vocabulary: the model's tokens, then added tokens that are not among them.
  void read_tokens(const JsonObject& model) {
    read_added_tokens();
    const auto tokens = vocab_by_id(model);
    int32_t last_id = tokens.back().first;
    for (const AddedToken& token : file_.added_tokens) last_id = std::max(last_id, token.id);
    file_.vocabulary = Vocabulary(static_cast<size_t>(last_id) + 1);
    for (const auto& [id, content] : tokens) {
      check_token(model, *content, id, !content->empty() && index_.add(id, *content));
    }
    for (const AddedToken& token : file_.added_tokens) {
      if (index_.find(token.content) == token.id) continue;
      check_token(root_, token.content, token.id, index_.add_apart(token.id, token.content));
    }
    read_unknown(model);
  }

  // The tokens sorted by id. Merges look tokens up in about this order, so storing them in it
  // causes fewer cache misses than the document's alphabetical order.
  std::vector<std::pair<int32_t, const std::string*>> vocab_by_id(const JsonObject& model) const {
    const json& vocab = model.get("vocab");
    if (!vocab.is_object() || vocab.empty()) model.fail("vocab", "an object of tokens, not empty");
    std::vector<std::pair<int32_t, const std::string*>> tokens;
    tokens.reserve(vocab.size());
    for (const auto& [content, id] : vocab.get_ref<const json::object_t&>()) {
      tokens.emplace_back(checked_id(model, content, id), &content);
    }
    std::stable_sort(tokens.begin(), tokens.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    return tokens;
  }

  // Reads the token for bytes that have none. If every byte has a token, unk_token is not used and
  // may have any value.
  void read_unknown(const JsonObject& model) {
    int num_bytes = 0;
    for (int byte = 0; byte < 256; ++byte) {
      const char one = static_cast<char>(byte);
      num_bytes += file_.vocabulary.find({&one, 1}) ? 1 : 0;
    }
    if (num_bytes == 0) {
      throw Error(ErrorCode::kModel,
                  "vocab has a token for none of the 256 bytes; a byte-level vocabulary has nearly "
                  "all of them: is it the model's own file?",
                  model.name());
    }
    const auto unknown = model.find_string("unk_token");
    file_.unknown.fuse = model.find_bool("fuse_unk").value_or(false);
    if (!unknown || num_bytes == 256) return;
    // As in the reference, it must be in the model's vocabulary; added tokens do not count.
    if (!model.get("vocab").contains(*unknown)) {
      model.fail("unk_token",
                 fmt::format("null or a token of vocab, which has {} of the 256 bytes", num_bytes));
    }
    file_.unknown.id = *index_.find(*unknown);
  }

  // Throws the error for a token that was not added: empty, a second id, or an id already taken.
  void check_token(const JsonObject& owner, const std::string& content, int32_t id,
                   bool added) const {
    if (content.empty()) {
      throw Error(ErrorCode::kModel, fmt::format("the token with id {} is empty", id),
                  owner.name());
    }
    if (added) return;
    const auto other = index_.find(content);
    throw Error(ErrorCode::kModel,
                other ? fmt::format("the token \"{}\" has the ids {} and {}; a token has one",
                                    printable(content), *other, id)
                      : fmt::format("the id {} of the token \"{}\" belongs to another token "
                                    "(\"{}\") as well; each id names one token",
                                    id, printable(content), printable(file_.vocabulary.bytes(id))),
                owner.name());
  }

  // Reads added_tokens; read_tokens detects ids that are used twice.
  void read_added_tokens() {
    if (!root_.has("added_tokens")) return;
    for_each_object(root_, "added_tokens", [this](const JsonObject& object) {
      check_keys(object,
                 {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token;
      token.id = static_cast<int32_t>(object.get_int("id", 0, kMaxTokenIds - 1));
      token.content = object.get_string("content");
      token.single_word = object.get_bool("single_word");
      token.lstrip = object.get_bool("lstrip");
      token.rstrip = object.get_bool("rstrip");
      token.normalized = object.get_bool("normalized");
      token.special = object.get_bool("special");
      if (token.normalized && file_.nfc) {  // it is looked for in normalized text
        token.content.clear();
        unicode::append_nfc(object.get_string("content"), token.content);
      }
      file_.added_tokens.push_back(std::move(token));
    });
  }

  // The rank of a merge is its index in the list.
  void read_merges(const JsonObject& model) {
    const json& merges = model.get("merges");
    if (!merges.is_array() || merges.size() > kMaxMerges) {
      model.fail("merges", fmt::format("a list of at most {} pairs", kMaxMerges));
    }
    file_.merges = MergeTable(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) {
      const auto [left, right] = merge_parts(model, merges[i], i);
      const int32_t left_id = merge_token(model, i, left);
      const int32_t right_id = merge_token(model, i, right);
      const int32_t result_id = merge_token(model, i, left + right);
      file_.merges.set(left_id, right_id, {static_cast<uint32_t>(i), result_id});
    }
  }

  // The two parts of "a b" (the alphabet has no space, so there is one) or ["a", "b"].
  std::pair<std::string, std::string> merge_parts(const JsonObject& model, const json& merge,
                                                  size_t i) const {
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
        return {text.substr(0, space), text.substr(space + 1)};
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    }
    throw Error(ErrorCode::kModel,
                fmt::format("merges[{}] is {}; it must be \"a b\" or [\"a\", \"b\"]", i,
                            describe_json(merge)),
                model.name());
  }

  // The id of a part or of the result of merge i. Errors: kModel if it is not in the vocabulary.
  int32_t merge_token(const JsonObject& model, size_t i, const std::string& content) const {
    const auto id = index_.find(content);
    if (!id) {
      throw Error(ErrorCode::kModel,
                  fmt::format("merges[{}] needs the token \"{}\", which is not in the vocabulary; "
                              "vocabulary and merges must come from the same model",
                              i, printable(content)),
                  model.name());
    }
    return *id;
  }

  // NFC, alone or in a Sequence, which may also be empty.
  void read_normalizer(const JsonObject& object) {
    const std::string type = object.get_string("type");
    if (type == "NFC") {
      check_keys(object, {"type"});
      file_.nfc = true;
    } else if (type == "Sequence") {
      check_keys(object, {"type", "normalizers"});
      for_each_object(object, "normalizers", [this](const JsonObject& o) { read_normalizer(o); });
    } else {
      refuse(object, "type", "the normalizers known are NFC and Sequence");
    }
  }

  // Appends the steps of a pre-tokenizer; a Sequence is read recursively (kMaxJsonDepth limits it).
  void read_pre_tokenizer(const JsonObject& object) {
    const std::string type = object.get_string("type");
    // A step after ByteLevel would get its alphabet instead of text.
    if (byte_level_) refuse(object, "type", "a step after ByteLevel is not supported");
    if (type == "Sequence") {
      check_keys(object, {"type", "pretokenizers"});
      for_each_object(object, "pretokenizers",
                      [this](const JsonObject& o) { read_pre_tokenizer(o); });
    } else if (type == "ByteLevel") {
      check_keys(object, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
      require_absent_or(object, "add_prefix_space", false);
      if (object.find_bool("use_regex").value_or(true)) file_.splits.push_back(kByteLevelSplit);
      byte_level_ = true;
    } else if (type == "Digits") {
      check_keys(object, {"type", "individual_digits"});
      file_.splits.push_back(object.get_bool("individual_digits") ? SplitKind::kIndividualDigits
                                                                  : SplitKind::kContiguousDigits);
    } else if (type == "Split") {
      read_split(object);
    } else {
      refuse(object, "type", "the pre-tokenizers known are ByteLevel, Digits, Split and Sequence");
    }
  }

  // A Split step whose regular expression is one of those with a matcher (pre_tokenizer.h).
  void read_split(const JsonObject& object) {
    check_keys(object, {"type", "pattern", "behavior", "invert"});
    if (object.get_string("behavior") != "Isolated") {
      refuse(object, "behavior", "only Isolated is supported");
    }
    require_absent_or(object, "invert", false);
    const JsonObject pattern = object.get_object("pattern");
    check_keys(pattern, {"Regex"});
    const auto kind = split_kind_of_regex(pattern.get_string("Regex"));
    if (!kind) refuse(pattern, "Regex", "this regular expression is not one of those known");
    file_.splits.push_back(*kind);
  }

  // Post-processors add special tokens; at most one template is supported.
  void read_post_processor(const JsonObject& object) {
    const std::string type = object.get_string("type");
    if (type == "Sequence") {
      check_keys(object, {"type", "processors"});
      for_each_object(object, "processors",
                      [this](const JsonObject& o) { read_post_processor(o); });
    } else if (type == "TemplateProcessing") {
      check_keys(object, {"type", "single", "pair", "special_tokens"});
      if (templated_) refuse(object, "type", "a second template is not supported");
      templated_ = true;
      read_template(object);
    } else if (type != "ByteLevel") {  // ByteLevel only moves offsets
      refuse(object, "type", "the post-processors known are TemplateProcessing and ByteLevel");
    }
  }

  // Reads the template for one text: special tokens before and after the sequence A. "pair" is not
  // used.
  void read_template(const JsonObject& object) {
    const JsonObject special_tokens = object.get_object("special_tokens");
    bool seen_text = false;
    for_each_object(object, "single", [&](const JsonObject& item) {
      check_keys(item, {"SpecialToken", "Sequence"});
      if (item.has("Sequence")) {
        if (seen_text || item.get_object("Sequence").get_string("id") != "A") {
          refuse(item, "Sequence", "a template for one text has the sequence A once");
        }
        seen_text = true;
        return;
      }
      const std::string id = item.get_object("SpecialToken").get_string("id");
      append_template_ids(special_tokens.get_object(id),
                          seen_text ? file_.suffix_ids : file_.prefix_ids);
    });
    if (!seen_text) refuse(object, "single", "the template leaves the text out");
  }

  // One name in a template may stand for several ids.
  void append_template_ids(const JsonObject& special_token, std::vector<int32_t>& ids) const {
    const int64_t last = file_.vocabulary.num_ids() - 1;
    for (const int64_t id : special_token.find_ints("ids", 0, last)) {
      ids.push_back(static_cast<int32_t>(id));
    }
  }

  // Only checks that decoding is byte-level, which Tokenizer::decode implements.
  void read_decoder(const JsonObject& object) const {
    const std::string type = object.get_string("type");
    if (type == "Sequence") {
      check_keys(object, {"type", "decoders"});
      for_each_object(object, "decoders", [this](const JsonObject& o) { read_decoder(o); });
    } else if (type != "ByteLevel") {
      refuse(object, "type", "the only decoder known is ByteLevel");
    }
  }

  JsonObject root_;
  TokenizerFile file_;
  ContentIndex index_{file_.vocabulary};
  bool byte_level_ = false;
  bool templated_ = false;
};

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view text, std::string_view name) {
  return read_tokenizer_document(parse_json(text, name), name);
}

TokenizerFile read_tokenizer_document(const json& document, std::string_view name) {
  return FileReader(document, name).read();
}

}  // namespace sluice
