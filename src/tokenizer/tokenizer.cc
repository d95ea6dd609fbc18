// The steps of encoding: UTF-8 repair, raw added tokens, normalization, normalized added tokens,
// pieces, merges.
#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"
#include "io/gguf/gguf_model.h"
#include "io/model_file.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/nfc.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer_config.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/unicode.h"

namespace sluice {
namespace {

// The words of one text that were encoded before: a direct-mapped table whose entries refer to the
// text and to the ids made from it, so that nothing is copied. Most words of a text are repeated.
// A slot holds the last word with its hash.
class WordCache {
 public:
  // The size is proportional to the text, so that clearing the table costs little; at most 32768
  // entries (768 KiB). A text under 256 bytes gets no table.
  explicit WordCache(size_t text_bytes) {
    size_t num_entries = 0;
    if (text_bytes >= 256) {
      num_entries = 64;
      while (num_entries < 32768 && num_entries * 32 < text_bytes) num_entries *= 2;
    }
    entries_.resize(num_entries);
  }

  // The ids of one word: num_ids of them from first_id on. An entry without a word is empty.
  struct Entry {
    const char* word = nullptr;
    uint32_t num_bytes = 0;
    uint32_t num_ids = 0;
    size_t first_id = 0;  // index in the ids of the call
  };

  // The entry for `word`, perhaps empty or of another word; null for words that are not cached.
  Entry* place(std::string_view word) {
    if (word.size() < 2 || word.size() > kMaxWordBytes || entries_.empty()) return nullptr;
    return &entries_[hash_bytes(word) & (entries_.size() - 1)];
  }

 private:
  static constexpr size_t kMaxWordBytes = 64;
  std::vector<Entry> entries_;
};

// The added tokens that are searched in normalized or in raw text.
std::vector<AddedToken> select_tokens(const TokenizerFile& file, bool normalized) {
  std::vector<AddedToken> selected;
  for (const AddedToken& token : file.added_tokens) {
    if (token.normalized == normalized) selected.push_back(token);
  }
  return selected;
}

}  // namespace

// The tables of a loaded tokenizer; constant after construction.
struct Tokenizer::Impl {
  explicit Impl(TokenizerFile file, TokenizerConfig file_config);

  void encode_text(std::string_view text, const std::vector<TextRegion>& regions,
                   std::vector<int32_t>& ids) const;
  // Encodes text without added tokens.
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;
  // Appends the normalized text of `part` to `out`, region by region, since normalization must not
  // join characters across a border. Returns the regions of `out`.
  std::vector<TextRegion> normalize(std::string_view text, const std::vector<TextRegion>& regions,
                                    const TextPart& part, std::string& out) const;

  Vocabulary vocabulary;  // before merger, which is made from it
  BpeMerger merger;
  bool ignore_merges;
  bool nfc;  // whether text is normalized
  PreTokenizer pre_tokenizer;
  AddedTokenMatcher raw_tokens;                            // searched in the text as given
  AddedTokenMatcher normalized_tokens;                     // searched after normalization
  std::vector<std::pair<std::string, int32_t>> added_ids;  // content and id, for token_id()
  std::vector<bool> special;                               // by id
  std::vector<int32_t> prefix_ids;  // what add_special_tokens puts before and after a text
  std::vector<int32_t> suffix_ids;
  TokenizerConfig config;
};

Tokenizer::Impl::Impl(TokenizerFile file, TokenizerConfig file_config)
    : vocabulary(std::move(file.vocabulary)),
      merger(vocabulary, std::move(file.merges), file.unknown),
      ignore_merges(file.ignore_merges),
      nfc(file.nfc),
      pre_tokenizer(std::move(file.splits)),
      raw_tokens(select_tokens(file, false)),
      normalized_tokens(select_tokens(file, true)),
      special(static_cast<size_t>(vocabulary.num_ids())),
      prefix_ids(std::move(file.prefix_ids)),
      suffix_ids(std::move(file.suffix_ids)),
      config(std::move(file_config)) {
  for (const AddedToken& token : file.added_tokens) {
    added_ids.emplace_back(token.content, token.id);
    special[static_cast<size_t>(token.id)] = token.special;
  }
}

std::vector<TextRegion> Tokenizer::Impl::normalize(std::string_view text,
                                                   const std::vector<TextRegion>& regions,
                                                   const TextPart& part, std::string& out) const {
  std::vector<TextRegion> result;
  size_t begin = part.begin;
  // The first region that ends after `begin`.
  auto region =
      std::upper_bound(regions.begin(), regions.end(), begin,
                       [](size_t pos, const TextRegion& candidate) { return pos < candidate.end; });
  for (; begin < part.end; ++region) {
    const size_t end = std::min(part.end, region->end);
    if (nfc) {
      unicode::append_nfc(text.substr(begin, end - begin), out);
    } else {
      out.append(text.substr(begin, end - begin));
    }
    result.push_back({out.size(), region->parse_special});
    begin = end;
  }
  return result;
}

void Tokenizer::Impl::encode_text(std::string_view text, const std::vector<TextRegion>& regions,
                                  std::vector<int32_t>& ids) const {
  // Two searches: raw tokens in the text, then, in what is left after normalization, the others.
  std::vector<TextPart> parts;
  std::vector<TextPart> normalized_parts;
  std::string normalized;
  raw_tokens.split(text, regions, parts);
  for (const TextPart& part : parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    normalized.clear();
    normalized_parts.clear();
    const std::vector<TextRegion> inner_regions = normalize(text, regions, part, normalized);
    normalized_tokens.split(normalized, inner_regions, normalized_parts);
    for (const TextPart& inner : normalized_parts) {
      if (inner.id >= 0) {
        ids.push_back(inner.id);
      } else {
        encode_plain({normalized.data() + inner.begin, inner.end - inner.begin}, ids);
      }
    }
  }
}

void Tokenizer::Impl::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  WordCache cache(text.size());
  pre_tokenizer.split(text, [&](std::string_view word) {
    WordCache::Entry* entry = cache.place(word);
    if (entry && std::string_view(entry->word, entry->num_bytes) == word) {
      // By index: push_back may move the ids.
      for (size_t i = 0; i < entry->num_ids; ++i) ids.push_back(ids[entry->first_id + i]);
      return;
    }
    const size_t first_id = ids.size();
    // ignore_merges (Llama 3): a word that is a token may not be reachable by merges.
    const auto whole = ignore_merges ? vocabulary.find(word) : std::nullopt;
    if (whole) {
      ids.push_back(*whole);
    } else {
      merger.encode(word, ids);
    }
    if (entry) {
      *entry = {word.data(), static_cast<uint32_t>(word.size()),
                static_cast<uint32_t>(ids.size() - first_id), first_id};
    }
  });
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::filesystem::path& model_dir) {
  if (is_gguf(model_dir)) {
    const GgufFile gguf(model_dir);
    return Tokenizer(
        std::make_unique<const Impl>(read_gguf_tokenizer(gguf), read_gguf_tokenizer_config(gguf)));
  }
  const std::filesystem::path path = model_dir / "tokenizer.json";
  TokenizerFile file =
      parse_tokenizer_file(read_model_file(path, kMaxTokenizerFileBytes), path.string());
  return Tokenizer(std::make_unique<const Impl>(std::move(file), read_tokenizer_config(model_dir)));
}

Tokenizer Tokenizer::parse(std::string_view tokenizer_json, std::string_view name) {
  return Tokenizer(
      std::make_unique<const Impl>(parse_tokenizer_file(tokenizer_json, name), TokenizerConfig{}));
}

std::vector<int32_t> Tokenizer::encode(std::string_view utf8, const EncodeOptions& options) const {
  const TextSegment segment{std::string(utf8), options.parse_special};
  return encode({&segment, 1}, options.add_special_tokens);
}

std::vector<int32_t> Tokenizer::encode_prompt(std::string_view utf8,
                                              const EncodeOptions& options) const {
  std::vector<int32_t> ids = encode(utf8, options);
  if (!options.add_special_tokens || !options.parse_special) return ids;
  const std::vector<int32_t>& prefix = impl_->prefix_ids;
  const auto count = static_cast<ptrdiff_t>(prefix.size());
  // The text begins with the prefix if the ids have it twice. An empty prefix erases nothing.
  const bool twice = ids.size() >= 2 * prefix.size() + impl_->suffix_ids.size() &&
                     std::equal(prefix.begin(), prefix.end(), ids.begin() + count);
  if (twice) ids.erase(ids.begin(), ids.begin() + count);
  return ids;
}

std::vector<int32_t> Tokenizer::encode(std::span<const TextSegment> segments,
                                       bool add_special_tokens) const {
  std::string text;
  std::vector<TextRegion> regions;
  for (const TextSegment& segment : segments) {
    unicode::append_repaired(segment.text, false, text);
    regions.push_back({text.size(), segment.parse_special});
  }
  // Symbols of a long piece are indexed by uint32_t (bpe.cc).
  if (text.size() >= std::numeric_limits<uint32_t>::max()) {
    fail(ErrorCode::kInvalidArgument,
         "a text of {} bytes cannot be tokenized; split it below 4 GiB", text.size());
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  if (add_special_tokens) ids = impl_->prefix_ids;
  impl_->encode_text(text, regions, ids);
  if (add_special_tokens) {
    ids.insert(ids.end(), impl_->suffix_ids.begin(), impl_->suffix_ids.end());
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  }
  std::string text;
  unicode::append_repaired(bytes, false, text);
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const { return impl_->vocabulary.bytes(id); }

std::optional<int32_t> Tokenizer::token_id(std::string_view content) const {
  for (const auto& [added, id] : impl_->added_ids) {
    if (added == content) return id;
  }
  return impl_->vocabulary.find(content);
}

int32_t Tokenizer::vocab_size() const { return impl_->vocabulary.num_ids(); }

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->special[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::bos_id() const {
  const auto bos = config().special_tokens.find("bos_token");
  return bos == config().special_tokens.end() ? std::nullopt : token_id(bos->second);
}
const TokenizerConfig& Tokenizer::config() const { return impl_->config; }

}  // namespace sluice
