// MB of text per second of one core: tokenizer_speed TOKENIZER.json FILE...
//
// A document ends with the first line that ends 100,000 bytes or more behind its begin. Cold: a new
// encoder over all once; warm: the same encoder again. Seconds are of this thread's processor time,
// so that other work on the machine counts less. Prints JSON: bytes, tokens, a hash of the ids, and
// MB/s (10^6 bytes) of each pass.
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/data/hash.h"
#include "runtime/data/input_file.h"
#include "runtime/text/tokenizer/text_encoder.h"
#include "runtime/text/tokenizer/tokenizer.h"

using namespace millrace;

namespace {

constexpr size_t kDocumentBytes = 100'000;

void AppendDocuments(const std::string& text, std::vector<std::string>& documents) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t newline = text.find('\n', begin + kDocumentBytes);
    const size_t end = newline == std::string::npos ? text.size() : newline + 1;
    documents.push_back(text.substr(begin, end - begin));
    begin = end;
  }
}

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  try {
    const double begin = ThreadSeconds();
    const Tokenizer tokenizer = Tokenizer::Load(argv[1]);
    const double load = ThreadSeconds() - begin;
    std::vector<std::string> texts;
    int64_t bytes = 0;
    for (int i = 2; i < argc; ++i) {
      const std::string text = ReadWholeFile(argv[i], int64_t{4} << 30, ErrorCode::kData);
      AppendDocuments(text, texts);
      bytes += std::ssize(text);
    }
    TextEncoder encoder(tokenizer, TextEncoder::kLargeCacheBytes);  // as `millrace tokenize`
    const EncodeOptions options = {SpecialText::kPlain, AroundText::kNothing};
    Hasher128 hash;
    std::vector<int32_t> ids;
    int64_t tokens = 0;
    double rates[3];
    for (double& rate : rates) {
      double seconds = 0;
      tokens = 0;
      hash.Reset();
      for (const std::string& text : texts) {
        ids.clear();
        const double start = ThreadSeconds();
        encoder.Encode(text, options, ids);
        seconds += ThreadSeconds() - start;
        tokens += std::ssize(ids);
        hash.Update(ids.data(), std::ssize(ids) * int64_t{sizeof(ids[0])});
      }
      rate = 1e-6 * double(bytes) / seconds;
    }
    std::printf(
        "{\"bytes\": %ld, \"tokens\": %ld, \"ids\": \"%s\", \"load_s\": %.2f, \"cold\": %.1f, "
        "\"warm\": %.1f, \"warm_again\": %.1f}\n",
        long(bytes), long(tokens), hash.Hex().c_str(), load, rates[0], rates[1], rates[2]);
  } catch (const Error& error) {
    std::fprintf(stderr, "tokenizer_speed: %s\n", error.what());
    return ExitCode(error.code());
  }
  return 0;
}
