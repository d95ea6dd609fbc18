// The end token, the stop strings, and what of a text may be shown.
#include "engine/stations/answers.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/text_stops.h"

namespace sluice {

void Answers::append(const SampledToken& token) {
  Sequence& sequence = *token.sequence;
  RequestOutput& output = sequence.answer.output;
  sequence.append(token.token_id);
  ++num_generated_tokens_;
  output.token_ids.push_back(token.token_id);
  if (sequence.params.logprobs) {
    std::vector<TokenLogprob> entry{{token.token_id, token.logprob}};
    entry.insert(entry.end(), token.top_logprobs.begin(), token.top_logprobs.end());
    output.logprobs.push_back(std::move(entry));
  }
  output.finish_reason = finish_reason(sequence, token.token_id);
  Guide* const guide = sequence.grammar.guide.get();
  if (guide != nullptr && !guide->append(token.token_id)) {
    output.error = "structured output: the grammar does not take a token that it has allowed";
    output.finish_reason = FinishReason::kError;
  }
  append_text(sequence, token.token_id);
}

void Answers::append_text(Sequence& sequence, int32_t token_id) {
  RequestOutput& output = sequence.answer.output;
  const size_t new_begin = sequence.answer.text.size();
  // The end token is no part of the text.
  if (output.finish_reason != FinishReason::kStop) {
    sequence.answer.text += sequence.answer.detokenizer.push(token_id);
  }
  if (output.finished()) sequence.answer.text += sequence.answer.detokenizer.finish();
  const auto stop = find_stop(sequence.answer.text, new_begin, sequence.params.stop);
  if (stop && sequence.num_generated() >= sequence.params.min_tokens) {
    sequence.answer.text.resize(stop->position);
    output.stop_reason = stop->stop;
    output.finish_reason = FinishReason::kStop;
  }
  sequence.show_text(output.finished() ? sequence.answer.text.size()
                                       : visible_size(sequence.answer.text, sequence.params.stop));
}

bool Answers::is_end_token(const Sequence& sequence, int32_t token_id) const {
  const auto has = [token_id](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token_id) != ids.end();
  };
  return has(sequence.params.stop_token_ids) || (!sequence.params.ignore_eos && has(eos_ids_));
}

FinishReason Answers::finish_reason(const Sequence& sequence, int32_t token_id) const {
  if (sequence.num_generated() >= sequence.params.min_tokens && is_end_token(sequence, token_id)) {
    return FinishReason::kStop;
  }
  // Front::check left room for max_tokens, so the model's length cannot be reached before.
  return sequence.num_generated() >= sequence.params.max_tokens ? FinishReason::kLength
                                                                : FinishReason::kNone;
}

bool Answers::report(Sequence& sequence, std::vector<RequestOutput>& outputs) {
  const bool finished = sequence.answer.output.finished();
  if (finished || sequence.params.output_kind == OutputKind::kDelta) {
    outputs.push_back(sequence.take_output());
  }
  return finished;
}

void Answers::report_progress(Sequence& sequence, std::vector<RequestOutput>& outputs) {
  if (sequence.params.output_kind == OutputKind::kDelta) outputs.push_back(sequence.take_output());
}

void Answers::cancel(std::unique_ptr<Sequence> sequence) {
  end(std::move(sequence), FinishReason::kCancelled);
}

void Answers::fail(std::unique_ptr<Sequence> sequence, std::string error) {
  sequence->answer.output.error = std::move(error);
  end(std::move(sequence), FinishReason::kError);
}

void Answers::end(std::unique_ptr<Sequence> sequence, FinishReason reason) {
  sequence->answer.text += sequence->answer.detokenizer.finish();
  sequence->answer.output.finish_reason = reason;
  sequence->show_text(sequence->answer.text.size());
  cancelled_.push_back(sequence->take_output());
}

void Answers::take_cancelled(std::vector<RequestOutput>& outputs) {
  std::ranges::move(cancelled_, std::back_inserter(outputs));
  cancelled_.clear();
}

void Answers::drop_cancelled(SequenceId id) {
  std::erase_if(cancelled_,
                [id](const RequestOutput& output) { return output.request_id == id.value; });
}

}  // namespace sluice
