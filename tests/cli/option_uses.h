// Which engine options the commands of a program have no use for: the kinds of options, and the
// checks that a table of commands goes through. A new command or option fails until it has its
// place.
//
// Used by the tests of every program's options. Thread rule: main thread of the test.
#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/options/option_set.h"
#include "cli/parsed_words.h"
#include "core/option_check.h"
#include "sluice/engine_options.h"

namespace sluice::cli {

// An option and what else must be given for it to mean something.
struct Witness {
  Words words;
  Words beside = {};
};

// Options by the kind of work that they change; "plan" changes what is loaded, computed or held by
// every engine.
inline const std::map<std::string, std::vector<Witness>> kWitnesses = {
    {"plan",
     {{{"--load-format", "dummy"}},
      {{"--device", "cpu"}},
      {{"--threads", "2"}},
      {{"--tensor-parallel-size", "2"}},
      {{"--max-model-len", "512"}},
      {{"--max-num-batched-tokens", "512"}},
      {{"--prefill-chunk-tokens", "128"}},
      {{"--gpu-memory-utilization", "0.5"}},
      {{"--enforce-eager"}},
      {{"--weights-offload", "experts"}},
      {{"--experts-device-bytes", "1M"}},
      {{"--kv-cache-dtype", "fp8"}},
      {{"--block-size", "64"}}}},
    {"sequences", {{{"--max-num-seqs", "3"}}}},
    {"stalls", {{{"--max-stall-ms", "100"}}}},
    {"prefixes", {{{"--no-prefix-caching"}}}},
    {"cache", {{{"--kv-cache-bytes", "8M"}}}},
    {"offload",
     {{{"--kv-host-bytes", "64M"}},
      {{"--kv-device-bytes", "1M"}},
      {{"--num-kv-slots", "3"}},
      {{"--kv-slot-blocks", "2"}},
      {{"--kv-copy-bytes", "4K"}}}},
    {"mode", {{{"--kv-offload", "chunked"}}}},
    {"policy",
     {{{"--sparse-policy", "sampled+full"}},
      {{"--sparse-sink-tokens", "256"}},
      {{"--sparse-recent-tokens", "256"}},
      {{"--sparse-threshold-tokens", "0"}},
      {{"--sparse-shared-list"}},
      {{"--sparse-coverage", "0.7"}},
      {{"--sparse-coverage-of", "rest"}},
      {{"--sparse-alpha", "0.1"}},
      {{"--sparse-stride", "16"}},
      {{"--sparse-pool", "max"}},
      {{"--sparse-pool-tokens", "8"}},
      {{"--sparse-query-pool-tokens", "16"}},
      {{"--sparse-probe-rows", "2"}},
      {{"--sparse-two-stage-tokens", "4K"}},
      {{"--sparse-min-budget-tokens", "256"}},
      {{"--sparse-max-budget-tokens", "512"}},
      {{"--sparse-tail-tokens", "0"}},
      {{"--sparse-dense-layers", "1"}},
      {{"--sparse-column-tokens", "64"}},
      {{"--sparse-segment-tokens", "512"}},
      {{"--sparse-adaptive-budget", "0.2"}},
      {{"--sparse-profile", "f"}},
      {{"--sparse-vertical-tokens", "64"}},
      {{"--sparse-slash-tokens", "512"}},
      {{"--sparse-divergence", "0.2"}}}},
    {"decode policy",
     {{{"--sparse-policy", "full+quest"}},
      {{"--sparse-topk-tokens", "512"}, {"--sparse-policy", "full+quest"}},
      {{"--sparse-page-tokens", "16"}, {"--sparse-policy", "full+quest"}}}},
    {"audit", {{{"--sparse-audit"}, {"--sparse-policy", "sampled+full"}}}},
    {"drafts",
     {{{"--speculative-method", "ngram"}},
      {{"--num-speculative-tokens", "4"}, {"--speculative-method", "ngram"}},
      {{"--prompt-lookup-min", "1"}, {"--speculative-method", "ngram"}},
      {{"--prompt-lookup-max", "5"}, {"--speculative-method", "ngram"}},
      {{"--speculative-config", "{\"method\": \"ngram\"}"}}}},
    {"store",
     {{{"--kv-store", "s"}},
      {{"--kv-store-bytes", "1G"}, {"--kv-store", "s"}},
      {{"--kv-store-mode", "read-only"}, {"--kv-store", "s"}},
      {{"--kv-store-min-tokens", "0"}, {"--kv-store", "s"}},
      {{"--state-cache-bytes", "1G"}},
      {{"--state-snapshot-tokens", "4K"}}}},
    {"events",
     {{{"--kv-events", "tcp://*:1"}},
      {{"--kv-events-replay", "tcp://*:2"}, {"--kv-events", "tcp://*:1"}},
      {{"--kv-events-topic", "t"}, {"--kv-events", "tcp://*:1"}},
      {{"--kv-events-buffer-steps", "9"},
       {"--kv-events", "tcp://*:1", "--kv-events-replay", "tcp://*:2"}},
      {{"--kv-events-hwm", "9"}, {"--kv-events", "tcp://*:1"}}}},
    {"seed", {{{"--seed", "3"}}}},
};

// A command with an engine, and the kinds of options that it refuses or does not have.
struct CommandUse {
  Words words;  // that make it run
  std::set<std::string> unused;
};

using CommandUses = std::map<std::string, CommandUse>;
// Options that one command refuses for a reason of its own, which its other tests check.
using OwnRefusals = std::map<std::string, std::set<std::string>>;

inline Words all_of(Words words, const Words& more, const Words& still_more) {
  words.insert(words.end(), more.begin(), more.end());
  words.insert(words.end(), still_more.begin(), still_more.end());
  return words;
}

inline std::set<std::string> options_of(const Words& words) {
  const ParseOutcome outcome = parse_command_line(words);
  OptionSet set;
  outcome.invocation->declare_options(set);
  std::set<std::string> names;
  for (const Option& option : set.options()) names.insert(option.long_name);
  return names;
}

inline std::set<std::string> engine_option_names() {
  std::set<std::string> names = {long_option(kSeedRow.facts)};
  const auto add = [&](const auto& rows) {
    for (const auto& row : rows) names.insert(long_option(row.facts));
  };
  add(kEngineOptionRows), add(kKvOptionRows), add(kKvOffloadRows), add(kSparseOptionRows);
  add(kSpeculativeRows), add(kKvStoreRows), add(kKvEventsRows), add(kStateCacheRows);
  return names;
}

// Every kind of option is used by a command or refused, as its row says.
inline void expect_used_or_refused(const CommandUses& uses, const OwnRefusals& own_refusals) {
  for (const auto& [name, command] : uses) {
    ASSERT_EQ(refusal(command.words), "") << name;
    const std::set<std::string> options = options_of(command.words);
    for (const auto& [kind, witnesses] : kWitnesses) {
      for (const Witness& witness : witnesses) {
        const std::string& option = witness.words.front();
        const auto own = own_refusals.find(name);
        if (own != own_refusals.end() && own->second.contains(option)) continue;
        const std::string text = refusal(all_of(command.words, witness.words, witness.beside));
        if (!command.unused.contains(kind)) {
          EXPECT_EQ(text, "") << name << " does " << kind;
          continue;
        }
        EXPECT_NE(text, "") << name << " takes " << option << " and has no use for it";
        if (!options.contains(option)) continue;  // as unknown as any other word
        // The error may also be of the first word that the option belongs to.
        const bool names_it = std::ranges::any_of(
            all_of({}, witness.words, witness.beside), [&](const std::string& word) {
              return word.starts_with("--") && text.find(word) != text.npos;
            });
        EXPECT_TRUE(names_it) << name << ", " << option << ": " << text;
      }
    }
  }
}

// Every command of the program that takes engine options has a row.
inline void expect_judged(const CommandUses& uses) {
  for (const SubcommandSpec& spec : program_under_test().subcommands) {
    if (!spec.begin) continue;  // a group
    std::istringstream parts(spec.name);
    Words words{std::istream_iterator<std::string>(parts), {}};
    words.emplace_back("--help");
    const bool has_engine =
        parse<PrintCommand>(words).text.find("--max-num-seqs") != std::string::npos;
    EXPECT_TRUE(!has_engine || uses.contains(spec.name)) << spec.name << " needs a row";
  }
}

}  // namespace sluice::cli
