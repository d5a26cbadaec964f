// How likely whole documents are, by lm-eval's rules (loglikelihood_rolling): each id is scored
// once, the first of a document behind the codec's prefix (continuation.h: RollingRows).
//
//   word_perplexity  exp(-sum of log-probabilities / words): runs of blanks, and one
//   byte_perplexity  exp(-sum / bytes of the text in UTF-8)
//   bits_per_byte    -sum / bytes / ln 2: the one to compare models of other vocabularies by
//
// Sums are those of all documents.
#pragma once

#include <memory>
#include <string>

#include "runtime/run/eval/eval_task.h"

namespace millrace {

// `path`: a text file, which is one document; a folder of them, as data.kind text takes them; or
// NAME.jsonl, each line's "text" a document. At most `limit` documents, from the front; 0: all.
// Error(kData): a document that is empty or not UTF-8, ids outside the vocabulary.
std::unique_ptr<EvalTask> OpenPerplexity(const std::string& path, const TaskCodec& codec,
                                         const TaskWindow& window, int64_t limit);

}  // namespace millrace
