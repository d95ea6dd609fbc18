// The waits of offload_waits_run that must not be left out, by mode and kind.
//
// Used by offload_waits_test (ThreadSanitizer; its head says why each of the other waits is
// redundant) and offload_waits_gpu_test (bits). The numbers follow from the jobs. Thread rule: any
// thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "kv/wait_gate.h"

namespace sluice::testing {

// Waits [first, last] of one kind.
struct NeededWaits {
  WaitKind kind;
  int64_t first;
  int64_t last;
};

inline std::vector<NeededWaits> needed_waits(std::string_view mode) {
  // Loads of the chunked run: 0-3 second chunk, 4-11 third, 12-201 19 decode steps of 10 (a tail is
  // flushed before 112), 202-233 and 234-265 two short jobs, 266-269 and 270-273 two prompts,
  // 274-281 the job that stops early (two of its loads are dropped), 280-283 the last prompt.
  if (mode == "chunked") {
    return {{WaitKind::kFilled, 0, 281},    {WaitKind::kDrained, 2, 201},
            {WaitKind::kDrained, 204, 233}, {WaitKind::kDrained, 236, 265},
            {WaitKind::kDrained, 268, 269}, {WaitKind::kDrained, 272, 273},
            {WaitKind::kDrained, 276, 279}, {WaitKind::kDrained, 282, 283},
            {WaitKind::kOnHost, 0, 3},      {WaitKind::kOnHost, 16, 16},
            {WaitKind::kOnHost, 21, 21},    {WaitKind::kOnHost, 116, 116},
            {WaitKind::kOnHost, 202, 203},  {WaitKind::kOnHost, 234, 235},
            {WaitKind::kOnHost, 266, 277},  {WaitKind::kOnHost, 280, 283},
            {WaitKind::kStageLeft, 2, 5},   {WaitKind::kStageLeft, 12, 17},
            {WaitKind::kStageLeft, 20, 21}, {WaitKind::kStageLeft, 24, 25},
            {WaitKind::kWritten, 0, 5},     {WaitKind::kWritten, 11, 20},
            {WaitKind::kTailLeft, 5, 5},    {WaitKind::kUnused, 0, 1}};
  }
  // Loads of the layer-wise run: 0-189 19 decode steps of 10 (a tail is flushed before 100),
  // 190-221 and 222-253 the short jobs, 254-255 early loads for the job that then stopped.
  if (mode == "layerwise") {
    return {{WaitKind::kFilled, 0, 253},    {WaitKind::kDrained, 2, 189},
            {WaitKind::kDrained, 192, 221}, {WaitKind::kDrained, 224, 253},
            {WaitKind::kOnHost, 0, 1},      {WaitKind::kOnHost, 5, 6},
            {WaitKind::kOnHost, 104, 104},  {WaitKind::kOnHost, 190, 191},
            {WaitKind::kOnHost, 222, 223},  {WaitKind::kOnHost, 254, 255},
            {WaitKind::kStageLeft, 8, 13},  {WaitKind::kWritten, 0, 1},
            {WaitKind::kWritten, 7, 14},    {WaitKind::kTailLeft, 5, 5},
            {WaitKind::kUnused, 0, 1}};
  }
  // Loads of the run that gathers: 0-23 history of the chunks, 24-175 19 decode steps with 4
  // gathers a layer, 176-255 and 256-335 the short jobs with one gather a layer (two after their
  // tail was flushed), 336-367 history of the last prompts and the job between them. Of a decode
  // step the first two "drained" are compute's, and there is one "on host": 24-42 of the first job,
  // 43-58 and 59-74 of the short ones, 75-106 of the last prompts.
  if (mode == "gather") {
    return {{WaitKind::kFilled, 0, 367},     {WaitKind::kDrained, 2, 23},
            {WaitKind::kDrained, 26, 26},    {WaitKind::kDrained, 102, 102},
            {WaitKind::kDrained, 174, 174},  {WaitKind::kDrained, 338, 343},
            {WaitKind::kDrained, 346, 351},  {WaitKind::kDrained, 354, 359},
            {WaitKind::kDrained, 362, 367},  {WaitKind::kOnHost, 0, 1},
            {WaitKind::kOnHost, 4, 5},       {WaitKind::kOnHost, 43, 43},
            {WaitKind::kOnHost, 59, 59},     {WaitKind::kOnHost, 75, 76},
            {WaitKind::kOnHost, 103, 104},   {WaitKind::kStageLeft, 2, 5},
            {WaitKind::kStageLeft, 12, 17},  {WaitKind::kStageLeft, 20, 21},
            {WaitKind::kStageLeft, 24, 25},  {WaitKind::kWritten, 0, 5},
            {WaitKind::kWritten, 11, 20},    {WaitKind::kSelected, 0, 1},
            {WaitKind::kSelected, 148, 149}, {WaitKind::kSelected, 152, 311}};
  }
  // Waits of the replayed run: the first decode step has eight loads for its two layers and runs
  // without a graph (8 "drained", the first two of them compute's); the second is recorded (8
  // again); later ones wait for two slots and for one write-back. After the twelfth come the
  // visitor's loads, "drained" 36-37 and "on host" 12-13, which are never read; compute's next
  // waits, 38-39, are for them. Tails are flushed before the fifth decode step and every sixteenth
  // after it.
  if (mode == "replay") {
    return {
        {WaitKind::kFilled, 0, 7},    {WaitKind::kDrained, 10, 10}, {WaitKind::kDrained, 14, 14},
        {WaitKind::kDrained, 36, 39}, {WaitKind::kOnHost, 4, 4},    {WaitKind::kOnHost, 12, 13},
        {WaitKind::kOnHost, 22, 22},  {WaitKind::kOnHost, 38, 38},  {WaitKind::kUnused, 0, 1},
        {WaitKind::kSelected, 0, 1},  {WaitKind::kSelected, 4, 5}};
  }
  // Loads of the scored run, for each layer the keys of all blocks and then the blocks: 0-3 second
  // chunk, 4-11 third, 12-23 the prompt's end, 24-29 one decode step; 30-33, 34-41 and 42-45 those
  // of the second prompt. A chunk's newest block is loaded for the first time as keys (5, 9, 35,
  // 39); before it was in a slot, its whole load (1, 3, 31, 33) needs its own wait, too.
  if (mode == "scored") {
    return {
        {WaitKind::kFilled, 0, 45},   {WaitKind::kDrained, 2, 29},    {WaitKind::kDrained, 32, 45},
        {WaitKind::kOnHost, 0, 3},    {WaitKind::kOnHost, 5, 5},      {WaitKind::kOnHost, 9, 9},
        {WaitKind::kOnHost, 30, 33},  {WaitKind::kOnHost, 35, 35},    {WaitKind::kOnHost, 39, 39},
        {WaitKind::kStageLeft, 2, 7}, {WaitKind::kStageLeft, 10, 13}, {WaitKind::kWritten, 0, 9}};
  }
  // Of the run with hot pages: 16 loads of prefill, and of each decode step two "drained" and one
  // "on host" of compute. Of the latter those are needed that come first after a block has left.
  if (mode == "hot") {
    return {
        {WaitKind::kFilled, 0, 15},  {WaitKind::kDrained, 2, 7},   {WaitKind::kDrained, 96, 101},
        {WaitKind::kOnHost, 0, 1},   {WaitKind::kOnHost, 4, 5},    {WaitKind::kOnHost, 8, 8},
        {WaitKind::kOnHost, 20, 20}, {WaitKind::kOnHost, 27, 27},  {WaitKind::kOnHost, 43, 44},
        {WaitKind::kOnHost, 47, 48}, {WaitKind::kStageLeft, 2, 3}, {WaitKind::kStageLeft, 8, 9},
        {WaitKind::kWritten, 0, 3},  {WaitKind::kWritten, 7, 8}};
  }
  // Of the run with drafts a sample, of every kind that it needs: loads of prefill, gathers of
  // draft passes, and loads of passes that verify. Others are needed too.
  if (mode == "speculative") {
    return {{WaitKind::kFilled, 0, 0},       {WaitKind::kFilled, 60, 60},
            {WaitKind::kFilled, 140, 140},   {WaitKind::kFilled, 210, 210},
            {WaitKind::kFilled, 279, 279},   {WaitKind::kDrained, 10, 10},
            {WaitKind::kDrained, 140, 140},  {WaitKind::kDrained, 200, 200},
            {WaitKind::kDrained, 279, 279},  {WaitKind::kOnHost, 0, 1},
            {WaitKind::kStageLeft, 2, 2},    {WaitKind::kStageLeft, 9, 9},
            {WaitKind::kWritten, 0, 0},      {WaitKind::kWritten, 8, 8},
            {WaitKind::kSelected, 0, 1},     {WaitKind::kSelected, 60, 61},
            {WaitKind::kSelected, 120, 120}, {WaitKind::kSelected, 179, 179}};
  }
  // Loads of the run with experts: of three layers and two slots, 0-1 when the first pass begins,
  // then one after each layer of a pass.
  if (mode == "experts") return {{WaitKind::kFilled, 0, 23}, {WaitKind::kDrained, 2, 25}};
  SLUICE_CHECK(false, "no mode '{}'", mode);
  return {};
}

}  // namespace sluice::testing
