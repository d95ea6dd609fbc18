// The cases of the reference implementation's own test-suite, and one case for each broken rule.
//
// Source of the byte strings marked "upstream": safetensors 0.4 to 0.8, safetensors/src/tensor.rs.
// The results for the others were compared with the Python package safetensors 0.8.0, which accepts
// two things against its own documentation: two tensors of one name (it keeps the last one) and
// whitespace before '{'.
#include "io/safetensors.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/expect_error.h"
#include "io/temp_dir.h"

namespace sluice {
namespace {

using namespace std::string_literals;

std::span<const std::byte> span_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// A file with this header, followed by `data_bytes` zeros.
std::string file_with(const std::string& header, size_t data_bytes = 0) {
  const uint64_t size = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, 8);
  return file + header + std::string(data_bytes, '\0');
}

std::string tensor_json(const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string one_tensor(const std::string& dtype, const std::string& shape,
                       const std::string& offsets, size_t data_bytes) {
  return file_with(R"({"test":)" + tensor_json(dtype, shape, offsets) + "}", data_bytes);
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(span_of(file), "m.st");
}

std::string safetensors_error(const std::string& file) {
  return expect_error(ErrorCode::kModel, [&] { parse(file); });
}

// Upstream: the file of test_deserialization, which several of its tests break.
const std::string kUpstream =
    "<\0\0\0\0\0\0\0{\"test\":{\"dtype\":\"I32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}"s +
    std::string(16, '\0');

TEST(SafetensorsHeader, ReadsTheUpstreamFile) {
  const SafetensorsHeader header = parse(kUpstream);
  ASSERT_EQ(header.tensors.size(), 1u);
  const SafetensorsEntry& tensor = header.tensors[0];
  EXPECT_EQ(tensor.name, "test");
  EXPECT_EQ(tensor.dtype_name, "I32");
  EXPECT_EQ(tensor.dtype, DType::kI32);
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(tensor.begin, kUpstream.size() - 16);
  EXPECT_EQ(tensor.end, kUpstream.size());
}

TEST(SafetensorsHeader, AcceptsWhatTheFormatAllows) {
  // Upstream: test_empty, test_whitespace_padded_header, test_empty_shapes_allowed,
  // test_zero_sized_tensor.
  EXPECT_TRUE(parse("\b\0\0\0\0\0\0\0{}      "s).tensors.empty());
  EXPECT_TRUE(parse("\6\0\0\0\0\0\0\0{}\x0D\x20\x09\x0A"s).tensors.empty());
  EXPECT_TRUE(parse(one_tensor("I32", "[]", "[0,4]", 4)).tensors[0].shape.empty());
  const SafetensorsHeader zero = parse(one_tensor("I32", "[2,0]", "[0, 0]", 0));
  EXPECT_EQ(zero.tensors[0].shape, (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(zero.tensors[0].begin, zero.tensors[0].end);
  // A dimension of zero hides a later huge one, but not an earlier product that overflows.
  EXPECT_EQ(parse(one_tensor("I32", "[4611686018427387904,0]", "[0,0]", 0)).tensors.size(), 1u);
}

TEST(SafetensorsHeader, ReadsMetadata) {
  const SafetensorsHeader header = parse(file_with(R"({"__metadata__":{"format":"pt","a":"é"}})"));
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"a", "é"}, {"format", "pt"}}));
  EXPECT_TRUE(header.tensors.empty());
  EXPECT_TRUE(parse(file_with(R"({"__metadata__":null})")).metadata.empty());
}

TEST(SafetensorsHeader, OrdersTensorsByTheirBytes) {
  const SafetensorsHeader header =
      parse(file_with(R"({"a":)" + tensor_json("F32", "[1]", "[4,8]") + R"(,"b":)" +
                          tensor_json("BF16", "[2]", "[0,4]") + R"(,"c":)" +
                          tensor_json("F16", "[0]", "[8,8]") + "}",
                      8));
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "b");
  EXPECT_EQ(header.tensors[1].name, "a");
  EXPECT_EQ(header.tensors[2].name, "c");
}

TEST(SafetensorsHeader, KnowsEveryOfficialTypeByName) {
  // Bits as in safetensors 0.8.0; a shape of 8 elements fills whole bytes for all of them.
  const std::vector<std::pair<std::string, int>> official = {
      {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6},     {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},     {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"I16", 16}, {"U16", 16},    {"F8_E5M2FNUZ", 8}, {"F16", 16},    {"BF16", 16},
      {"I32", 32}, {"U32", 32},    {"F32", 32},        {"C64", 64},    {"F64", 64},
      {"I64", 64}, {"U64", 64}};
  size_t usable = 0;
  for (const auto& [name, bits] : official) {
    const std::string offsets = "[0," + std::to_string(bits) + "]";
    const SafetensorsHeader header = parse(one_tensor(name, "[8]", offsets, bits));
    EXPECT_EQ(header.tensors[0].dtype_name, name);
    if (!header.tensors[0].dtype) continue;
    ++usable;
    EXPECT_EQ(dtype_bytes(*header.tensors[0].dtype) * 8, static_cast<size_t>(bits)) << name;
  }
  EXPECT_EQ(usable, 8u);
}

TEST(SafetensorsHeader, RefusesAShortFile) {
  // Upstream: test_header_too_small.
  EXPECT_TRUE(contains(safetensors_error(""), "m.st: has 0 bytes, but safetensors start with 8"));
  EXPECT_TRUE(contains(safetensors_error("1234567"), "has 7 bytes"));
}

TEST(SafetensorsHeader, RefusesAHeaderThatIsTooLarge) {
  // Upstream: test_header_too_large.
  std::string file = kUpstream;
  file.replace(5, 3, "\xff\xff\xff");
  EXPECT_TRUE(contains(safetensors_error(file), "is over the format's limit of 100000000"));
  EXPECT_TRUE(
      contains(safetensors_error("\x01\xe1\xf5\x05\0\0\0\0"s), "header size 100000001 is over"));
  EXPECT_TRUE(
      contains(safetensors_error(std::string(8, '\xff')), "header size 18446744073709551615"));
}

TEST(SafetensorsHeader, RefusesAHeaderPastTheEnd) {
  // Upstream: test_invalid_header_length.
  EXPECT_TRUE(contains(safetensors_error("<\0\0\0\0\0\0\0"s),
                       "header of 60 bytes does not fit a file of 8"));
  EXPECT_TRUE(
      contains(safetensors_error("\0\xe1\xf5\x05\0\0\0\0{}"s), "header of 100000000 bytes"));
}

TEST(SafetensorsHeader, RefusesAHeaderThatStartsWrong) {
  // Upstream: test_whitespace_start_padded_header_is_not_allowed, test_invalid_header_non_utf8.
  EXPECT_TRUE(contains(safetensors_error("\6\0\0\0\0\0\0\0\t\n{}\r "s), "does not start with '{'"));
  EXPECT_TRUE(contains(safetensors_error("\1\0\0\0\0\0\0\0\xff"s), "does not start with '{'"));
  EXPECT_TRUE(contains(safetensors_error(std::string(8, '\0')), "does not start with '{'"));
  EXPECT_TRUE(contains(safetensors_error(file_with("[]")), "does not start with '{'"));
}

TEST(SafetensorsHeader, RefusesAHeaderThatIsNotUtf8Json) {
  // Upstream: test_invalid_header_not_json.
  EXPECT_TRUE(
      contains(safetensors_error("\1\0\0\0\0\0\0\0{"s), "m.st: header: byte 2: not valid JSON"));
  EXPECT_TRUE(contains(safetensors_error(file_with("{\"\xff\":1}")), "ill-formed UTF-8"));
  EXPECT_TRUE(contains(safetensors_error(file_with("{}\0\0"s)), "not valid JSON"));
  EXPECT_TRUE(contains(safetensors_error(file_with("{}{}")), "not valid JSON"));
}

TEST(SafetensorsHeader, RefusesDuplicateKeys) {
  const std::string tensor = tensor_json("I32", "[]", "[0,4]");
  EXPECT_TRUE(
      contains(safetensors_error(file_with(R"({"t":)" + tensor + R"(,"t":)" + tensor + "}", 4)),
               "the key \"t\" appears twice"));
  EXPECT_TRUE(contains(safetensors_error(file_with(R"({"t":{"dtype":"I32","dtype":"I32"}})")),
                       "the key \"dtype\" appears twice"));
}

TEST(SafetensorsHeader, RefusesMetadataThatIsNotText) {
  EXPECT_TRUE(contains(safetensors_error(file_with(R"({"__metadata__":{"a":1}})")),
                       "__metadata__: \"a\" is 1; it must be a string"));
  EXPECT_TRUE(contains(safetensors_error(file_with(R"({"__metadata__":"x"})")), "where an object"));
}

// The only remedy for a damaged file is to fetch it again. Every refusal says so, or what is
// allowed instead.
TEST(SafetensorsHeader, EveryRefusalSaysWhatToDo) {
  const auto has_remedy = [](const std::string& text) {
    for (const char* remedy : {"fetch", "it must be", "is it ", "keep one"}) {
      if (text.find(remedy) != text.npos) return true;
    }
    return false;
  };
  const auto two = [](const std::string& first, const std::string& second) {
    return file_with(R"({"a":)" + tensor_json("U8", "[2]", first) + R"(,"b":)" +
                         tensor_json("U8", "[2]", second) + "}",
                     4);
  };
  for (const std::string& file :
       {""s,
        "\1\0"s,
        file_with("[]"),
        file_with("{"),
        "\xff\0\0\0\0\0\0\0{}"s,
        std::string(8, '\xff'),
        file_with(R"({"__metadata__":{"a":1}})"),
        file_with(R"({"__metadata__":{"a":null}})"),
        file_with(R"({"a":1})"),
        one_tensor("X9", "[2]", "[0,2]", 2),
        one_tensor("U8", "[-2]", "[0,2]", 2),
        one_tensor("U8", "2", "[0,2]", 2),
        one_tensor("U8", "[2]", "[0]", 2),
        one_tensor("U8", "[2]", "[2,0]", 2),
        one_tensor("U8", "[3]", "[0,2]", 2),
        one_tensor("F4", "[3]", "[0,2]", 2),
        one_tensor("U8", "[2]", "[0,2]", 1),
        one_tensor("U8", "[2]", "[0,2]", 3),
        one_tensor("U8", "[2]", "[1,3]", 3),
        one_tensor("U8", "[4294967296,4294967296,4294967296]", "[0,2]", 2),
        two("[0,2]", "[1,3]"),
        two("[0,2]", "[3,5]")}) {
    EXPECT_PRED1(has_remedy, safetensors_error(file));
  }
}

TEST(SafetensorsHeader, RefusesAnUnknownDType) {
  EXPECT_TRUE(contains(safetensors_error(one_tensor("float32", "[1]", "[0,4]", 4)),
                       "m.st: tensor \"test\": dtype is \"float32\"; it must be a type of"));
  EXPECT_TRUE(
      contains(safetensors_error(one_tensor("f32", "[1]", "[0,4]", 4)), "dtype is \"f32\""));
}

TEST(SafetensorsHeader, RefusesIncompleteOrMistypedEntries) {
  for (const std::string entry :
       {"null", "1", "[]", "{}", R"({"dtype":"I32","shape":[]})", R"({"dtype":"I32"})",
        R"({"shape":[],"data_offsets":[0,4]})", R"({"dtype":7,"shape":[],"data_offsets":[0,4]})",
        R"({"dtype":"I32","shape":1,"data_offsets":[0,4]})",
        R"({"dtype":"I32","shape":[1.0],"data_offsets":[0,4]})",
        R"({"dtype":"I32","shape":["1"],"data_offsets":[0,4]})",
        R"({"dtype":"I32","shape":[-1],"data_offsets":[0,4]})",
        R"({"dtype":"I32","shape":[],"data_offsets":[0,4,5]})",
        R"({"dtype":"I32","shape":[],"data_offsets":[4]})",
        R"({"dtype":"I32","shape":[],"data_offsets":4})",
        R"({"dtype":"I32","shape":[],"data_offsets":[-4,0]})"}) {
    EXPECT_TRUE(
        contains(safetensors_error(file_with("{\"t\":" + entry + "}", 4)), "m.st: tensor \"t\":"))
        << entry;
  }
}

TEST(SafetensorsHeader, RefusesASizeThatDiffersFromTheOffsets) {
  // Upstream: test_invalid_info.
  EXPECT_TRUE(contains(safetensors_error(one_tensor("I32", "[2,2]", "[0, 4]", 0)),
                       "shape and dtype need 16 bytes, but data_offsets span 4"));
  EXPECT_TRUE(contains(safetensors_error(one_tensor("BF16", "[3]", "[0,12]", 12)), "need 6 bytes"));
}

TEST(SafetensorsHeader, RefusesPartsOfBytes) {
  EXPECT_TRUE(contains(safetensors_error(one_tensor("F4", "[3]", "[0,1]", 1)), "fills 12 bits"));
  EXPECT_TRUE(
      contains(safetensors_error(one_tensor("F6_E2M3", "[3]", "[0,2]", 2)), "fills 18 bits"));
}

TEST(SafetensorsHeader, RefusesOverflowingShapes) {
  // Upstream: test_validation_overflow, both halves; the first value does not fit int64 here.
  EXPECT_TRUE(
      contains(safetensors_error(one_tensor("I32", "[2,18446744073709551614]", "[0,16]", 16)),
               "shape is a list of 2; it must be integers from 0"));
  EXPECT_TRUE(
      contains(safetensors_error(one_tensor("I32", "[2,9223372036854775807]", "[0,16]", 16)),
               "shape overflows 64 bits"));
  EXPECT_TRUE(contains(safetensors_error(one_tensor("U8", "[4294967296,4294967296]", "[0,0]", 0)),
                       "shape overflows 64 bits"));
  EXPECT_TRUE(contains(safetensors_error(one_tensor("U8", "[9223372036854775807,9,0]", "[0,0]", 0)),
                       "shape overflows 64 bits"));
}

TEST(SafetensorsHeader, RefusesOffsetsThatRunBackwards) {
  EXPECT_TRUE(contains(safetensors_error(one_tensor("I32", "[1]", "[4,0]", 4)),
                       "run backwards, from 4 to 0"));
}

TEST(SafetensorsHeader, RefusesOverlap) {
  // Upstream: test_json_attack, ten tensors over the same bytes.
  std::string header = "{";
  for (int i = 0; i < 10; ++i) {
    header += (i ? ",\"weight_" : "\"weight_") + std::to_string(i) +
              "\":" + tensor_json("F32", "[2,2]", "[0,16]");
  }
  EXPECT_TRUE(contains(safetensors_error(file_with(header + "}", 16)),
                       "starts at data byte 0, inside the one before it, which ends at 16"));
}

TEST(SafetensorsHeader, RefusesHoles) {
  EXPECT_TRUE(contains(safetensors_error(one_tensor("I32", "[1]", "[4,8]", 8)),
                       "tensor \"test\" starts at data byte 4, leaving a hole after 0"));
  EXPECT_TRUE(
      contains(safetensors_error(file_with(R"({"a":)" + tensor_json("U8", "[4]", "[0,4]") +
                                               R"(,"b":)" + tensor_json("U8", "[4]", "[5,9]") + "}",
                                           9)),
               "tensor \"b\" starts at data byte 5, leaving a hole after 4"));
}

TEST(SafetensorsHeader, RefusesDataThatIsCutOffOrTooLong) {
  // Upstream: test_metadata_incomplete_buffer, both halves.
  EXPECT_TRUE(contains(safetensors_error(kUpstream + "extra_bogus_data_for_polyglot_file"),
                       "34 bytes follow the last tensor"));
  EXPECT_TRUE(contains(safetensors_error(kUpstream.substr(0, kUpstream.size() - 2)),
                       "tensors need 16 bytes of data, but the file has 14"));
  EXPECT_TRUE(contains(safetensors_error(file_with("{}", 1)), "1 bytes follow the last tensor"));
}

TEST(SafetensorsHeader, RefusesEveryTruncationOfAFile) {
  for (size_t size = 0; size < kUpstream.size(); ++size)
    safetensors_error(kUpstream.substr(0, size));
}

std::string written(std::span<const SafetensorsInput> tensors,
                    const std::map<std::string, std::string>& metadata = {}) {
  const TempDir dir;
  write_safetensors(dir.path() / "x.safetensors", tensors, metadata);
  return slurp(dir.path() / "x.safetensors");
}

TEST(WriteSafetensors, MatchesTheReferenceByteForByte) {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5};
  const auto bytes = std::as_bytes(std::span(values));
  const std::string data(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  // Upstream: test_serialization, test_serialization_forced_alignement, test_empty.
  EXPECT_EQ(written({{SafetensorsInput{"attn.0", DType::kF32, {1, 2, 3}, bytes}}}),
            "\x40\0\0\0\0\0\0\0{\"attn.0\":{\"dtype\":\"F32\",\"shape\":[1,2,3],"
            "\"data_offsets\":[0,24]}}"s +
                data);
  EXPECT_EQ(written({{SafetensorsInput{"attn0", DType::kF32, {1, 1, 2, 3}, bytes}}}),
            "\x48\0\0\0\0\0\0\0{\"attn0\":{\"dtype\":\"F32\",\"shape\":[1,1,2,3],"
            "\"data_offsets\":[0,24]}}       "s +
                data);
  EXPECT_EQ(written({}), "\b\0\0\0\0\0\0\0{}      "s);
  EXPECT_EQ(written({}, {{"framework", "pt"}}),
            "\x28\0\0\0\0\0\0\0{\"__metadata__\":{\"framework\":\"pt\"}}     "s);
}

TEST(WriteSafetensors, RoundTripsRandomFiles) {
  std::mt19937 random(7);
  const DType types[] = {DType::kF32, DType::kBF16, DType::kF16,
                         DType::kI32, DType::kI64,  DType::kU8};
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> storage(random() % 8);
    std::vector<SafetensorsInput> tensors;
    for (size_t i = 0; i < storage.size(); ++i) {
      SafetensorsInput tensor{"t\"\\\n" + std::to_string(i), types[random() % 6], {}, {}};
      size_t bytes = dtype_bytes(tensor.dtype);
      for (unsigned rank = random() % 4; rank > 0; --rank) {
        tensor.shape.push_back(random() % 5);
        bytes *= static_cast<size_t>(tensor.shape.back());
      }
      for (size_t b = 0; b < bytes; ++b) storage[i] += static_cast<char>(random());
      tensor.bytes = span_of(storage[i]);
      tensors.push_back(tensor);
    }
    const std::string file = written(tensors, {{"k", "v\n"}});
    const SafetensorsHeader header = parse(file);
    ASSERT_EQ(header.tensors.size(), tensors.size());
    EXPECT_EQ(header.metadata.at("k"), "v\n");
    for (const SafetensorsEntry& entry : header.tensors) {
      const size_t i = std::stoul(entry.name.substr(4));
      EXPECT_EQ(entry.dtype, tensors[i].dtype);
      EXPECT_EQ(entry.shape, tensors[i].shape);
      EXPECT_EQ(file.substr(entry.begin, entry.end - entry.begin), storage[i]);
      EXPECT_EQ(entry.begin % dtype_bytes(tensors[i].dtype), 0u) << "aligned";
    }
  }
}

TEST(WriteSafetensors, RefusesTwoTensorsOfOneName) {
  const TempDir dir;
  const std::vector<SafetensorsInput> tensors(2, {"a", DType::kU8, {0}, {}});
  const auto path = dir.path() / "x.safetensors";
  EXPECT_TRUE(
      contains(expect_error(ErrorCode::kInvalidArgument, [&] { write_safetensors(path, tensors); }),
               "two tensors are named \"a\""));
  EXPECT_EQ(dir.num_files(), 0u);
}

TEST(WriteSafetensors, NamesAPathThatCannotBeWritten) {
  EXPECT_TRUE(contains(
      expect_error(ErrorCode::kIo, [] { write_safetensors("/nonexistent/x.safetensors", {}); }),
      "/nonexistent/x.safetensors"));
}

}  // namespace
}  // namespace sluice
